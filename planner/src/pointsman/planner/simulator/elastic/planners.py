"""Planners of the number of instances: ours, and none."""

from collections.abc import Callable
from typing import Any, Final

from pointsman.planner.core.elastic.decide import GroupState, decide
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.types import Bounds, Policy, Reason
from pointsman.planner.simulator.elastic.types import GroupPlanner


def pointsman() -> GroupPlanner:
    """The live planner."""
    return GroupPlanner("pointsman", decide, GroupState)


def static() -> GroupPlanner:
    """As many instances as at the start."""
    return GroupPlanner("static", _stay, lambda: None)


def _stay(
    state: Any, observation: GroupObservation, policy: Policy, bounds: Bounds, now_s: float
) -> tuple[Any, GroupDecision]:
    return state, GroupDecision(Reason.STEADY, "instances are fixed", observation.desired)


GROUP_PLANNERS: Final[dict[str, Callable[[], GroupPlanner]]] = {"pointsman": pointsman, "static": static}
"""By name."""
