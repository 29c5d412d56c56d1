"""Execution of Plans: routing at once, then switches, then replicas.

What was done stands on the objects: switches have the plan's name and a number, pools carry the plan's uid beside the
replicas it wrote. A restarted operator sees the same marks and goes on; nothing is done twice.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pointsman.api.protocol.names import ROUTING_SET_BY_PLANNER, Role
from pointsman.api.v1alpha1.llmservice import MAX_REPLICAS
from pointsman.api.v1alpha1.plan import PlanPhase, PlanReason, PlanRouting
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.operator.core.actions import (
    Action,
    SetPlanStatus,
    SetRouting,
    write_pool,
)
from pointsman.operator.core.desired import EXECUTED_MODES
from pointsman.operator.core.ledger import ChangeKind, Owner, PoolChange
from pointsman.operator.core.messages import plans as text
from pointsman.operator.core.messages import reasons
from pointsman.operator.core.plan_limits import refusal, wanted_switches
from pointsman.operator.core.report import report_plan
from pointsman.operator.core.snapshot import Plan, Policy, Pool, Snapshot, Worker
from pointsman.operator.core.unschedulable import given_up_at_s, pending_of_plan


def plan_actions(snapshot: Snapshot) -> Iterator[Action]:
    """The next step of the service's plans. The newest plan that changes the layout supersedes older ones."""
    layout, old_layouts = newest_of(plan for plan in snapshot.plans if plan.spec.changes_layout)
    routing, old_routings = newest_of(plan for plan in snapshot.plans if not plan.spec.changes_layout)
    for older, newer in (*old_layouts, *old_routings):
        message = text.newer(newer.name)
        yield from report_plan(older, snapshot.now_s, PlanPhase.SUPERSEDED, PlanReason.NEWER_PLAN, message)
    if routing is not None:
        yield from _route(routing, snapshot)
    if layout is not None:
        yield from _carry_out(layout, snapshot)


def reported(snapshot: Snapshot, actions: Iterable[Action]) -> Snapshot:
    """``snapshot`` with the statuses of plans that ``actions`` write."""
    statuses = {action.uid: action.status for action in actions if isinstance(action, SetPlanStatus)}
    plans = (replace(plan, status=statuses.get(plan.uid, plan.status)) for plan in snapshot.plans)
    return replace(snapshot, plans=tuple(plans)) if statuses else snapshot


def newest_of(plans: Iterable[Plan]) -> tuple[Plan | None, list[tuple[Plan, Plan]]]:
    """(the newest plan that has not ended, the older ones each beside it)."""
    ordered = sorted((plan for plan in plans if not plan.ended), key=lambda plan: plan.spec.sequence)
    return (ordered[-1], [(plan, ordered[-1]) for plan in ordered[:-1]]) if ordered else (None, [])


def executes(policy: Policy | None) -> bool:
    """Whether plans, not people, write replicas under this policy."""
    return policy is not None and policy.mode in EXECUTED_MODES


def owns_replicas(snapshot: Snapshot) -> bool:
    """Whether plans, not people, write the replicas of the service's pools."""
    return executes(snapshot.policy)


def ownership_actions(snapshot: Snapshot) -> Iterator[Action]:
    """Mark whose the replicas are, and put back what others wrote into pools that plans own."""
    owns = owns_replicas(snapshot)
    external = snapshot.policy is not None and snapshot.policy.mode is Mode.EXTERNAL
    for role, pool in snapshot.pools.items():
        version = pool.resource_version
        if owns and pool.owned_replicas is None:
            why = reasons.plans_own_replicas()
            yield write_pool(role, version, PoolChange(kind=ChangeKind.OWN, owner=Owner.PLANS, why=why))
        elif external and not pool.external:
            why = reasons.others_own_replicas()
            yield write_pool(role, version, PoolChange(kind=ChangeKind.OWN, owner=Owner.OTHERS, why=why))
        elif not owns and not external and (pool.owned_replicas is not None or pool.external):
            number = snapshot.service.spec.pools.of(role).replicas if role in snapshot.service.spec.roles else None
            why = reasons.spec_owns_replicas(role)
            yield write_pool(role, version, PoolChange(kind=ChangeKind.OWN, owner=Owner.SPEC, replicas=number, why=why))
        elif owns and pool.owned_replicas is not None and pool.owned_replicas != pool.replicas:
            why = reasons.written_by_others(pool.replicas)
            restore = PoolChange(kind=ChangeKind.RESTORE, replicas=pool.owned_replicas, why=why)
            yield write_pool(role, version, restore)


def _route(plan: Plan, snapshot: Snapshot) -> Iterator[Action]:
    """A routing-only plan: numbers, at once, without approval, also where somebody else owns the replicas."""
    if snapshot.policy is None or Mode.SHADOW in (snapshot.policy.mode, plan.spec.mode):
        yield from report_plan(plan, snapshot.now_s, *_not_executed(plan, snapshot.policy))
        return
    yield from _set_routing(plan, snapshot)
    done = _routing_text(plan.spec.routing) if plan.spec.routing is not None else ""
    yield from report_plan(plan, snapshot.now_s, PlanPhase.COMPLETED, PlanReason.DONE, done)


