"""Decisions as Plan objects: when one is written, what is in it, and which old ones go."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from pointsman.api.protocol.names import API_VERSION, SERVICE_LABEL, Role
from pointsman.api.v1alpha1.plan import MAX_ALTERNATIVES, MAX_INPUTS, Plan, PlanPhase, PlanSpec, PlanSwitch
from pointsman.api.v1alpha1.plannerpolicy import Mode, PlannerPolicySpec
from pointsman.planner.core.elastic.types import GroupDecision
from pointsman.planner.core.messages import plans as text
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Decision, target_in_words

BEGIN_WITHIN: Final = timedelta(seconds=60)  # of a plan that needs nobody: older news is not acted on
_MESSAGE_LIMIT: Final = 1000

AnyDecision = Decision | GroupDecision
D = TypeVar("D", Decision, GroupDecision)


def news(
    decision: D, plans: Sequence[Plan], policy: PlannerPolicySpec, layout: tuple[int, ...], now: datetime
) -> D | None:
    """What of a decision is written down as a plan; None: nothing. ``layout``: as it is now, like ``Plan.spec.target``.

    Without the change of pools where somebody else sets replicas, and while a layout that was not reached is not tried
    again.
    """
    if decision.changes_pools and (policy.mode is Mode.EXTERNAL or _too_soon(plans, decision.target, policy, now)):
        decision = decision.without_change(layout)
    # Nobody scales prefill, decode or instances to none; encode workers may be none.
    return decision if min(decision.target[:2]) >= 1 and _is_news(decision, plans, policy, layout) else None


def _is_news(decision: AnyDecision, plans: Iterable[Plan], policy: PlannerPolicySpec, layout: tuple[int, ...]) -> bool:
    """Whether a plan is withdrawn, or the layout changes to another one than that of the newest plan.

    (In Shadow nothing is carried out, so the same decision comes again every tick. Elsewhere it comes again where a
    plan did not bring its layout, or somebody undid it.)
    """
    if decision.withdraws or not decision.changes_pools:
        return decision.withdraws
    # Plans that do neither are of an earlier planner, which wrote plans for routing numbers alone.
    written = [plan for plan in plans if plan.spec.changes_layout or plan.spec.withdraws]
    newest = max(written, key=_sequence, default=None)
    if newest is None or not newest.spec.changes_layout:
        return True
    another = newest.spec.target != decision.target or _tried(newest)
    return another or (awaits_approval(newest) and not needs_approval(decision, policy, layout))


def _too_soon(plans: Iterable[Plan], layout: tuple[int, ...], policy: PlannerPolicySpec, now: datetime) -> bool:
    """Whether a plan for this layout must wait after those that ended and did not bring it to stay.

    ``plan_retry_s`` after the last, doubled for each one before since another layout was reached, up to 20 times as
    long; what a person denied, after as long as a person is given to approve it.
    """
    layouts = sorted((plan for plan in plans if plan.spec.changes_layout), key=_sequence, reverse=True)
    tried: list[Plan] = []
    for number, plan in enumerate(layouts):
        phase, same = plan.status.phase, plan.spec.target == layout
        if phase is PlanPhase.SHADOW or (phase is PlanPhase.COMPLETED and not same):
            break
        overtaken = phase is PlanPhase.SUPERSEDED and number > 0  # by a plan that is there, not by bad luck
        if same and _tried(plan) and not overtaken:
            tried.append(plan)
    if not tried:
        return False
    last, retry_s = tried[0], SHIPPED.plan_retry_s
    doubled_s = retry_s * min(2.0 ** (len(tried) - 1), 20.0)
    wait_s = policy.approvals.expire_after_seconds if last.status.phase is PlanPhase.DENIED else doubled_s
    passed_s = (now - (last.status.ended_at or last.spec.observed_at)).total_seconds()
    return -retry_s <= passed_s < wait_s  # an end far ahead is a wall clock that was set back: it is not waited for


def asked_of_a_person(plans: Sequence[Plan]) -> Plan | None:
    """The newest plan that changes the layout, if it awaits approval and was not withdrawn.

    Also where its change needs no approval any more, by an edit of the policy or by the layout of now: until it ends, a
    person can still approve it.
    """
    newest = max((plan for plan in plans if plan.spec.changes_layout), key=_sequence, default=None)
    if newest is None or any(plan.spec.withdraws == newest.metadata.name for plan in plans):
        return None
    return newest if awaits_approval(newest) else None


def awaits_approval(plan: Plan) -> bool:
    """Whether a person is asked and has not answered."""
    asked = plan.spec.mode is not Mode.SHADOW and plan.spec.approval.required and plan.spec.approval.decision is None
    return asked and plan.status.phase in (None, PlanPhase.AWAITING_APPROVAL)


def to_be_carried_out(plan: Plan) -> bool:
    """Whether the operator executes a plan that changes the layout, or will without an approval."""
    is_recorded = plan.spec.mode is Mode.SHADOW or not plan.spec.changes_layout
    return not (is_recorded or _ended(plan) or awaits_approval(plan))


def _ended(plan: Plan) -> bool:
    return plan.status.phase is not None and plan.status.phase.ended


def _tried(plan: Plan) -> bool:
    """Whether it ended, and was not only recorded: the same decision after it is another attempt."""
    return _ended(plan) and plan.status.phase is not PlanPhase.SHADOW


def _sequence(plan: Plan) -> int:
    return plan.spec.sequence


def plan_name(service: str, sequence: int) -> str:
    """``<service>-<sequence>``, so that names sort as they were made, for ever.

    Of more than five digits a letter in front says how many: chat-99999 is followed by chat-a100000, and chat-a999999
    by chat-b1000000. Letters sort after digits.
    """
    digits = f"{sequence:05}"
    return f"{service}-{digits}" if len(digits) == 5 else f"{service}-{chr(ord('a') + len(digits) - 6)}{digits}"


def next_sequence(plans: Iterable[Plan], remembered: int) -> int:
    """One above every plan there is and every one that was, so that a number is never used twice."""
    return max([remembered, *(plan.spec.sequence for plan in plans)]) + 1


def needs_approval(change: AnyDecision | PlanSpec, policy: PlannerPolicySpec, now: tuple[int, ...]) -> bool:
    """Whether a person must approve: the mode says so for every switch and scale, or the policy for this action."""
    if not (change.changes_layout if isinstance(change, PlanSpec) else change.changes_pools):
        return False
    actions, more = policy.actions, [after - before for after, before in zip(change.target, now, strict=False)]
    for switch in change.switches:  # what is left is started or removed, also one in the place of another
        target = switch.to_role if isinstance(switch, PlanSwitch) else switch.target
        moved = switch.count if target is Role.PREFILL else -switch.count
        more[0], more[1] = more[0] - moved, more[1] + moved
    return (
        policy.mode is Mode.APPROVE
        or bool(change.switches and actions.role_switch.needs_approval)
        or (max(more) > 0 and actions.scale_out.needs_approval)
        or (min(more) < 0 and actions.scale_in.needs_approval)
    )


def plan_manifest(
    *,
    namespace: str,
    owner: Mapping[str, Any],
    sequence: int,
    decision: AnyDecision,
    policy: PlannerPolicySpec,
    layout: tuple[int, ...],
    now: datetime,
    awaiting: str = "",
    encode_gpus: int = 1,
) -> dict[str, Any]:
    """The Plan of a decision. ``owner``: the owner reference of its service or elastic group; ``layout``: as it is now;
    ``awaiting``: the plan that awaits approval; ``encode_gpus``: of one encode worker."""
    kind, name, approval = owner["kind"], owner["name"], needs_approval(decision, policy, layout)
    patience = timedelta(seconds=policy.approvals.expire_after_seconds) if approval else BEGIN_WITHIN
    targets = {pool: {"replicas": replicas} for pool, replicas in _by_pool(decision.target).items()}
    return {
        "apiVersion": API_VERSION,
        "kind": "Plan",
        "metadata": {
            "name": plan_name(name, sequence),
            "namespace": namespace,
            "labels": {SERVICE_LABEL: name},
            "ownerReferences": [dict(owner)],
        },
        "spec": {
            "serviceRef": {"kind": kind, "name": name},
            "sequence": sequence,
            "mode": policy.mode.value,
            "observedAt": _stamp(now),
            **({"pools": targets} if isinstance(decision, Decision) else targets),
            "switches": [{"from": s.source.value, "to": s.target.value, "count": s.count} for s in decision.switches],
            "changesLayout": decision.changes_pools,
            "withdraws": awaiting if decision.withdraws else "",
            **_shown(decision, layout, awaiting, encode_gpus),
            "reason": decision.reason.value,
            "message": decision.message[:_MESSAGE_LIMIT],
            "inputs": [{"name": name, "value": value} for name, value in decision.inputs[:MAX_INPUTS]],
            "alternatives": [
                {
                    "action": a.action,
                    **_by_pool((*a.target, *decision.target[2:])),
                    "gpus": a.gpus,
                    "expectedAttainment": min(max(a.expected_attainment, 0.0), 1.0),
                    "leadSeconds": a.lead_s,
                    "rejectedBecause": a.rejected_because,
                }
                for a in decision.alternatives[:MAX_ALTERNATIVES]
            ],
            "expiresAt": _stamp(now + patience),
            "approval": {"required": approval},
        },
    }


def _shown(decision: AnyDecision, layout: tuple[int, ...], awaiting: str, encode_gpus: int) -> dict[str, Any]:
    """What kubectl shows of a plan: the change, GPUs after it, attainment without it and with it."""
    chosen = next((a for a in decision.alternatives if not a.rejected_because), None)
    gpus = {} if chosen is None else {"gpus": chosen.gpus + encode_gpus * sum(decision.target[2:])}
    if decision.withdraws:
        return {"change": text.withdraws(awaiting), **gpus}
    before = next((a for a in decision.alternatives if a.target == layout[:2]), None)
    shares = [None if a is None else a.expected_attainment for a in (before, chosen)]
    change = text.change(_in_words(layout), _in_words(decision.target))
    return {"change": change, **gpus, "attainment": text.attainment(*shares)}


def _by_pool(target: tuple[int, ...]) -> dict[str, int]:
    """The fields of replicas by their names, or of an elastic group its instances."""
    fields = ("instances",) if len(target) == 1 else ("prefill", "decode", "encode")
    return dict(zip(fields, target, strict=False))


def _in_words(target: tuple[int, ...]) -> str:
    """For example 1P2D, 1E1P2D, or 4 for instances."""
    return str(target[0]) if len(target) == 1 else target_in_words(target)


def outdated(plans: Iterable[Plan], kept: int) -> list[Plan]:
    """Ended plans beyond the ``kept`` newest, the oldest first."""
    ended = sorted(filter(_ended, plans), key=_sequence)
    return ended[: max(0, len(ended) - kept)]


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
