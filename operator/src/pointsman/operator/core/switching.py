"""Role switches: the state machine of a RoleSwitch, derived anew from what is seen at every look.

What is true stands on the pod: an annotation names the switch that holds it, its label says which role it has. A
worker that is held counts in no pool until each pool has taken its ±1 together with the switch's uid (one write each,
so a repeat is a no-op). A restarted operator sees the same marks and goes on; the status only reports.

The way of a worker: held and not routable → gateways let go → idle (``drainFirst``) → relabelled → given its role →
verified → routable → replica moved → released. ``roles.py`` walks the middle part as for any other worker.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.roleswitch import (
    ENCODE_IS_FIXED,
    PhaseTime,
    RoleSwitchStatus,
    SwitchPhase,
    SwitchReason,
)
from pointsman.operator.core.actions import (
    Action,
    AskDrain,
    DeleteSwitch,
    DeleteWorker,
    SetSwitchStatus,
    write_pool,
)
from pointsman.operator.core.desired import pool_target
from pointsman.operator.core.drain import users_of
from pointsman.operator.core.kv_groups import lacks_decode_peer
from pointsman.operator.core.ledger import ChangeKind, PoolChange
from pointsman.operator.core.messages import switches as text
from pointsman.operator.core.pod_changes import begin_drain, claim_worker, relabel, release, remove_from_routing
from pointsman.operator.core.report import report_switch
from pointsman.operator.core.snapshot import DrainReason, Snapshot, Switch, SwitchClaim, Worker

ROLE_TIMEOUT_S: Final = 30.0  # to take a role, be verified in it and become routable
VERIFICATION_PATIENCE_S: Final = 10.0  # of that, while the verification of its old role fails: it is repeated
ROUTABLE_PATIENCE_S: Final = 10.0  # for a second routable worker of the role, before a switch is refused
KEPT_SWITCHES: Final = 50  # ended ones of a service that people created; those of a plan are deleted with their plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Why a switch cannot begin. ``final``: it never can; otherwise it waits."""

    reason: SwitchReason
    message: str
    final: bool = True


def switch_actions(snapshot: Snapshot) -> Iterator[Action]:
    """The next step of every switch of the service, oldest first. At most one begins in a pass."""
    yield from _orphans(snapshot)
    began = False
    for switch in sorted(snapshot.switches, key=lambda s: (s.created_s, s.name)):
        worker = snapshot.claimed_by(switch.uid)
        if switch.ended:
            if worker is not None:
                yield _after_end(switch, worker, snapshot.now_s)
        elif worker is not None:
            yield from _advance(switch, worker, snapshot)
        elif switch.status.worker_uid is not None or any(switch.uid in p.moved_by for p in snapshot.pools.values()):
            yield from _lost(switch, snapshot)
        elif not began:
            chosen = _choose(switch, snapshot)
            if isinstance(chosen, Worker):
                began = True
                claim = SwitchClaim(uid=switch.uid, source=switch.source, target=switch.target)
                yield claim_worker(chosen, claim, text.claimed(switch.name, switch.source, switch.target))
            else:
                phase = SwitchPhase.FAILED if chosen.final else SwitchPhase.PENDING
                yield from report_switch(switch, snapshot, phase, chosen.reason, chosen.message, None)


def ending_actions(snapshot: Snapshot) -> Iterator[Action]:
    """The service is being deleted: its switches end, and say why."""
    for switch in snapshot.switches:
        if not switch.ended:
            message = text.service_deleted()
            yield from report_switch(switch, snapshot, SwitchPhase.FAILED, SwitchReason.SERVICE_DELETED, message, None)


def paused_actions(snapshot: Snapshot) -> Iterator[Action]:
    """The service is paused: a switch that has not begun says what it waits for. Nothing else is touched."""
    for switch in snapshot.switches:
        if not switch.ended and switch.status.worker_uid is None and snapshot.claimed_by(switch.uid) is None:
            phase, reason = SwitchPhase.PENDING, SwitchReason.SERVICE_PAUSED
            yield from report_switch(switch, snapshot, phase, reason, text.paused(), None)


