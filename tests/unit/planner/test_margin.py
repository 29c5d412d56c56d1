"""The share of what a decode worker can do by the model that is counted on, from what clients get."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pointsman.planner.core.decide import decide
from pointsman.planner.core.margin import ANSWERS, LEAST, Margin, more_than_enough
from pointsman.planner.core.performance import LinearModel, PerformanceModel
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    Load,
    Policy,
    RoutingNumbers,
    Service,
    WorkerCondition,
)
from unit.planner.test_decide import LLAMA_8B_H100, POLICY, SHORT, observed, workers
from unit.planner.test_sizing import point

LOOK_S = 2.5
ANSWER_S = 4.0
WAITS = int(ANSWERS * ANSWER_S / LOOK_S)  # looks, until nothing that began before is answered
GOAL = 0.95
MIXED = replace(SHORT, prompt_tokens=1000, prompt_length_shares=((300, 0.1), (1100, 0.9)))  # a tenth computed locally
GROWS = replace(POLICY, scale_out=True, max_gpus=20)


def after(attainment: float, windows: int, margin: Margin | None = None, from_s: float = 0.0) -> Margin:
    margin = margin or Margin()
    for window in range(windows):
        margin = margin.observe(attainment, 20, LOOK_S, GOAL, from_s + LOOK_S * window, ANSWER_S)
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
            margin = margin.observe(in_time, requests, LOOK_S, GOAL, LOOK_S * window, ANSWER_S)
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
        margin = margin.observe(sum(inside) / len(inside), len(inside), LOOK_S, GOAL, until_s, 300 * 0.04)
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
    assert ("clients got less than it promised" in decision.message) == (attained < 1)


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
    assert "4D needed" in decision.message, "short by what is planned for"
    state, *_ = looks(replace(MIXED, arrivals_per_s=85), lambda _: 1.0, 200, policy, lowered)
    assert state.margin.share > LEAST * 1.05


SLOW = LinearModel(4.705, 0.01757, 8.785e-7, 29.9, 0.05, 4e-6)  # 30 ms a step for one sequence, 40 asked for


@pytest.mark.parametrize(
    ("model", "rate"), [(SLOW, 40), (LLAMA_8B_H100, 200)], ids=["near the shortest step", "where memory is the bound"]
)
def test_a_model_that_is_wrong_is_answered_with_at_most_twice_as_many_workers(
    model: PerformanceModel, rate: float
) -> None:
    """Wherever the engine is on its curve: a shorter step would take the whole budget, or nothing."""
    policy = replace(GROWS, scale_in=False, scale_out=False, role_switch=False)
    load = replace(MIXED, arrivals_per_s=rate)
    _, right, _ = looks(load, lambda _: 1.0, 300, policy, decode=14, model=model)
    _, wrong, _ = looks(load, lambda _: 0.5, 300, policy, decode=14, model=model)
    by_model, needed = (dict(decision.inputs)["decodeNeededNow"] for decision in (right, wrong))
    assert by_model >= 4
    assert 1.6 * by_model <= needed <= 2 * by_model


def changes(hours: float, enough: int) -> list[tuple[float, int]]:
    """When the layout changes and to how many decode workers, under a constant load that the model says five can do,
    and clients that get what they should from ``enough`` on."""
    load = replace(MIXED, arrivals_per_s=200)
    policy = replace(GROWS, scale_in=True, role_switch=False, max_gpus=30, prefill=Bounds(6, 6), decode=Bounds(1, 20))
    state, decode, tokens, found = State(), 5, 512, []
    for look in range(int(hours * 360)):
        service = Service(1.0, 1.0 if decode >= enough else 0.8, 0.0)
        seen = observed(10.0 * look, load, 6, decode, window_s=10, service=service, routing=RoutingNumbers(tokens, 32))
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        tokens = decision.routing.max_local_prefill_tokens
        if decision.decode != decode:
            found.append((seen.at_s, decision.decode))
        decode = decision.decode
    return found


def test_what_proved_necessary_is_tried_without_ever_more_seldom() -> None:
    assert changes(1, enough=5) == []
    found = changes(8, enough=6)
    tries = [at_s for at_s, decode in found if decode == 5]
    assert {decode for _, decode in found} == {5, 6}
    assert len(tries) >= 2, "a truth that has changed is found out"
    between = [after - before for before, after in itertools.pairwise(tries)]
    assert all(later > 1.3 * sooner for sooner, later in itertools.pairwise(between[:3])), tries
    assert len(tries) <= 7
    assert sum(at_s > 4 * 3600 for at_s in tries) <= 2, "then every two hours"


@pytest.mark.parametrize("goal", [0.9, 0.98, 0.99, 0.999])
def test_there_is_more_than_enough_above_every_goal(goal: float) -> None:
    margin = Margin(0.8)
    for window in range(1000):
        margin = margin.observe(1.0, 20, LOOK_S, goal, LOOK_S * window, ANSWER_S)
    assert margin.share == 1.0
    assert goal < more_than_enough(goal) < 1


def test_what_is_learned_does_not_depend_on_how_often_is_looked() -> None:
    often, seldom = Margin(), Margin()
    for look in range(24):
        often = often.observe(0.8, 20, 2.5, GOAL, 2.5 * look, 0.1)
    for look in range(6):
        seldom = seldom.observe(0.8, 80, 10, GOAL, 10.0 * look, 0.1)
    assert LEAST < seldom.share == pytest.approx(often.share, abs=0.05)


def test_a_shortage_that_is_over_lowers_nothing_more() -> None:
    lowered = after(0.5, WAITS + 12)
    assert LEAST < after(1.0, 300, lowered, from_s=LOOK_S * (WAITS + 12)).share >= lowered.share < 0.95


@pytest.mark.parametrize("window_s", [2.5, 10.0])
@pytest.mark.parametrize("requests", [1, 3])
def test_few_answers_after_each_interruption_prove_nothing(requests: int, window_s: float) -> None:
    """A day of a truth above the goal, of which at most ten minutes at a time are seen together."""
    for seed in range(4):
        rng, margin, total = random.Random(seed), Margin(), 0.0
        for window in range(int(86400 / window_s)):
            if window % int(600 / window_s) == 0:
                margin = margin.interrupted()
            in_time = sum(rng.random() < 0.975 for _ in range(requests)) / requests
            margin = margin.observe(in_time, requests, window_s, GOAL, window_s * window, ANSWER_S)
            total += margin.share
        assert total / (86400 / window_s) > 0.98, seed


def test_what_the_model_itself_calls_out_of_reach_does_not_contradict_it() -> None:
    objectives = replace(GROWS.objectives, tpot_ms=25)  # a step takes 30
    policy = replace(GROWS, objectives=objectives, scale_in=False, scale_out=False, role_switch=False)
    load = replace(MIXED, arrivals_per_s=0.3)
    state, *_ = looks(load, lambda _: 0.0, 300, policy, decode=14, model=SLOW)
    assert state.margin.share == 1.0


def test_after_days_less_is_still_tried_every_few_hours() -> None:
    margin, falls = Margin(), []
    for window in range(3 * 8640):
        before = margin.share
        margin = margin.observe(1.0 if before < 0.95 else 0.5, 80, 10, GOAL, 10.0 * window, ANSWER_S)
        if margin.share < before:
            falls.append(10.0 * window)
    tries = [later - sooner for sooner, later in itertools.pairwise(falls) if later - sooner > 60]
    assert 3600 < tries[-1] <= max(tries) < 3 * 3600


def test_a_look_after_a_long_gap_is_taken_for_a_few_looks() -> None:
    margin = after(0.8, WAITS + 3)
    assert margin.observe(0.5, 20, 600, GOAL, 1000, ANSWER_S).share > margin.share * 0.94


def test_gateways_let_as_many_decode_as_are_counted_on() -> None:
    load = replace(MIXED, arrivals_per_s=85)
    all_of_it, half = (looks(load, lambda _: 1.0, 1, GROWS, replace(State(), margin=Margin(s)))[1] for s in (1.0, 0.5))
    bounds = [decision.routing.flow.decoding_per_decode_worker for decision in (all_of_it, half)]
    assert bounds[0] is not None
    assert bounds[1] == pytest.approx(bounds[0] / 2, rel=0.01)


@pytest.mark.parametrize(("batch", "counted_on"), [(40, 20), (1.5, 1), (0.5, 0.5)])
def test_a_decode_worker_that_can_do_one_sequence_does_it(batch: float, counted_on: float) -> None:
    at = replace(point(400, 100), batch=batch, decode_share=0.5)
    assert at.batch_beside_local(1.0) == counted_on


def test_the_share_that_is_told_is_the_one_that_was_planned_with() -> None:
    state = replace(State(), margin=Margin(0.8))
    batches = {}
    for look in range(40):
        seen = observed(2.5 * look, replace(MIXED, arrivals_per_s=85), 6, 4)
        before = state.margin.share
        state, decision, _ = decide(state, seen, GROWS, seen.at_s, LLAMA_8B_H100)
        told = dict(decision.inputs)
        batches[look] = told["decodeBatch"] / told["decodeShare"]
        assert told["decodeShare"] == pytest.approx(before, abs=1e-4)
    assert state.margin.share > 0.8
    assert max(batches.values()) == pytest.approx(min(batches.values()), rel=1e-3)


def test_a_pool_that_was_short_while_nobody_answered_begins_anew() -> None:
    load = replace(MIXED, arrivals_per_s=85)
    state, *_ = looks(load, lambda _: 1.0, 20)
    assert state.margin.enough_since_s is not None
    state, *_ = looks(replace(load, arrivals_per_s=170), lambda _: None, 1, replace(GROWS, scale_out=False), state)
    assert state.margin.enough_since_s is None


def test_what_clients_get_while_a_plan_is_executed_counts_too() -> None:
    state, load = State(), replace(MIXED, arrivals_per_s=85)
    serving = workers(6, 3)
    switches = (*serving[:-1], replace(serving[-1], condition=WorkerCondition.SWITCHING))
    for look in range(40):
        late = Service(ttft_attainment=1.0, tpot_attainment=0.5, prefill_queue_depth=0.0)
        seen = observed(LOOK_S * look, load, service=late, workers=switches, plan_in_progress=True)
        state, decision, _ = decide(state, seen, replace(GROWS, role_switch=False), seen.at_s, LLAMA_8B_H100)
        assert decision.message.startswith("a plan is being executed")
    assert state.margin.share < 1
