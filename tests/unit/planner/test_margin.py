"""The share of the token objective that is planned for, from what clients get."""

from dataclasses import replace

import pytest

from pointsman.planner.core.decide import decide
from pointsman.planner.core.margin import LEAST, Margin
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, Load, RoutingNumbers, Service
from unit.planner.test_decide import LLAMA_8B_H100, POLICY, SHORT, observed

LOOK_S = 2.5
ANSWER_S = 12.0
MIXED = replace(SHORT, prompt_tokens=1000, prompt_length_shares=((300, 0.1), (1100, 0.9)))  # a tenth computed locally


def after(attainment: float, windows: int, margin: Margin | None = None, from_s: float = 0.0) -> Margin:
    margin = margin or Margin()
    for window in range(windows):
        margin = margin.observe(attainment, 20, 0.95, from_s + LOOK_S * window, ANSWER_S)
    return margin


def test_a_model_that_keeps_its_promise_is_left_alone() -> None:
    assert after(1.0, 200).share == 1.0


def test_a_promise_that_is_missed_is_planned_for_with_less_and_never_with_too_little() -> None:
    assert after(0.8, 15).share < 0.9
    assert after(0.0, 1000).share == LEAST


def test_what_proved_necessary_is_given_back_slowly() -> None:
    missed = after(0.8, 15)
    assert after(1.0, 15, missed.interrupted()).share < missed.share * 1.01
    assert after(1.0, 2000, missed).share == 1.0


def test_answers_that_began_before_the_pool_was_enough_say_nothing_of_the_model() -> None:
    one_answer = int(ANSWER_S / LOOK_S)
    assert after(0.0, one_answer).share == 1.0
    assert after(0.0, one_answer + 2).share < 1.0
    short_again = after(0.0, one_answer + 1).interrupted()
    assert after(0.0, one_answer, short_again, from_s=1000.0).share == short_again.share


def looks(load: Load, attained: float, windows: int) -> tuple[State, Decision, int]:
    """The state and the last decision, or the first that changes the layout, and the threshold then."""
    state, tokens = State(), 512
    late = Service(ttft_attainment=1.0, tpot_attainment=attained, prefill_queue_depth=0.0)
    for window in range(windows):
        seen = observed(LOOK_S * window, load, 6, 2, service=late, routing=RoutingNumbers(tokens, 32))
        policy = replace(POLICY, scale_out=True, max_gpus=20)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        tokens = decision.routing.max_local_prefill_tokens
        if decision.changes_layout:
            break
    return state, decision, tokens


@pytest.mark.parametrize(("attained", "decode"), [(1.0, 2), (0.5, 3)])
def test_late_tokens_that_local_prefills_are_not_why_are_answered_with_workers_and_said(
    attained: float, decode: int
) -> None:
    """Whatever makes them late: the model says two are enough."""
    _, decision, _ = looks(replace(MIXED, arrivals_per_s=85), attained, 60)
    assert decision.decode == decode
    assert ("clients got less than the model promised" in decision.message) == (attained < 1)


def test_where_local_prefills_can_be_why_the_threshold_comes_down_and_the_model_is_not_blamed() -> None:
    state, _, tokens = looks(replace(SHORT, arrivals_per_s=50), 0.5, 3)
    assert tokens < 512
    assert state.margin == Margin()
