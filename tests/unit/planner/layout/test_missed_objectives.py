"""Where no worker can be started, what clients miss says which role is short, whatever is estimated."""

from dataclasses import replace

import pytest

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.layout.role_switches import missed_role
from pointsman.planner.core.prediction_score import Score
from pointsman.planner.core.sizing.operating_point import Unreachable
from pointsman.planner.core.state import State
from pointsman.planner.core.switch_guards import History, SwitchRecord
from pointsman.planner.core.types import Decision, Objectives, Policy, Service
from unit.planner.operating_points import point
from unit.planner.scenes import LLAMA_8B_H100, LONG, POLICY, observed

GOAL = POLICY.objectives.attainment
LATE_PREFILL = Score(ttft=GOAL - 0.05, tpot=GOAL + 0.01)


@pytest.mark.parametrize(
    ("ttft", "tpot", "role"),
    [(0.9, 0.99, Role.PREFILL), (0.99, 0.9, Role.DECODE), (0.9, 0.9, None), (0.99, 0.99, None), (None, 0.9, None)],
)
def test_one_role_is_short_if_its_objective_alone_is_missed(
    ttft: float | None, tpot: float | None, role: Role | None
) -> None:
    state = State(score=Score(ttft=ttft, tpot=tpot))
    assert missed_role(state, observed(0, LONG), POLICY, point()) is role


def test_nothing_is_concluded_while_workers_can_be_started() -> None:
    state, seen = State(score=LATE_PREFILL), observed(0, LONG)
    assert missed_role(state, seen, replace(POLICY, scale_out=True), point()) is Role.PREFILL  # the budget is full
    assert missed_role(state, seen, replace(POLICY, scale_out=True, max_gpus=7), point()) is None


def test_requests_that_no_layout_serves_in_time_say_nothing_of_the_layout() -> None:
    state, seen = State(score=LATE_PREFILL), observed(0, LONG)
    assert missed_role(state, seen, POLICY, replace(point(), unreachable=Unreachable(ttft_share=0.08))) is None


def decided(ttft: float, *, mode: Mode = Mode.ACTIVE, back: Role | None = None) -> Decision:
    """The first change within 40 looks of a service that 2P4D serves by the model; ``back``: of the last switch."""
    service = Service(ttft_attainment=ttft, tpot_attainment=1.0, attainment=ttft, prefill_queue_depth=0.0)
    history = History() if back is None else History((SwitchRecord(-100.0, back),))
    state, policy = State(history=history), replace(POLICY, mode=mode)
    for tick in range(40):
        at_s = 2.5 * tick
        seen = observed(at_s, replace(LONG, arrivals_per_s=RATE), service=service)
        state, decision, _ = decide(state, seen, policy, at_s, LLAMA_8B_H100)
        if decision.changes_layout:
            return decision
    return decision


RATE = 16.0


@pytest.mark.parametrize("back", [None, Role.DECODE])
def test_a_spare_worker_goes_to_the_role_whose_objective_is_missed(back: Role | None) -> None:
    assert not decided(1.0, back=back).changes_layout
    decision = decided(0.9, back=back)
    assert (decision.prefill, decision.decode) == (4, 2)
    assert "only 90% of requests meet objectives.ttftMs, 95% should" in decision.message.lower().replace(
        "ttftms", "ttftMs"
    )


def test_it_goes_back_no_further_than_the_needs_are_even() -> None:
    policy: Policy = replace(POLICY, min_dwell_s=0.0, opposite_after_s=0.0, objectives=Objectives())
    service = Service(ttft_attainment=0.5, tpot_attainment=1.0, attainment=0.5, prefill_queue_depth=0.0)
    state, layout, switches = State(), (2, 4), 0
    for tick in range(400):
        at_s = 2.5 * tick
        seen = observed(at_s, replace(LONG, arrivals_per_s=RATE), *layout, service=service)
        state, decision, _ = decide(state, seen, policy, at_s, LLAMA_8B_H100)
        switches += decision.changes_layout
        layout = decision.prefill, decision.decode
    assert layout[0] > 2
    assert switches <= 3
