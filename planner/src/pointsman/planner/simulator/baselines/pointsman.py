"""The production planner, and the same without one of its parts.

What is left out is left out by the policy, so that no other code runs than the live one.
"""

from dataclasses import replace
from typing import Any

from pointsman.planner.core.decide import decide as production
from pointsman.planner.core.performance import PerformanceModel
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy
from pointsman.planner.simulator.types import Planner

PARTS: dict[str, dict[str, Any]] = {
    "threshold": {"remote_prefill": False},
    "flow control": {"flow_control": False},
    "role switch": {"role_switch": False},
    "scaling": {"scale_out": False, "scale_in": False},
    "patience": {
        "min_dwell_s": 0.0,
        "opposite_after_s": 0.0,
        "scale_in_stabilization_s": 0.0,
        "max_switches_per_10_min": 1_000_000,
        "max_in_transition_share": 1.0,
    },
}
"""Each part, and the fields of a Policy that take it away."""


def ours() -> Planner:
    """``core.decide`` as it runs live."""
    return Planner("Pointsman", production, State)


def without(part: str) -> Planner:
    """``core.decide`` without one of ``PARTS``. Raises KeyError for another."""
    fields = PARTS[part]

    def decide(
        state: State, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None
    ) -> tuple[State, Decision, NextTick]:
        return production(state, observation, replace(policy, **fields), now_s, base)

    return Planner(f"Pointsman without {part}", decide, State)


def without_calibration() -> Planner:
    """``core.decide`` that sees no measurement of the engine: it believes the performance table as it is."""

    def decide(
        state: State, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None
    ) -> tuple[State, Decision, NextTick]:
        return production(state, replace(observation, samples=()), policy, now_s, base)

    return Planner("Pointsman without calibration", decide, State)


def without_table() -> Planner:
    """``core.decide`` that is given no performance table: it learns from the service alone."""

    def decide(
        state: State, observation: Observation, policy: Policy, now_s: float, _base: PerformanceModel | None
    ) -> tuple[State, Decision, NextTick]:
        return production(state, observation, policy, now_s, None)

    return Planner("Pointsman without a table", decide, State)