def old_switches(snapshot: Snapshot) -> Iterator[Action]:
    """Delete switches that people created, except the KEPT_SWITCHES that ended last."""
    ended = [s for s in snapshot.switches if s.ended and not (s.spec.reason or "").startswith("plan/")]
    claimed = {worker.claim.uid for worker in snapshot.workers if worker.claim}

    def age(switch: Switch) -> tuple[float, float, str]:
        ended_s = switch.status.phases[-1].at.timestamp() if switch.status.phases else switch.created_s
        return ended_s, switch.created_s, switch.name

    for switch in sorted(ended, key=age, reverse=True)[KEPT_SWITCHES:]:
        if switch.uid not in claimed:
            yield DeleteSwitch(name=switch.name, uid=switch.uid, why=text.kept(KEPT_SWITCHES))


def no_service(switch: Switch, service: str, now: datetime) -> SetSwitchStatus:
    """The end of a switch for a service that does not exist."""
    message = text.no_service(service)
    phase = SwitchPhase.FAILED
    status = RoleSwitchStatus(
        phase=phase,
        reason=SwitchReason.SERVICE_NOT_FOUND,
        message=message,
        phases=(PhaseTime(phase=phase, at=now),),
        seconds=0.0,
    )
    return SetSwitchStatus(name=switch.name, uid=switch.uid, status=status.ended_with(now), why=message)


def _orphans(snapshot: Snapshot) -> Iterator[Action]:
    """Workers held by a switch that is not there any more, or cannot be read.

    What is half done is finished, else undone; then the worker is released.
    """
    known = {switch.uid for switch in snapshot.switches}
    for worker in snapshot.workers:
        claim = worker.claim
        if claim is None or claim.uid in known or worker.terminating:
            continue
        moved = {role for role, pool in snapshot.pools.items() if claim.uid in pool.moved_by}
        why = text.switch_missing()
        if moved and moved != {claim.source, claim.target}:
            yield from _moves(claim, snapshot, why)
        elif not moved and worker.role is not claim.source:
            yield relabel(worker, claim.source, why)
        else:
            yield release(worker, why)


def _after_end(switch: Switch, worker: Worker, now_s: float) -> Action:
    if switch.status.phase is SwitchPhase.FAILED and not worker.draining:
        # It could serve in neither role: an ordinary drain takes it away, its pool makes another one.
        return begin_drain(worker, DrainReason.UNHEALTHY, now_s, text.replaced(switch.name))
    return release(worker, text.ended(switch.name, str(switch.status.phase)))


def _lost(switch: Switch, snapshot: Snapshot) -> Iterator[Action]:
    """The pod is gone. Its pools make up for it; what was moved stays moved."""
    name = switch.status.worker or "the worker"
    if any(switch.uid in pool.moved_by for pool in snapshot.pools.values()):
        claim = SwitchClaim(uid=switch.uid, source=switch.source, target=switch.target)
        pending = list(_moves(claim, snapshot, text.lost_when_done(switch.name, name)))
        if pending:
            yield from pending
        else:
            message = text.lost_after(name, switch.target)
            yield from report_switch(switch, snapshot, SwitchPhase.COMPLETED, SwitchReason.SWITCHED, message, None)
        return
    message = text.lost_during(name, switch.source)
    yield from report_switch(switch, snapshot, SwitchPhase.FAILED, SwitchReason.WORKER_LOST, message, None)


# --- beginning ---


