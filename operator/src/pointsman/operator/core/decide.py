"""From a snapshot to an ordered, bounded list of actions. This is the whole of what the operator decides."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Protocol

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.operator.core.actions import (
    Action,
    AddFinalizer,
    CreateWorker,
    DeletePool,
    DeleteWorker,
    PatchPod,
    merge_pool_writes,
    write_pool,
)
from pointsman.operator.core.deletion import deletion_actions
from pointsman.operator.core.desired import budgeted_gpus, must_copy, pool_target, room_in_budget
from pointsman.operator.core.drain import begin_at_once, choose_returners, choose_victims, drain_step
from pointsman.operator.core.ledger import ChangeKind, PoolChange
from pointsman.operator.core.messages import reasons as text
from pointsman.operator.core.naming import free_worker_names
from pointsman.operator.core.plans import ownership_actions, pending_workers, plan_actions, reported
from pointsman.operator.core.pod_changes import begin_drain, cancel_drain
from pointsman.operator.core.readiness import readiness_actions
from pointsman.operator.core.roles import role_actions
from pointsman.operator.core.snapshot import FINISHED_KEPT_S, DrainReason, DrainScore, Snapshot, Worker
from pointsman.operator.core.switching import ending_actions, old_switches, paused_actions, switch_actions
from pointsman.operator.core.unschedulable import given_up_at_s

DRAIN_POLL_S: Final = 0.5
SWITCH_POLL_S: Final = 0.1  # a switch is a matter of seconds, so its steps must not wait for each other
START_POLL_S: Final = 1.0
MAX_ACTIONS: Final = 64  # of one pass: a pass stays short, and the next begins from a fresh look


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``actions`` in order; ``truncated``: there was more to do than one pass may, so look again at once."""

    actions: tuple[Action, ...]
    truncated: bool = False


class WorkerRenderer(Protocol):
    """An engine adapter bound to one service: a worker's name and role to its pod."""

    def revision(self, role: Role) -> str: ...

    def __call__(self, name: str, role: Role) -> Mapping[str, Any]: ...


def decide(snapshot: Snapshot, render: WorkerRenderer | None) -> Decision:
    """What to do now. ``render`` None: the spec is refused, so nothing is made, but what lives is still cared for.

    Order: the finalizer before the first side effect; replicas; what leaves before what comes, so that no budget is
    ever exceeded on the way.
    """
    if snapshot.service.deleting_since_s is not None:
        return _bounded(chain(merge_pool_writes(ending_actions(snapshot)), deletion_actions(snapshot)))
    if snapshot.service.spec.paused:
        return _bounded(merge_pool_writes(paused_actions(snapshot)))
    return _bounded(_actions(snapshot, render))


def _bounded(actions: Iterator[Action]) -> Decision:
    taken = tuple(islice(actions, MAX_ACTIONS + 1))
    return Decision(actions=taken[:MAX_ACTIONS], truncated=len(taken) > MAX_ACTIONS)


def _replica_actions(snapshot: Snapshot) -> Iterator[Action]:
    """Whose the replicas are, plans and switches."""
    service = snapshot.service
    for role, pool in snapshot.pools.items():
        if must_copy(snapshot, role, pool):
            replicas = service.spec.pools.of(role).replicas
            change = PoolChange(kind=ChangeKind.COPY, replicas=replicas, why=text.replicas_edited(role))
            yield write_pool(role, pool.resource_version, change)
    yield from ownership_actions(snapshot)
    planned = tuple(plan_actions(snapshot))
    yield from planned
    yield from switch_actions(reported(snapshot, planned))  # a plan that ends in this pass begins no switch in it


