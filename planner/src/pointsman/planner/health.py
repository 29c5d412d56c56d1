"""The planner's condition PlannerHealthy, on a service or an elastic group."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from pointsman.api.protocol.names import API_VERSION
from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType, PlannerHealth
from pointsman.kube.client import Kube
from pointsman.kube.resources import Resource


def health_of(conditions: Iterable[Condition]) -> Condition | None:
    """What it says now."""
    return next((each for each in conditions if each.type == ConditionType.PLANNER_HEALTHY), None)


def health_condition(
    before: Condition | None, healthy: bool, reason: PlannerHealth, message: str, generation: int, now: datetime
) -> Condition:
    """What it is to say; the time stays where nothing flips."""
    status = ConditionStatus.TRUE if healthy else ConditionStatus.FALSE
    return Condition(
        type=ConditionType.PLANNER_HEALTHY,
        status=status,
        reason=reason,
        message=message,
        last_transition_time=before.last_transition_time
        if before is not None and before.status is status
        else now.replace(microsecond=0),
        observed_generation=generation,
    )


async def apply_health(kube: Kube, resource: Resource, key: tuple[str, str], conditions: Sequence[Condition]) -> None:
    """The planner's conditions are these and no others. Raises KubeError."""
    body = {
        "apiVersion": API_VERSION,
        "kind": resource.kind,
        "metadata": {"name": key[1], "namespace": key[0]},
        "status": {"conditions": [condition.manifest() for condition in conditions]},
    }
    await kube.apply(resource, body, subresource="status")
