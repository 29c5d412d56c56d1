"""How many workers each pool should have."""

from dataclasses import dataclass

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.operator.core.snapshot import Pool, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTarget:
    """``replicas`` workers are wanted. ``limit`` is never exceeded, leaving workers included.

    ``asked`` is what the pool's ``spec.replicas`` says; it differs from ``replicas`` when it is out of bounds.
    """

    role: Role
    replicas: int
    asked: int
    limit: int


def must_copy(spec: LLMServiceSpec, role: Role, pool: Pool) -> bool:
    """The service's number was edited since it was copied. Until then the pool's own (``kubectl scale``) counts."""
    return pool.copied_replicas != spec.pools.of(role).replicas


def pool_target(snapshot: Snapshot, role: Role) -> PoolTarget:
    """What the pool of ``role`` should have now."""
    bounds = snapshot.service.spec.pools.of(role)
    pool = snapshot.pools.get(role)
    asked = bounds.replicas if pool is None or must_copy(snapshot.service.spec, role, pool) else pool.replicas
    return PoolTarget(
        role=role,
        asked=asked,
        replicas=min(max(asked, bounds.min_replicas), bounds.max_replicas),
        limit=bounds.max_replicas,
    )
