"""Who leaves first, and when a leaving worker may be deleted.

The steps, each visible on the pod or at the worker, so that a restarted operator goes on where it was:
mark (label ``routable=false`` and the time, one write) → every ready gateway stopped using it → the worker takes
nothing new → nothing in flight, queued or leased → delete. A deadline ends every wait.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil, inf
from typing import Final

from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import Role
from pointsman.operator.core.actions import AskDrain, DeleteWorker, WorkerAction
from pointsman.operator.core.messages import reasons as text
from pointsman.operator.core.pod_changes import remove_from_routing
from pointsman.operator.core.snapshot import DrainReason, Snapshot, Worker

DRAIN_BATCH_S: Final = 5.0  # between two batches of a scale-down
DRAIN_BATCH_SHARE: Final = 0.25  # of a pool's workers in one batch …
DRAIN_BATCH_MINIMUM: Final = 2  # … or so many, if that is more


def choose_victims(workers: Iterable[Worker], count: int, revision: str) -> list[Worker]:
    """The ``count`` workers whose going costs least.

    Those that do not serve first, and of these the ones without a node; then those of an older revision; then the
    fewest in-flight tokens (a worker that did not answer counts as busiest: unknown is not zero); then the fewest
    cached KV blocks; then those beside most others on their node, so that the rest stay spread; then the newest.
    """
    there = sorted(workers, key=lambda worker: (worker.created_s, worker.name))
    beside: dict[str, int] = {}  # uid: older workers of the pool on the same node
    on_node: Counter[str] = Counter()
    for worker in there:
        if worker.node is not None:
            beside[worker.uid] = on_node[worker.node]
            on_node[worker.node] += 1

    def cost(worker: Worker) -> tuple[bool, bool, bool, float, float, int, float, str]:
        in_flight_tokens = cached_blocks = 0.0
        if worker.serves:
            in_flight_tokens = float(worker.state.in_flight_tokens) if worker.state else inf
            known = worker.state.cached_blocks if worker.state else None
            cached_blocks = inf if known is None else float(known)
        return (
            worker.serves,
            worker.unschedulable is None,
            worker.revision == revision,
            in_flight_tokens,
            cached_blocks,
            -beside.get(worker.uid, 0),
            -worker.created_s,
            worker.name,
        )

    return sorted(there, key=cost)[:count]


def begin_at_once(victims: Sequence[Worker], active: int, snapshot: Snapshot) -> list[Worker]:
    """The victims whose drain begins now: those that do not serve, and a batch of those that do.

    Not all at once, so that gateways and planner see what the first ones were missed for before the last ones go.
    """
    since_s = snapshot.now_s - DRAIN_BATCH_S
    roles = {worker.role for worker in victims}
    begun = sum(
        worker.drain_reason is DrainReason.SCALE_DOWN
        and worker.role in roles
        and (worker.drain_started_s or 0) > since_s
        for worker in snapshot.workers
    )
    batch = max(DRAIN_BATCH_MINIMUM, ceil(DRAIN_BATCH_SHARE * active)) - begun
    serving = [worker for worker in victims if worker.serves]
    return [*(worker for worker in victims if not worker.serves), *serving[: max(0, batch)]]


def choose_returners(workers: Iterable[Worker], count: int) -> list[Worker]:
    """The ``count`` leaving workers that are taken back when they are needed again: the least drained first."""
    able = [
        worker
        for worker in workers
        if worker.draining
        and worker.drain_reason is DrainReason.SCALE_DOWN
        and worker.container.running
        and not worker.finished
    ]
    return sorted(able, key=lambda worker: (-(worker.drain_started_s or 0.0), worker.name))[:count]


def deadline_s(worker: Worker, snapshot: Snapshot) -> float:
    """When the drain of ``worker`` ends whatever is in flight; a deleted service's clock starts with its deletion."""
    timeout_s = snapshot.service.spec.drain.timeout_seconds
    started_s = worker.drain_started_s if worker.drain_started_s is not None else snapshot.now_s
    if worker.drain_reason is DrainReason.SERVICE_DELETED and snapshot.service.deleting_since_s is not None:
        started_s = snapshot.service.deleting_since_s
    return started_s + timeout_s


def users_of(worker: Worker, snapshot: Snapshot) -> Sequence[str]:
    """Gateways that may still send to ``worker``: those that said so, and those that did not say yet.

    One that could not be reached was waited for and is passed over; a worker that drains answers it with "try another".
    """
    return [
        gateway.name
        for gateway in snapshot.gateways
        if gateway.ready and not gateway.unreachable and (gateway.uses is None or worker.uid in gateway.uses)
    ]


def drain_step(worker: Worker, snapshot: Snapshot) -> WorkerAction | None:
    """The next step of a leaving worker; None while something is waited for."""
    name, uid, state = worker.name, worker.uid, worker.state
    reason = worker.drain_reason or DrainReason.SCALE_DOWN
    if worker.finished or not worker.container.running:
        return DeleteWorker(worker=name, uid=uid, why=text.drain_not_running(reason))
    if not worker.pod_ready and worker.verified_container is None and (state is None or state.idle):
        return DeleteWorker(worker=name, uid=uid, why=text.drain_never_served(reason))
    if snapshot.now_s >= deadline_s(worker, snapshot):
        timeout_s, leases = snapshot.service.spec.drain.timeout_seconds, state.leases if state else 0
        return DeleteWorker(
            worker=name,
            uid=uid,
            lossless=False,
            why=text.drain_deadline(reason, timeout_s, state.in_flight if state else None, leases),
        )
    if worker.routable_label:
        return remove_from_routing(worker, text.drain_started(reason))
    if state is None or worker.busy is not None:
        return None
    released = not users_of(worker, snapshot)
    takes_work = state.phase is WorkerPhase.SERVING
    if takes_work:
        # A prefill worker pulls by itself, so it can stop before the gateways have let go; clients of a decode worker
        # would only be sent on to another one.
        if (released or state.role is Role.PREFILL) and worker.control_url is not None:
            return AskDrain(worker=name, uid=uid, url=worker.control_url, reason=reason, why=text.drain_started(reason))
        return None
    if released and (state.idle or state.phase is WorkerPhase.FAILED):
        return DeleteWorker(worker=name, uid=uid, why=text.drain_idle(reason))
    return None