Held = tuple[PlanPhase, PlanReason, str]
"""What is said of a plan that is not carried out now."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What decides whether a plan may be carried out now. ``refusal``: what speaks against it, as a sentence."""

    plans: Iterable[Plan]
    policy: Policy | None
    refusal: str | None
    namespace: str
    now_s: float


def gate(plan: Plan, at: Gate) -> Held | None:
    """Why the plan is not carried out now; None: it is. Looked at before every step, since policies change."""
    began = plan.status.phase is PlanPhase.EXECUTING
    if not executes(at.policy) or plan.spec.mode is Mode.SHADOW:
        return _not_executed(plan, at.policy)
    if plan.spec.approval.decision == "Denied" and not began:
        return PlanPhase.DENIED, PlanReason.DENIED, text.denied(plan.spec.approval.by)
    unanswered = plan.spec.approval.required and plan.spec.approval.decision is None
    withdrawal = next((other for other in at.plans if other.spec.withdraws == plan.name), None)
    if withdrawal is not None and unanswered and not began:
        message = text.withdrawn(withdrawal.name, withdrawal.spec.message)
        return PlanPhase.SUPERSEDED, PlanReason.WITHDRAWN, message
    if not began and at.now_s >= plan.spec.expires_at.timestamp():
        message = text.expired(plan.spec.approval.required, plan.spec.expires_at)
        return PlanPhase.EXPIRED, PlanReason.EXPIRED, message
    if unanswered:
        message = text.awaiting_approval(plan.name, at.namespace)
        return PlanPhase.AWAITING_APPROVAL, PlanReason.AWAITING_APPROVAL, message
    if at.refusal is not None:
        return PlanPhase.FAILED, PlanReason.NOT_ALLOWED, at.refusal
    return None


def _carry_out(plan: Plan, snapshot: Snapshot) -> Iterator[Action]:
    refused = refusal(plan, snapshot)
    gated = gate(plan, Gate(snapshot.plans, snapshot.policy, refused, snapshot.service.namespace, snapshot.now_s))
    if gated is not None:
        yield from report_plan(plan, snapshot.now_s, *gated)
        return
    yield from _set_routing(plan, snapshot)
    switches = {switch.name: switch for switch in snapshot.switches}
    wanted = list(wanted_switches(plan))
    missing = [step for step in wanted if step.name not in switches]
    lost = [step.name for step in missing if step.name in plan.status.switches]
    if lost:
        message = text.switch_deleted(lost[0])
        yield from report_plan(plan, snapshot.now_s, PlanPhase.FAILED, PlanReason.SWITCH_FAILED, message)
        return
    yield from missing
    there = tuple(step.name for step in wanted if step.name in switches)
    if missing or any(not switches[name].ended for name in there):
        message = text.switching(len(wanted))
        yield from report_plan(plan, snapshot.now_s, PlanPhase.EXECUTING, PlanReason.SWITCHING, message, there)
        return
    failed = [switches[name] for name in there if switches[name].status.phase is not SwitchPhase.COMPLETED]
    if failed:
        # Nothing is scaled to make up for it: the next plan decides on what there is then.
        first = failed[0]
        message = text.switch_failed(first.name, str(first.status.phase), first.status.message or "")
        yield from report_plan(plan, snapshot.now_s, PlanPhase.FAILED, PlanReason.SWITCH_FAILED, message, there)
        return
    running = [
        switch.name
        for switch in snapshot.switches
        if not switch.ended and (snapshot.claimed_by(switch.uid) or snapshot.plan_of(switch))
    ]
    if running:
        # Of an older plan or by hand: its ±1 is still to come, so numbers written now would be wrong afterwards.
        message = text.waits_for_switch(running[0])
        yield from report_plan(plan, snapshot.now_s, PlanPhase.EXECUTING, PlanReason.SWITCHING, message, there)
        return
    yield from _scale(plan, snapshot, there)


