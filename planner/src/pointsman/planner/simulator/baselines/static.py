"""Never changes anything: the layout somebody once chose."""

from typing import Any

from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy
from pointsman.planner.simulator.baselines.layouts import stay
from pointsman.planner.simulator.types import Planner


def decide(
    state: Any, observation: Observation, policy: Policy, _now_s: float, _base: PerformanceModel | None
) -> tuple[Any, Decision, NextTick]:
    """Stay."""
    return state, stay(observation, "static"), NextTick(policy.interval_s)


def static() -> Planner:
    """The planner."""
    return Planner("static", decide, lambda: None)
