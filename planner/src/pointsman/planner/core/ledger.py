"""Decisions as Plan objects: when one is written, what is in it, and which old ones go."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pointsman.api.protocol.names import API_VERSION, SERVICE_LABEL
from pointsman.api.v1alpha1.plan import MAX_ALTERNATIVES, MAX_INPUTS, Plan, PlanRouting
from pointsman.api.v1alpha1.plannerpolicy import Mode, PlannerPolicySpec
from pointsman.planner.core.types import Decision, RoutingNumbers

BEGIN_WITHIN: Final = timedelta(seconds=60)  # of a plan that needs nobody: older news is not acted on
KEPT_ROUTING_PLANS: Final = 20
_MESSAGE_LIMIT: Final = 1000


def is_news(decision: Decision, newest: Plan | None) -> bool:
    """Whether a decision is written down: an action or a target changed, and it does not repeat the newest plan.

    (In Shadow nothing is carried out, so the same decision comes again every tick.)
    """
    if not (decision.changes_layout or decision.changes_routing):
        return False
    if newest is None:
        return True
    pools = newest.spec.pools
    before = pools.prefill.replicas, pools.decode.replicas, newest.spec.changes_layout
    now = decision.prefill, decision.decode, decision.changes_layout
    return now != before or _routing(decision.routing) != newest.spec.routing


def _routing(numbers: RoutingNumbers) -> PlanRouting:
    return PlanRouting(
        max_local_prefill_tokens=numbers.max_local_prefill_tokens,
        max_prefill_queue_size=numbers.max_prefill_queue_size,
        pending_tokens_per_prefill_worker=numbers.flow.pending_tokens_per_prefill_worker,
        in_flight_per_decode_worker=numbers.flow.in_flight_per_decode_worker,
    )


def plan_name(service: str, sequence: int) -> str:
    """``<service>-<sequence>``, so that names sort as they were made."""
    return f"{service}-{sequence:05}"


def next_sequence(plans: Iterable[Plan], remembered: int) -> int:
    """One above every plan there is and every one that was, so that a number is never used twice."""
    return max([remembered, *(plan.spec.sequence for plan in plans)]) + 1


def needs_approval(decision: Decision, policy: PlannerPolicySpec, now: tuple[int, int]) -> bool:
    """Whether a person must approve: the mode says so for every switch and scale, or the policy for this action."""
    if not decision.changes_layout:
        return False
    actions, change = policy.actions, decision.prefill + decision.decode - sum(now)
    return (
        policy.mode is Mode.APPROVE
        or bool(decision.switches and actions.role_switch.needs_approval)
        or (change > 0 and actions.scale_out.needs_approval)
        or (change < 0 and actions.scale_in.needs_approval)
    )


def plan_manifest(
    *,
    namespace: str,
    service: str,
    service_uid: str,
    sequence: int,
    decision: Decision,
    policy: PlannerPolicySpec,
    layout: tuple[int, int],
    now: datetime,
) -> dict[str, Any]:
    """The Plan of a decision. ``layout``: (prefill, decode) as it is now."""
    approval = needs_approval(decision, policy, layout)
    patience = timedelta(seconds=policy.approvals.expire_after_seconds) if approval else BEGIN_WITHIN
    return {
        "apiVersion": API_VERSION,
        "kind": "Plan",
        "metadata": {
            "name": plan_name(service, sequence),
            "namespace": namespace,
            "labels": {SERVICE_LABEL: service},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "LLMService",
                    "name": service,
                    "uid": service_uid,
                    "controller": False,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "spec": {
            "serviceRef": {"name": service},
            "sequence": sequence,
            "mode": policy.mode.value,
            "observedAt": _stamp(now),
            "pools": {"prefill": {"replicas": decision.prefill}, "decode": {"replicas": decision.decode}},
            "switches": [{"from": s.source.value, "to": s.target.value, "count": s.count} for s in decision.switches],
            "routing": _routing(decision.routing).model_dump(mode="json", by_alias=True, exclude_none=True),
            "changesLayout": decision.changes_layout,
            "drainFirst": policy.actions.role_switch.drain_first,
            "reason": decision.reason.value,
            "message": decision.message[:_MESSAGE_LIMIT],
            "inputs": [{"name": name, "value": value} for name, value in decision.inputs[:MAX_INPUTS]],
            "alternatives": [
                {
                    "action": a.action,
                    "prefill": a.prefill,
                    "decode": a.decode,
                    "gpus": a.gpus,
                    "expectedAttainment": min(max(a.expected_attainment, 0.0), 1.0),
                    "cost": a.cost,
                    "rejectedBecause": a.rejected_because,
                }
                for a in decision.alternatives[:MAX_ALTERNATIVES]
            ],
            "expiresAt": _stamp(now + patience),
            "approval": {"required": approval},
        },
    }


def outdated(plans: Sequence[Plan], kept: int) -> list[Plan]:
    """Ended plans beyond the history: ``kept`` that changed the layout, and the last few that only set routing."""
    ended = sorted(
        (plan for plan in plans if plan.status.phase is not None and plan.status.phase.ended),
        key=lambda plan: plan.spec.sequence,
        reverse=True,
    )
    layouts = [plan for plan in ended if plan.spec.changes_layout]
    routings = [plan for plan in ended if not plan.spec.changes_layout]
    return layouts[kept:] + routings[KEPT_ROUTING_PLANS:]


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