def _scale(plan: Plan, snapshot: Snapshot, switches: tuple[str, ...]) -> Iterator[Action]:
    pools = {role: pool for role, pool in snapshot.pools.items() if role in plan.spec.roles}
    absent = [role.label for role in plan.spec.roles if role not in pools]
    if absent:
        message = text.waits_for_pool(absent[0])
        yield from report_plan(plan, snapshot.now_s, PlanPhase.EXECUTING, PlanReason.SCALING, message, switches)
        return
    unwritten = [
        (role, pool)
        for role, pool in pools.items()
        if pool.set_by != plan.uid and pool.replicas != plan.spec.replicas(role)
    ]
    for role, pool in unwritten:
        wanted = plan.spec.replicas(role)
        change = PoolChange(
            kind=ChangeKind.SET,
            replicas=wanted,
            before=pool.replicas,
            uid=plan.uid,
            why=text.scales_pool(plan.name, pool.replicas, wanted),
        )
        yield write_pool(role, pool.resource_version, change)
    have = {role: sum(worker.serves for worker in snapshot.counted(role)) for role in pools}
    want = {role: pool.replicas for role, pool in pools.items()}  # what a person's switch moved since counts
    words = text.progress({role: (have[role], want[role]) for role in want})
    if unwritten:
        yield from report_plan(plan, snapshot.now_s, PlanPhase.EXECUTING, PlanReason.SCALING, words, switches)
        return
    pending = {role: _pending(plan, role, pool, snapshot) for role, pool in pools.items()}
    stuck = {role: _stuck(pending[role], snapshot) for role in pools}
    if any(stuck.values()):
        yield from _give_up(plan, snapshot, stuck, words, switches)
        return
    # Workers that found no node before the plan are not its business: it is done without them.
    others = {
        role: [w for w in snapshot.counted(role) if w.active and w.unschedulable and w not in pending[role]]
        for role in pools
    }
    done = all(have[role] <= want[role] <= have[role] + len(others[role]) for role in pools)
    waiting = [worker.name for role in pools for worker in others[role]]
    words = text.pending_before(words, waiting[0]) if done and waiting else words
    phase, reason = (PlanPhase.COMPLETED, PlanReason.DONE) if done else (PlanPhase.EXECUTING, PlanReason.SCALING)
    yield from report_plan(plan, snapshot.now_s, phase, reason, words, switches)


def _pending(plan: Plan, role: Role, pool: Pool, snapshot: Snapshot) -> list[Worker]:
    """Workers of a pool that the plan added and that have no node yet."""
    if pool.set_by != plan.uid:
        return []
    added = MAX_REPLICAS if pool.before_plan is None else plan.spec.replicas(role) - pool.before_plan
    return pending_of_plan(snapshot.counted(role), plan.status.started_at, added)


def _stuck(pending: Iterable[Worker], snapshot: Snapshot) -> list[Worker]:
    policy = snapshot.policy
    return [w for w in pending if policy is not None and snapshot.now_s >= given_up_at_s(w, policy)]


def _give_up(
    plan: Plan, snapshot: Snapshot, stuck: Mapping[Role, list[Worker]], words: str, switches: tuple[str, ...]
) -> Iterator[Action]:
    for role, workers in stuck.items():
        pool = snapshot.pools[role]
        least = pool.before_plan if pool.before_plan is not None else snapshot.service.spec.pools.of(role).min_replicas
        if workers and pool.replicas > least:
            change = PoolChange(
                kind=ChangeKind.SET,
                replicas=max(least, pool.replicas - len(workers)),
                uid=plan.uid,
                why=text.no_node(plan.name, len(workers), f"{role.label} worker"),
            )
            yield write_pool(role, pool.resource_version, change)
    first = next(worker for workers in stuck.values() for worker in workers)
    message = text.given_up(words, first.name, first.unschedulable)
    yield from report_plan(plan, snapshot.now_s, PlanPhase.FAILED, PlanReason.UNSCHEDULABLE, message, switches)


def pending_workers(snapshot: Snapshot) -> list[Worker]:
    """The workers without a node of the plan that is carried out now: it gives them up some time."""
    plan, _ = newest_of(plan for plan in snapshot.plans if plan.spec.changes_layout)
    if plan is None or plan.status.phase is not PlanPhase.EXECUTING or not owns_replicas(snapshot):
        return []
    pools = {role: pool for role, pool in snapshot.pools.items() if role in plan.spec.roles}
    return [worker for role, pool in pools.items() for worker in _pending(plan, role, pool, snapshot)]


def _not_executed(plan: Plan, policy: Policy | None) -> Held:
    if plan.spec.mode is Mode.SHADOW:  # even if the policy has another mode by now: no user allowed this plan
        return PlanPhase.SHADOW, PlanReason.RECORDED, text.shadow()
    return PlanPhase.FAILED, PlanReason.NOT_ALLOWED, text.not_executed(policy.mode if policy is not None else None)


def _set_routing(plan: Plan, snapshot: Snapshot) -> Iterator[Action]:
    """The numbers of a plan of an earlier planner, unless a planner that publishes them has done so since."""
    published_at = snapshot.routing_updated_at if snapshot.routing_set_by == ROUTING_SET_BY_PLANNER else None
    if published_at is not None and published_at >= plan.spec.observed_at:
        return
    mark = f"plan/{plan.name}"
    newer = (other for other in snapshot.plans if other.spec.sequence > plan.spec.sequence)
    overtaken = any(
        other.status.phase in (PlanPhase.EXECUTING, PlanPhase.COMPLETED)
        or snapshot.routing_set_by == f"plan/{other.name}"
        for other in newer
    )
    if plan.spec.routing is not None and snapshot.routing_set_by != mark and not overtaken:
        yield SetRouting(routing=plan.spec.routing, set_by=mark, why=_routing_text(plan.spec.routing))


def _routing_text(routing: PlanRouting) -> str:
    return text.routing(
        routing.max_local_prefill_tokens,
        routing.pending_tokens_per_prefill_worker,
        routing.decoding_per_decode_worker,
    )
