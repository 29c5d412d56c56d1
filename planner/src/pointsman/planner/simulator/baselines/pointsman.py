"""The production planner, and the same without one of its parts.

What is left out is left out by the policy, by what the planner is shown, or by what it is let remember from tick to
tick: no other code decides than the live one. Only a forecaster is put in another's place, as a state's field.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pointsman.planner.core.decide import decide as production
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.state import State
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy
from pointsman.planner.core.workload.arrival_forecast import RateForecaster
from pointsman.planner.simulator.types import Planner

NAME: Final = "Pointsman"


class PresentRate(RateForecaster):
    """Expects the present rate at every horizon: no trend."""

    def expected(self, ahead_s: float, tuning: Tuning = SHIPPED) -> float:
        """The level, at every horizon."""
        return 0.0 if self.trend is None else self.trend.level


@dataclass(frozen=True)
class Part:
    """How it is taken away: ``policy``, fields of a Policy; ``forget``, of the state before every tick; ``first``, the
    state to begin with; ``samples`` and ``table``: whether measurements of the engine, and a table, are given."""

    policy: Mapping[str, Any] | None = None
    forget: Callable[[State], State] | None = None
    first: Callable[[], State] = State
    samples: bool = True
    table: bool = True


PARTS: Final[Mapping[str, Part]] = {
    "threshold": Part({"remote_prefill": False}),
    "flow control": Part({"flow_control": False}),
    "role switch": Part({"role_switch": False}),
    "scaling": Part({"scale_out": False, "scale_in": False}),
    "patience": Part({"scale_in_stabilization_s": 0.0, "max_in_transition_share": 1.0}),
    "forecast": Part(first=lambda: State(forecaster=PresentRate())),
    "learned start-up": Part({"start_is_told": True}),
    "calibration": Part(samples=False),  # the performance table is believed as it is
    "a table": Part(table=False),  # it learns from the service alone
}
"""Each part, and what takes it away."""


def ours() -> Planner:
    """``core.decide`` as it runs live."""
    return Planner(NAME, production, State, damped=True)


def without(name: str) -> Planner:
    """``core.decide`` without one of ``PARTS``. Raises KeyError for another."""
    part = PARTS[name]

    def decide(
        state: State, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None
    ) -> tuple[State, Decision, NextTick]:
        if part.policy is not None:
            policy = replace(policy, **part.policy)
        if part.forget is not None:
            state = part.forget(state)
        if not part.samples:
            observation = replace(observation, samples=())
        return production(state, observation, policy, now_s, base if part.table else None)

    return Planner(f"{NAME} without {name}", decide, part.first, damped=True)
