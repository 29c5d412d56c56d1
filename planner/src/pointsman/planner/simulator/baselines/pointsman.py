"""The production planner, and the same without one of its parts.

What is left out is left out by the policy, by constants, or by what the planner is shown: no other code decides than
the live one. Only a forecaster is put in another's place, as a state's field.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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


def _answers_alike(observation: Observation) -> Observation:
    load = observation.load
    return observation if load is None else replace(observation, load=replace(load, answers=()))


def _prompts_alike(observation: Observation) -> Observation:
    return replace(observation, samples=tuple(replace(sample, lengths=()) for sample in observation.samples))


def _no_samples(observation: Observation) -> Observation:
    return replace(observation, samples=())


@dataclass(frozen=True)
class Part:
    """How it is taken away: ``policy``, fields of a Policy; ``tuning``, constants, also beyond their bounds; ``shown``,
    of what is observed; ``first``, the state to begin with; ``table``: whether one is given."""

    policy: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, float] = field(default_factory=dict)
    shown: Callable[[Observation], Observation] | None = None
    first: Callable[[], State] = State
    table: bool = True


PARTS: Final[Mapping[str, Part]] = {
    "threshold": Part({"remote_prefill": False}),
    "flow control": Part({"flow_control": False}),
    "role switch": Part({"role_switch": False}),
    "scaling": Part({"scale_out": False, "scale_in": False}),
    "patience": Part(tuning={"patience_s": 0.0}),
    # Workers that are not needed any more stay for one start-up, whatever was needed before.
    "retention beyond the start-up": Part({"scale_in_stabilization_s": 0.0}, tuning={"return_memory_s": 0.0}),
    "returning needs": Part(tuning={"return_memory_s": 0.0}),
    "longer retention for an old mix": Part(tuning={"new_requests_windows": 1.0}),
    "forecast": Part(first=lambda: State(forecaster=PresentRate())),
    "answers by their prompts": Part(shown=_answers_alike),  # answers are as long as those that ended, to any prompt
    "uneven prompts of a pass": Part(shown=_prompts_alike),  # the mean time of passes is that of the mean prompt
    "learned start-up": Part({"start_is_told": True}),
    "calibration": Part(shown=_no_samples),  # the performance table is believed as it is
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
        policy = replace(policy, tuning=policy.tuning.model_copy(update=part.tuning), **part.policy)
        if part.shown is not None:
            observation = part.shown(observation)
        return production(state, observation, policy, now_s, base if part.table else None)

    return Planner(f"{NAME} without {name}", decide, part.first, damped=True)
