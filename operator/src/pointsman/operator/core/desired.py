"""How many workers each pool should have."""

from dataclasses import dataclass
from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.llmservice import MAX_REPLICAS, LLMServiceSpec
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.operator.core.snapshot import Pool, Snapshot, Worker

EXECUTED_MODES: Final = (Mode.ACTIVE, Mode.APPROVE)
"""Modes in which plans, not people, write the replicas of a service's pools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTarget:
    """``replicas`` workers should serve. ``limit`` is never exceeded, draining workers included.

    ``spec_replicas`` is the pool's ``spec.replicas``; ``clamped`` is that within the service's bounds; ``replicas`` is
    one less for every worker that a switch takes out of the pool at the moment.
    """

    role: Role
    replicas: int
    spec_replicas: int
    clamped: int
    limit: int


def must_copy(snapshot: Snapshot, role: Role, pool: Pool) -> bool:
    """The service's number was edited since it was copied. Until then the pool's own (``kubectl scale``) counts.

    With a policy that lets plans or an autoscaler write the pools, the service's number is only where they began.
    """
    if role not in snapshot.service.spec.roles:
        return False
    if snapshot.policy is not None and snapshot.policy.mode is not Mode.SHADOW:
        return False
    if pool.owned_replicas is not None or pool.external:
        return False  # it changes hands now, and keeps its number
    return pool.copied_replicas != snapshot.service.spec.pools.of(role).replicas


def budgeted_gpus(spec: LLMServiceSpec, role: Role | None) -> int:
    """What a worker of a role takes of a policy's budget: its GPUs, or 1 on CPU. None: a role that is not known."""
    return max(spec.gpus_of(role or Role.DECODE), 1)


def room_in_budget(snapshot: Snapshot) -> int:
    """GPUs that may be given out beside those in use, draining workers included, while plans own the pools.

    Where they do not, the numbers are somebody else's, and so is what they cost.
    """
    policy, spec = snapshot.policy, snapshot.service.spec
    if policy is None or policy.mode not in EXECUTED_MODES:
        return sum(MAX_REPLICAS * budgeted_gpus(spec, role) for role in Role)
    in_use = (worker for worker in snapshot.workers if worker.holds_gpus(snapshot.now_s))
    return max(0, policy.spec.budget.max_gpus - sum(budgeted_gpus(spec, worker.role) for worker in in_use))


def first_replicas(snapshot: Snapshot, role: Role, desired_before: int = 0) -> int:
    """The number of a WorkerPool that is created: the service's, or what runs if somebody deleted the pool.

    ``desired_before``: the number of its workers in the service's last status; 0: none, or not known.
    """
    bounds = snapshot.service.spec.pools.of(role)
    running = {claim.uid for claim in snapshot.running_claims()}

    def pool_of(worker: Worker) -> Role | None:
        """Where it counts: no switch that runs is in the new pool's books, so the worker is still in its old pool."""
        return worker.claim.source if worker.claim and worker.claim.uid in running else worker.role

    present = sum(worker.active and pool_of(worker) is role for worker in snapshot.workers)
    before = 0 if running else desired_before
    if not present and not before:
        return bounds.replicas
    return min(max(present, before, bounds.min_replicas), bounds.max_replicas)


def pool_target(snapshot: Snapshot, role: Role) -> PoolTarget:
    """What the pool of ``role`` should have now. Without its WorkerPool: what it has, for its number is not known."""
    if role not in snapshot.service.spec.roles:
        return PoolTarget(role=role, replicas=0, spec_replicas=0, clamped=0, limit=0)  # spec.encode was removed
    bounds = snapshot.service.spec.pools.of(role)
    pool = snapshot.pools.get(role)
    if pool is None:
        counted = snapshot.counted(role)
        present = sum(worker.active or worker.stays_finished(snapshot.now_s) for worker in counted)
        return PoolTarget(
            role=role,
            replicas=present,
            spec_replicas=present,
            clamped=present,
            limit=bounds.max_replicas,
        )
    spec_replicas = bounds.replicas if must_copy(snapshot, role, pool) else pool.replicas
    clamped = min(max(spec_replicas, bounds.min_replicas), bounds.max_replicas)
    return PoolTarget(
        role=role,
        spec_replicas=spec_replicas,
        clamped=clamped,
        replicas=max(0, clamped - snapshot.leaving_by_switch(role)),
        limit=bounds.max_replicas,
    )