def _actions(snapshot: Snapshot, render: WorkerRenderer | None) -> Iterator[Action]:
    service = snapshot.service
    if not service.has_finalizer:
        yield AddFinalizer(why=text.finalizer_needed())
        return
    yield from merge_pool_writes(_replica_actions(snapshot))
    on_roles = list(role_actions(snapshot))
    yield from on_roles
    made_routable = {action.uid for action in on_roles if isinstance(action, PatchPod) and action.adds_to_routing}
    yield from readiness_actions(snapshot, made_routable)
    taken = {worker.name for worker in snapshot.workers} | snapshot.taken_names
    room = room_in_budget(snapshot)
    gpus = {role: budgeted_gpus(service.spec, role) for role in snapshot.roles}
    short = {role: gpus[role] * _short_of_minimum(snapshot, role) for role in snapshot.roles}
    for role in snapshot.roles:
        del short[role]  # what is left in it is kept free for the roles that come after
        for action in _pool_actions(snapshot, role, render, taken, (room - sum(short.values())) // gpus[role]):
            room -= gpus[role] if isinstance(action, CreateWorker) else 0
            yield action
    yield from _removed_pools(snapshot)
    yield from old_switches(snapshot)


def _removed_pools(snapshot: Snapshot) -> Iterator[Action]:
    """Pools of roles that are not in the spec any more, once their last worker is gone."""
    for role in snapshot.pools:
        if role not in snapshot.service.spec.roles and all(worker.role is not role for worker in snapshot.workers):
            yield DeletePool(role=role, why=text.role_removed(role))


def _short_of_minimum(snapshot: Snapshot, role: Role) -> int:
    """How many workers a pool lacks of its minReplicas: no other pool may take their place in the budget."""
    if role not in snapshot.service.spec.roles:
        return 0
    active = sum(worker.active for worker in snapshot.counted(role))
    return max(0, snapshot.service.spec.pools.of(role).min_replicas - active)


def _pool_actions(
    snapshot: Snapshot, role: Role, render: WorkerRenderer | None, taken: set[str], room: int
) -> Iterator[Action]:
    target = pool_target(snapshot, role)
    workers = snapshot.counted(role)
    for worker in workers:
        if worker.finished and not worker.draining and not worker.stays_finished(snapshot.now_s):
            yield DeleteWorker(worker=worker.name, uid=worker.uid, why=text.pod_ended(worker.phase))
    leaving = [worker for worker in workers if worker.draining]
    active = [worker for worker in workers if worker.active]
    missing = target.replicas - len(active) - sum(worker.stays_finished(snapshot.now_s) for worker in workers)
    returning = choose_returners(leaving, max(0, missing))
    for worker in returning:
        why = text.pool_size(role, len(active), target.replicas)
        yield cancel_drain(worker, why)
    for worker in leaving:
        if worker not in returning:
            action = drain_step(worker, snapshot)
            if action is not None:
                yield action
    victims = choose_victims(active, max(0, -missing), render.revision(role) if render else "")
    for worker in begin_at_once(victims, len(active), snapshot):
        score = DrainScore.of(worker.state)
        yield begin_drain(
            worker, DrainReason.SCALE_DOWN, snapshot.now_s, text.pool_size(role, len(active), target.replicas), score
        )
    if render is not None:
        new = max(0, min(missing - len(returning), target.limit - len(active) - len(leaving), room))
        for name in islice(free_worker_names(snapshot.service.name, render.revision(role), frozenset(taken)), new):
            taken.add(name)
            yield CreateWorker(
                name=name,
                role=role,
                manifest=render(name, role),
                why=text.pool_size(role, len(active), target.replicas),
            )


def workers_to_ask(snapshot: Snapshot) -> tuple[Worker, ...]:
    """Whose state the next decision needs: those on their way in or out, all of a pool that must shrink, those whose
    last poll raised a doubt, and prefill workers that have not reported the token budget that is in force."""
    asked: list[Worker] = []
    shrinking = {
        role
        for role in snapshot.roles
        if sum(worker.active for worker in snapshot.counted(role)) > pool_target(snapshot, role).replicas
    } | {switch.source for switch in snapshot.switches if not switch.ended and snapshot.claimed_by(switch.uid) is None}
    running = {claim.uid for claim in snapshot.running_claims()}
    for worker in snapshot.workers:
        if worker.terminating or not worker.container.running or worker.pod_ip is None:
            continue
        on_its_way_in = worker.active and worker.pod_ready and not (worker.is_verified and worker.routable_label)
        has_switch_claim = worker.claim is not None and worker.claim.uid in running
        budget_unconfirmed = (
            worker.role is Role.PREFILL and worker.ready and worker.confirmed_budget != snapshot.prefill_token_budget
        )
        shrinks = worker.role in shrinking and worker.ready
        if has_switch_claim or worker.draining or worker.suspect or on_its_way_in or shrinks or budget_unconfirmed:
            asked.append(worker)
    return tuple(asked)


def gateways_must_report(snapshot: Snapshot) -> bool:
    """A drain needs to know what the gateways use."""
    leaving = any(worker.draining and not worker.terminating for worker in snapshot.workers)
    return leaving or bool(snapshot.running_claims())


def next_look_s(snapshot: Snapshot) -> float | None:
    """In how many seconds to look again though nothing changes by itself in the cluster; None: a change will tell.

    What happens inside workers (an engine that loads, streams that end) is seen only by asking.
    """
    if snapshot.service.spec.paused and snapshot.service.deleting_since_s is None:
        return None  # nothing is done, whatever is under way
    waits = [
        max(0.0, worker.created_s + FINISHED_KEPT_S - snapshot.now_s)
        for worker in snapshot.workers
        if worker.stays_finished(snapshot.now_s) and not worker.terminating
    ]
    waits += [
        worker.lost_at_s - snapshot.now_s
        for worker in snapshot.workers
        if worker.lost_at_s is not None and worker.holds_gpus(snapshot.now_s)
    ]
    if snapshot.running_claims():
        waits.append(SWITCH_POLL_S)
    elif any(worker.draining and not worker.terminating for worker in snapshot.workers):
        waits.append(DRAIN_POLL_S)
    elif any(not switch.ended for switch in snapshot.switches):
        waits.append(START_POLL_S)  # one that waits to begin
    elif workers_to_ask(snapshot):
        waits.append(START_POLL_S)
    service = snapshot.service
    for plan in snapshot.plans:
        if not plan.ended and plan.status.phase is not PlanPhase.EXECUTING:
            waits.append(max(0.0, plan.spec.expires_at.timestamp() - snapshot.now_s))
    if snapshot.policy is not None:
        deadlines = (given_up_at_s(worker, snapshot.policy) for worker in pending_workers(snapshot))
        waits += [at_s - snapshot.now_s for at_s in deadlines if at_s > snapshot.now_s]
    if service.deleting_since_s is not None and service.has_finalizer:
        waits.append(max(0.0, service.deleting_since_s + service.spec.drain.timeout_seconds - snapshot.now_s))
    return min(waits, default=None)
