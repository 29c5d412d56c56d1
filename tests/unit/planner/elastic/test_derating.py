"""The share of modelled capacity that the planner counts on for an elastic group, learned from what clients get."""

import itertools
import math
import random

import pytest

from pointsman.planner.core.elastic.derating import LEAST, Margin
from pointsman.planner.core.hysteresis import more_than_enough
from pointsman.planner.core.types import Load, Objectives, Observation, Policy, RoutingNumbers, Service

LOOK_S = 2.5
ANSWER_S = 4.0
WAITS = int(3 * ANSWER_S / LOOK_S)  # looks, until nothing that began before is answered
GOAL = 0.95


def observed(
    margin: Margin, attainment: float, requests: float, window_s: float, goal: float, now_s: float, answer_s: float
) -> Margin:
    """With a window of so many requests, in which the group was large enough by the model."""
    load, service = Load(requests / window_s), Service(ttft_attainment=attainment, tpot_attainment=1.0)
    seen = Observation(now_s, window_s, 0.0, (), RoutingNumbers(0, 0), load, service)
    return margin.observe(seen, Policy(objectives=Objectives(attainment=goal)), answer_s, now_s)


def after(attainment: float, windows: int, margin: Margin | None = None, from_s: float = 0.0) -> Margin:
    margin = margin or Margin()
    for window in range(windows):
        margin = observed(margin, attainment, 20, LOOK_S, GOAL, from_s + LOOK_S * window, ANSWER_S)
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
            margin = observed(margin, in_time, requests, LOOK_S, GOAL, LOOK_S * window, ANSWER_S)
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
        margin = observed(margin, sum(inside) / len(inside), len(inside), LOOK_S, GOAL, until_s, 300 * 0.04)
    assert margin.share > 0.98


def changes(hours: float, enough: int) -> list[tuple[float, int]]:
    """When the number of instances changes and to how many, under a constant load that the model says five can serve.

    Clients get what they should from ``enough`` instances on.
    """
    margin, instances, found = Margin(), 5, []
    for look in range(int(hours * 360)):
        now_s, attainment = 10.0 * look, 1.0 if instances >= enough else 0.8
        margin = observed(margin, attainment, 80, 10.0, GOAL, now_s, ANSWER_S)
        needed = math.ceil(4.8 / margin.share)
        if needed != instances:
            found.append((now_s, needed))
        instances = needed
    return found


def test_what_proved_necessary_is_tried_without_ever_more_seldom() -> None:
    assert changes(1, enough=5) == []
    found = changes(8, enough=6)
    tries = [at_s for at_s, instances in found if instances == 5]
    assert {instances for _, instances in found} == {5, 6}
    assert len(tries) >= 2, "a truth that has changed is found out"
    between = [after - before for before, after in itertools.pairwise(tries)]
    assert all(later > 1.3 * sooner for sooner, later in itertools.pairwise(between[:3])), tries
    assert len(tries) <= 7
    assert sum(at_s > 4 * 3600 for at_s in tries) <= 2, "then every two hours"


@pytest.mark.parametrize("goal", [0.9, 0.98, 0.99, 0.999])
def test_there_is_more_than_enough_above_every_goal(goal: float) -> None:
    margin = Margin(0.8)
    for window in range(1000):
        margin = observed(margin, 1.0, 20, LOOK_S, goal, LOOK_S * window, ANSWER_S)
    assert margin.share == 1.0
    assert goal < more_than_enough(goal) < 1


def test_what_is_learned_does_not_depend_on_how_often_is_looked() -> None:
    often, seldom = Margin(), Margin()
    for look in range(24):
        often = observed(often, 0.8, 20, 2.5, GOAL, 2.5 * look, 0.1)
    for look in range(6):
        seldom = observed(seldom, 0.8, 80, 10, GOAL, 10.0 * look, 0.1)
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
            margin = observed(margin, in_time, requests, window_s, GOAL, window_s * window, ANSWER_S)
            total += margin.share
        assert total / (86400 / window_s) > 0.98, seed


def test_after_days_less_is_still_tried_every_few_hours() -> None:
    margin, falls = Margin(), []
    for window in range(3 * 8640):
        before = margin.share
        margin = observed(margin, 1.0 if before < 0.95 else 0.5, 80, 10, GOAL, 10.0 * window, ANSWER_S)
        if margin.share < before:
            falls.append(10.0 * window)
    tries = [later - sooner for sooner, later in itertools.pairwise(falls) if later - sooner > 60]
    assert 3600 < tries[-1] <= max(tries) < 3 * 3600


def test_a_look_after_a_long_gap_is_taken_for_a_few_looks() -> None:
    margin = after(0.8, WAITS + 3)
    assert observed(margin, 0.5, 20, 600, GOAL, 1000, ANSWER_S).share > margin.share * 0.94
