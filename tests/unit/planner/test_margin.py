"""The share of the token objective that is planned for, from what clients get."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pointsman.planner.core.decide import decide
from pointsman.planner.core.margin import ANSWERS, LEAST, Margin
from pointsman.planner.core.performance import LinearModel, PerformanceModel
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, Load, Policy, RoutingNumbers, Service
from unit.planner.test_decide import LLAMA_8B_H100, POLICY, SHORT, observed

LOOK_S = 2.5
ANSWER_S = 4.0
WAITS = int(ANSWERS * ANSWER_S / LOOK_S)  # looks, until nothing that began before is answered
GOAL = 0.95
MIXED = replace(SHORT, prompt_tokens=1000, prompt_length_shares=((300, 0.1), (1100, 0.9)))  # a tenth computed locally
GROWS = replace(POLICY, scale_out=True, max_gpus=20)


def after(attainment: float, windows: int, margin: Margin | None = None, from_s: float = 0.0) -> Margin:
    margin = margin or Margin()
    for window in range(windows):
        margin = margin.observe(attainment, 20, GOAL, from_s + LOOK_S * window, ANSWER_S)
    return margin


def test_a_model_that_keeps_its_promise_is_left_alone() -> None:
    assert after(1.0, 200).share == 1.0


@pytest.mark.parametrize("requests", [2, 20, 200])
def test_chance_is_not_taken_for_a_model_that_is_wrong(requests: int) -> None:
    """An hour of windows in which as many answers are late as may be, but for a hundredth."""
    for seed in range(10):
        rng, margin = random.Random(seed), Margin()
        for window in range(1440):
            in_time = sum(rng.random() < GOAL + 0.01 for _ in range(requests)) / requests
            margin = margin.observe(in_time, requests, GOAL, LOOK_S * window, ANSWER_S)
        assert margin.share > 0.93, seed


def test_a_promise_that_is_missed_is_planned_for_with_less_and_never_with_too_little() -> None:
    assert after(0.8, WAITS + 15).share < 0.9
    assert after(0.0, 1000).share == LEAST


def test_what_proved_necessary_is_given_back_slowly() -> None:
    missed = after(0.8, WAITS + 15)
    assert after(1.0, 15, missed.interrupted()).share < missed.share * 1.01
    assert after(1.0, 2000, missed).share == 1.0


def test_answers_that_began_before_the_pool_was_enough_say_nothing_of_the_model() -> None:
    assert after(0.0, WAITS + 1).share == 1.0
    assert after(0.0, WAITS + 3).share < 1.0
    short_again = after(0.0, WAITS + 3).interrupted()
    assert after(0.0, WAITS + 1, short_again, from_s=1000.0).share == short_again.share


@pytest.mark.parametrize("step_ms", [60.0, 80.0])
def test_a_shortage_that_is_over_leaves_no_lesson(step_ms: float) -> None:
    """Answers of 300 tokens in the mean at 40 ms, as even as chance; late until there are workers enough."""
    rng, ended = random.Random(1), list[tuple[float, bool]]()
    for n in range(-4000, 4000):
        began_s, tokens = n / 20, rng.expovariate(1 / 300)
        before_s = min(-began_s, tokens * step_ms / 1000) if began_s < 0 else 0.0
        took_s = before_s + (tokens - before_s * 1000 / step_ms) * 0.032
        ended.append((began_s + took_s, took_s <= tokens * 0.04))
    margin = Margin()
    for window in range(60):
        until_s = LOOK_S * (window + 1)
        inside = [in_time for end_s, in_time in ended if until_s - LOOK_S <= end_s < until_s]
        margin = margin.observe(sum(inside) / len(inside), len(inside), GOAL, until_s, 300 * 0.04)
    assert margin.share > 0.98


# --- in a decision ---


def looks(
    load: Load,
    attained: Callable[[int], float | None],
    windows: int,
    policy: Policy = GROWS,
    state: State | None = None,
    decode: int = 2,
    model: PerformanceModel = LLAMA_8B_H100,
) -> tuple[State, Decision, int]:
    """The state and the last decision, or the first that changes the layout, and the threshold then."""
    state, tokens = state or State(), 512
    for window in range(windows):
        service = Service(ttft_attainment=1.0, tpot_attainment=attained(window), prefill_queue_depth=0.0)
        seen = observed(LOOK_S * window, load, 6, decode, service=service, routing=RoutingNumbers(tokens, 32))
        state, decision, _ = decide(state, seen, policy, seen.at_s, model)
        tokens = decision.routing.max_local_prefill_tokens
        if decision.changes_layout:
            break
    return state, decision, tokens


@pytest.mark.parametrize(("attained", "decode"), [(1.0, 2), (0.5, 3)])
def test_late_tokens_that_local_prefills_are_not_why_are_answered_with_workers_and_said(
    attained: float, decode: int
) -> None:
    """Whatever makes them late: the model says two are enough."""
    _, decision, _ = looks(replace(MIXED, arrivals_per_s=85), lambda _: attained, 60)
    assert decision.decode == decode
    assert ("clients got less than the model promised" in decision.message) == (attained < 1)


def test_where_local_prefills_can_be_why_the_threshold_comes_down_and_the_model_is_not_blamed() -> None:
    state, _, tokens = looks(replace(SHORT, arrivals_per_s=50), lambda _: 0.5, 3)
    assert tokens < 512
    assert state.margin == Margin()


def test_where_the_threshold_may_not_come_down_local_prefills_are_answered_with_workers_too() -> None:
    policy = replace(GROWS, min_threshold_tokens=512, scale_in=False)
    state, _, tokens = looks(replace(SHORT, arrivals_per_s=50), lambda _: 0.5, 60, policy)
    assert tokens == 512
    assert state.margin.share < 0.9


def test_a_share_that_clients_contradict_comes_back_also_where_the_budget_leaves_the_pool_short() -> None:
    policy = replace(GROWS, max_gpus=8, role_switch=False)
    lowered = replace(State(), margin=Margin(LEAST))
    state, decision, _ = looks(replace(MIXED, arrivals_per_s=85), lambda _: 1.0, 20, policy, lowered)
    assert "3D needed" in decision.message, "short by what is planned for"
    state, *_ = looks(replace(MIXED, arrivals_per_s=85), lambda _: 1.0, 200, policy, lowered)
    assert state.margin.share > LEAST * 1.05


def test_near_the_shortest_step_late_tokens_do_not_take_the_whole_budget() -> None:
    """30 ms a step for one sequence, 40 asked for: in 28 ms a worker would serve nobody."""
    slow = LinearModel(4.705, 0.01757, 8.785e-7, 29.9, 0.05, 4e-6)
    policy = replace(GROWS, scale_in=False, role_switch=False)
    state, *_ = looks(replace(MIXED, arrivals_per_s=4), lambda _: 0.5, 300, policy, decode=14, model=slow)
    assert 0.85 < state.margin.share < 0.95


def test_a_pool_that_was_short_while_nobody_answered_begins_anew() -> None:
    load = replace(MIXED, arrivals_per_s=85)
    state, *_ = looks(load, lambda _: 1.0, 20)
    assert state.margin.enough_since_s is not None
    state, *_ = looks(replace(load, arrivals_per_s=170), lambda _: None, 1, replace(GROWS, scale_out=False), state)
    assert state.margin.enough_since_s is None