def _choose(switch: Switch, snapshot: Snapshot) -> Worker | _Refusal:
    """The worker to switch, or why there is none."""
    source, target = switch.source, switch.target
    if Role.ENCODE in (source, target):
        return _Refusal(reason=SwitchReason.ROLE_IS_FIXED, message=ENCODE_IS_FIXED)
    wanted = switch.spec.worker_name
    plan = snapshot.plan_of(switch)
    if plan is not None and plan.ended:
        return _Refusal(reason=SwitchReason.PLAN_ENDED, message=text.plan_ended(plan.name, str(plan.status.phase)))
    bounds_of = snapshot.service.spec.pools.of
    named = next((w for w in snapshot.workers if w.name == wanted and not w.terminating), None)
    if wanted is not None:
        refusal = _refuse_named(wanted, named, source, snapshot)
        if refusal is not None:
            return refusal
    leaving = pool_target(snapshot, source).replicas - 1
    if leaving < bounds_of(source).min_replicas:
        return _Refusal(
            reason=SwitchReason.BELOW_MINIMUM,
            message=text.below_minimum(source, leaving, bounds_of(source).min_replicas),
        )
    coming = pool_target(snapshot, target).replicas + snapshot.coming_by_switch(target) + 1
    if coming > bounds_of(target).max_replicas:
        return _Refusal(
            reason=SwitchReason.ABOVE_MAXIMUM,
            message=text.above_maximum(target, coming, bounds_of(target).max_replicas),
        )
    there = [w for w in snapshot.counted(source) if w.active]
    routable = [w for w in there if w.serves]
    if len(routable) <= 1:
        others = [(w.name, _why_not_routable(w)) for w in there if w not in routable]
        # Another worker may be busy for a moment or just be coming up: that is waited for, but not for long.
        return _Refusal(
            reason=SwitchReason.LAST_ROUTABLE_WORKER,
            message=text.last_routable(source, len(routable), others),
            final=snapshot.waited_s(switch.created_s) >= ROUTABLE_PATIENCE_S,
        )
    candidates = routable if wanted is None else [w for w in routable if w.name == wanted]
    if not candidates:
        message = text.not_ready(wanted or "a worker")
        return _Refusal(reason=SwitchReason.WORKER_NOT_READY, message=message, final=False)
    if target is Role.PREFILL:
        named = candidates[0]
        candidates = [worker for worker in candidates if not lacks_decode_peer(worker, snapshot.workers)]
        if not candidates:
            return _Refusal(reason=SwitchReason.KV_INCOMPATIBLE, message=text.no_kv_peer(named.name))

    def cost(worker: Worker) -> tuple[float, float, str]:
        """Fewest in-flight tokens (unknown is not zero), then the newest."""
        tokens = float(worker.state.in_flight_tokens) if worker.state else float("inf")
        return tokens, -worker.created_s, worker.name

    return min(candidates, key=cost)


def _why_not_routable(worker: Worker) -> str:
    """What keeps a worker of the pool from being routable now, as a predicate."""
    if not worker.container.running:
        return text.not_running()
    if not worker.pod_ready:
        return text.probe_fails()
    if not worker.is_verified:
        return text.role_not_verified(worker.role)
    return text.label_pending()


def _refuse_named(wanted: str, worker: Worker | None, source: Role, snapshot: Snapshot) -> _Refusal | None:
    if worker is None:
        names = sorted(w.name for w in snapshot.counted(source) if w.active)
        return _Refusal(reason=SwitchReason.WORKER_NOT_FOUND, message=text.worker_not_found(wanted, source, names))
    if worker.claim is not None:
        other = next((s.name for s in snapshot.switches if s.uid == worker.claim.uid), worker.claim.uid)
        message = text.claimed_by_other(wanted, other)
        return _Refusal(reason=SwitchReason.WORKER_BUSY, message=message, final=False)
    if worker.role is not source:
        return _Refusal(reason=SwitchReason.WRONG_ROLE, message=text.wrong_role(wanted, worker.role, source))
    if worker.draining:
        return _Refusal(reason=SwitchReason.WORKER_LEAVING, message=text.worker_draining(wanted))
    return None


# --- on the way ---


def _advance(switch: Switch, worker: Worker, snapshot: Snapshot) -> Iterator[Action]:
    if worker.finished:
        why = text.pod_ended(switch.name, worker.phase)
        yield DeleteWorker(worker=worker.name, uid=worker.uid, why=why)
    elif worker.routable_label and worker.role is switch.source and switch.status.phase is not SwitchPhase.ROLLING_BACK:
        why = text.claimed(switch.name, switch.source, switch.target)
        yield remove_from_routing(worker, why)
    elif switch.status.phase is SwitchPhase.ROLLING_BACK:
        yield from _roll_back(switch, worker, snapshot)
    elif worker.role is switch.source:
        yield from _leave_old_role(switch, worker, snapshot)
    else:
        yield from _enter_new_role(switch, worker, snapshot)


