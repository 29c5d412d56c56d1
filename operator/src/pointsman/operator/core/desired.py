"""How many workers each pool should have."""

from dataclasses import dataclass

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.operator.core.snapshot import Pool, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTarget:
    """``replicas`` workers are wanted. ``limit`` is never exceeded, leaving workers included.

    ``asked`` is what the pool's ``spec.replicas`` says; ``held`` is that within the service's bounds; ``replicas`` is
    one less for every worker that a switch takes out of the pool at the moment.
    """

    role: Role
    replicas: int
    asked: int
    held: int
    limit: int


def must_copy(snapshot: Snapshot, role: Role, pool: Pool) -> bool:
    """The service's number was edited since it was copied. Until then the pool's own (``kubectl scale``) counts.

    With a policy that lets plans or an autoscaler write the pools, the service's number is only where they began.
    """
    if snapshot.policy is not None and snapshot.policy.mode is not Mode.SHADOW:
        return False
    return pool.copied_replicas != snapshot.service.spec.pools.of(role).replicas


def pool_target(snapshot: Snapshot, role: Role) -> PoolTarget:
    """What the pool of ``role`` should have now."""
    bounds = snapshot.service.spec.pools.of(role)
    pool = snapshot.pools.get(role)
    asked = bounds.replicas if pool is None or must_copy(snapshot, role, pool) else pool.replicas
    held = min(max(asked, bounds.min_replicas), bounds.max_replicas)
    return PoolTarget(
        role=role,
        asked=asked,
        held=held,
        replicas=max(0, held - snapshot.leaving_by_switch(role)),
        limit=bounds.max_replicas,
    )