def _leave_old_role(switch: Switch, worker: Worker, snapshot: Snapshot) -> Iterator[Action]:
    why = text.claimed(switch.name, switch.source, switch.target)
    moved = relabel(worker, switch.target, why)
    if not switch.spec.drain_first or not worker.container.running:
        yield moved
        return
    began_s = switch.began_s(SwitchPhase.UNROUTING)
    users, state = users_of(worker, snapshot), worker.state
    ready_to_go = state is not None and not users and (state.idle or state.phase is WorkerPhase.FAILED)
    late = began_s is not None and snapshot.waited_s(began_s) >= switch.spec.drain_timeout_seconds
    if late and not ready_to_go:
        yield from report_switch(
            switch,
            snapshot,
            SwitchPhase.ROLLING_BACK,
            SwitchReason.DRAIN_TIMED_OUT,
            text.drain_timed_out(switch.spec.drain_timeout_seconds, state.in_flight if state else None),
            worker,
        )
        return
    if began_s is None or (users and state is not None and state.phase is WorkerPhase.SERVING):
        message = text.waiting_for_gateways()
        yield from report_switch(
            switch, snapshot, SwitchPhase.UNROUTING, SwitchReason.WAITING_FOR_GATEWAYS, message, worker
        )
    elif not ready_to_go:
        message = text.draining(answers=state is not None)
        yield from report_switch(switch, snapshot, SwitchPhase.DRAINING, SwitchReason.DRAINING, message, worker)
    if state is None or worker.busy is not None or worker.control_url is None:
        return
    if state.phase is WorkerPhase.SERVING:
        if not users or state.role is Role.PREFILL:
            yield AskDrain(
                worker=worker.name,
                uid=worker.uid,
                url=worker.control_url,
                reason=DrainReason.ROLE_SWITCH,
                why=text.claimed(switch.name, switch.source, switch.target),
            )
    elif ready_to_go:
        yield moved


def _enter_new_role(switch: Switch, worker: Worker, snapshot: Snapshot) -> Iterator[Action]:
    claim = SwitchClaim(uid=switch.uid, source=switch.source, target=switch.target)
    if worker.serves:
        pending = list(_moves(claim, snapshot, text.done(switch.name)))
        if pending:
            yield from pending
        else:
            message = text.serves(worker.name, switch.target)
            yield from report_switch(switch, snapshot, SwitchPhase.COMPLETED, SwitchReason.SWITCHED, message, worker)
        return
    if any(switch.uid in pool.moved_by for pool in snapshot.pools.values()):
        yield from _moves(claim, snapshot, text.done(switch.name))  # it served once: no way back from here
        return
    began_s = switch.began_s(SwitchPhase.SWITCHING)
    late = began_s is not None and snapshot.waited_s(began_s) >= ROLE_TIMEOUT_S
    if late or worker.verify_error is not None:
        message = worker.verify_error or text.role_timed_out(switch.target, ROLE_TIMEOUT_S)
        reason = SwitchReason.VERIFY_FAILED if worker.verify_error else SwitchReason.ROLE_TIMED_OUT
        yield from report_switch(switch, snapshot, SwitchPhase.ROLLING_BACK, reason, message, worker)
        return
    has_role = worker.state is not None and worker.state.role is switch.target
    phase = SwitchPhase.VERIFYING if has_role and began_s is not None else SwitchPhase.SWITCHING
    reason = SwitchReason.VERIFYING if phase is SwitchPhase.VERIFYING else SwitchReason.TAKING_ROLE
    message = (text.verifying if phase is SwitchPhase.VERIFYING else text.takes_role)(switch.target)
    yield from report_switch(switch, snapshot, phase, reason, message, worker)


def _roll_back(switch: Switch, worker: Worker, snapshot: Snapshot) -> Iterator[Action]:
    if worker.role is not switch.source:
        why = text.rolled_back(switch.name)
        yield relabel(worker, switch.source, why)
        return
    cause = switch.status.message or text.could_not_switch()
    reason = switch.status.reason or SwitchReason.ROLE_TIMED_OUT
    if worker.serves:
        yield from report_switch(switch, snapshot, SwitchPhase.ROLLED_BACK, SwitchReason(reason), cause, worker)
        return
    began_s = switch.began_s(SwitchPhase.ROLLING_BACK)
    patience_s = VERIFICATION_PATIENCE_S if worker.verify_error is not None else ROLE_TIMEOUT_S
    if began_s is not None and snapshot.waited_s(began_s) >= patience_s:
        message = text.rollback_failed(cause, switch.source)
        yield from report_switch(switch, snapshot, SwitchPhase.FAILED, SwitchReason.ROLLBACK_FAILED, message, worker)


# --- the books ---


def _moves(claim: SwitchClaim, snapshot: Snapshot, why: str) -> Iterator[Action]:
    """What is still to be written into the pools: ±1 with the switch's uid, the coming one first."""
    for role, delta in ((claim.target, 1), (claim.source, -1)):
        pool = snapshot.pools.get(role)
        if pool is not None and claim.uid not in pool.moved_by:
            change = PoolChange(
                kind=ChangeKind.MOVE,
                replicas=max(1, pool.replicas + delta),
                delta=delta,
                uid=claim.uid,
                why=text.replica_moved(why, role, delta),
            )
            yield write_pool(role, pool.resource_version, change)
