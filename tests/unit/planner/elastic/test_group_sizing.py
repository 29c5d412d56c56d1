"""Instances for a load: the three conditions by hand, and beside a group that the manager's own code plans."""

import math
from dataclasses import astuple
from random import Random

import pytest
from bench.elastic.simulation import Asked as Request
from bench.elastic.simulation import Group, Outcome

from pointsman.planner.core.elastic.sizing import GroupLoad, GroupModel, StepTime
from pointsman.planner.core.types import Objectives
from pointsman.planner.simulator.elastic.times import LinearTimes
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime, extrapolate
from pointsman.serving.elastic.step_sums import StepSums
from pointsman.serving.elastic.types import Settings
from pointsman.serving.objectives import Objectives as Aims

ONE = PrefillTime(0.005, 6e-5, 1e-9)
LATENCY = LatencyModel({degree: extrapolate(ONE, degree, 0.9, 0.002) for degree in (1, 2, 4)})
TIMES = LinearTimes(LATENCY, step_s=0.012, step_s_per_request=2e-4, member_s=0.001, move_s_per_token=0.0)
SLOTS = 60_000


def step_time(*batches: int) -> StepTime:
    found = StepTime()
    for batch in batches:
        found = found.observe(StepSums.of_iteration(1, batch, 0.012 + 2e-4 * batch))
    return found


def model(goals: Objectives, serving: int = 1, step: StepTime | None = None, slots: float = SLOTS) -> GroupModel:
    return GroupModel(LATENCY, 4, step or step_time(1, 4, 16, 32), slots, serving, goals)


def test_a_line_is_found_through_steps_of_different_batches_and_none_is_guessed_from_equal_ones() -> None:
    fixed, each = step_time(1, 4, 16, 32).line or (0, 0)
    assert [fixed, each] == pytest.approx([0.012, 2e-4])
    assert step_time(1, 4, 16, 32).batch(0.02) == pytest.approx(40)
    assert step_time(8, 8).line == pytest.approx((0.0, (0.012 + 8 * 2e-4) / 8))
    assert StepTime().line is None


def test_an_iteration_of_several_instances_counts_as_a_step_of_each() -> None:
    sums = StepSums.of_iteration(2, 6, 0.05)
    assert astuple(sums) == pytest.approx((2, 6, 0.1, 18, 0.3))


def test_an_idle_group_forgets_nothing_of_its_steps() -> None:
    known = step_time(1, 16)
    assert known.observe(StepSums(0, 0, 0, 0, 0)) == known


def test_each_of_the_three_conditions_asks_for_instances_by_itself() -> None:
    goals = Objectives(ttft_ms=2000, tpot_ms=40, attainment=0.95)
    prompts = GroupLoad(20.0, ((2000.0, 1.0),), 1.0)  # 0.129 s each: 2.6 instances of prefills, no decoding
    found = model(goals).needed(prompts, 32)
    assert found.instances == 3
    assert math.isclose(found.tokens, 1.0)
    tokens = GroupLoad(60.0, ((10.0, 1.0),), 500.0)
    assert model(goals).needed(tokens, 64).instances > 8  # 60 x 499 x 40 ms = 1 198 at once, about 128 an instance
    memory = GroupLoad(1.0, ((9000.0, 1.0),), 300.0)
    assert (
        model(goals, slots=20_000).needed(memory, 64).instances
        > model(goals, slots=200_000).needed(memory, 64).instances
    )


def test_a_prompt_that_fits_into_no_number_of_instances_is_never_in_time() -> None:
    load, goals = GroupLoad(0.1, ((100.0, 0.5), (500_000.0, 0.5)), 10.0), Objectives(ttft_ms=1e6, tpot_ms=100)
    assert model(goals).expected(load, 4).attainment <= 0.5


def test_a_long_prompt_is_counted_on_as_many_instances_as_its_objective_needs() -> None:
    load = GroupLoad(0.2, ((20_000.0, 1.0),), 1.0)  # 1.6 s alone, 0.9 s on two, 0.46 s on four
    for ttft_ms, instances in ((2000, 1), (1000, 2), (600, 4)):
        goals = Objectives(ttft_ms=ttft_ms, tpot_ms=1000, attainment=0.6)
        assert model(goals).needed(load, 8).instances == instances


def test_instances_that_serve_are_enough_for_decoding_while_no_step_shows_the_contrary() -> None:
    load, goals = GroupLoad(5.0, ((10.0, 1.0),), 100.0), Objectives(ttft_ms=1000, tpot_ms=20)
    unproved = step_time(1, 1)  # 12.2 ms with one request: with two, nobody knows
    assert model(goals, 4, unproved).expected(load, 4).tokens == 1.0
    assert model(goals, 4, unproved).expected(load, 3).tokens < 0.95


@pytest.mark.parametrize("rate", [2.0, 5.0])
def test_the_number_is_the_least_with_which_the_managers_own_rounds_keep_the_objectives(rate: float) -> None:
    goals = Objectives(ttft_ms=1500, tpot_ms=40, attainment=0.9, ttft_ms_per_prompt_token=0.1)
    asked = drawn(rate, 300)
    lengths: dict[float, float] = {}
    for each in asked:
        bucket = each.prompt_tokens // 500 * 500 + 250.0
        lengths[bucket] = lengths.get(bucket, 0.0) + 1 / len(asked)
    needed = model(goals).needed(GroupLoad(rate, tuple(lengths.items()), 160.0), 16).instances
    assert served(asked, goals, needed) >= 0.9
    if needed > 1:
        assert served(asked, goals, needed - 1) < 0.9


def test_one_instance_serves_more_requests_in_time_when_its_manager_knows_their_objectives() -> None:
    goals = Objectives(ttft_ms=1500, tpot_ms=40, ttft_ms_per_prompt_token=0.1)
    asked = drawn(1.0, 300)
    without, knowing = served(asked, goals, 1, knows=False), served(asked, goals, 1)
    print(without, knowing)
    assert without < 0.5
    assert knowing > 0.97


def test_prompts_do_not_wait_for_decoding_that_one_of_two_instances_could_do() -> None:
    goals = Objectives(ttft_ms=1500, tpot_ms=40, ttft_ms_per_prompt_token=0.1)
    assert served(drawn(2.0, 300), goals, 2, knows=False) > 0.99


def drawn(rate: float, count: int) -> list[Request]:
    """A tenth of the prompts is long; Poisson arrivals."""
    rng, at_s, found = Random(1), 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate)
        prompt = rng.randrange(8000, 20_000) if rng.random() < 0.1 else rng.randrange(100, 2000)
        found.append(Request(at_s, prompt, rng.randrange(20, 300)))
    return found


def served(asked: list[Request], goals: Objectives, instances: int, *, knows: bool = True) -> float:
    """The share within both objectives; ``knows``: whether the manager knows them."""
    aims = None if not knows else Aims(goals.ttft_ms / 1e3, goals.tpot_ms / 1e3, goals.ttft_ms_per_prompt_token / 1e3)
    domains = tuple(number // 4 for number in range(instances))
    outcomes = Group(domains, SLOTS, LATENCY, TIMES, Settings(objectives=aims)).outcomes(asked)
    return sum(in_time(each, goals) for each in outcomes) / len(asked)


def in_time(outcome: Outcome, goals: Objectives) -> bool:
    asked = outcome.asked
    ttft_ms = (outcome.first_s - asked.at_s) * 1e3
    tpot_ms = (outcome.end_s - outcome.first_s) / max(1, asked.output_tokens - 1) * 1e3
    return ttft_ms <= goals.ttft_for(asked.prompt_tokens) and tpot_ms <= goals.tpot_ms


def test_of_numbers_that_all_miss_the_objectives_by_far_the_best_is_needed() -> None:
    """A hundredth of a small attainment is small: instances that keep twice as many requests are no next to nothing."""
    goals, load = Objectives(ttft_ms=2000, tpot_ms=15, attainment=0.99), GroupLoad(60.0, ((10.0, 1.0),), 500.0)
    kept = [model(goals).expected(load, instances).attainment for instances in (10, 27, 28)]
    assert kept[0] < kept[1] < kept[2] / 5 < 0.01
    assert model(goals).needed(load, 28).instances == 28


def test_a_prompt_takes_the_time_of_all_instances_that_compute_it() -> None:
    """By hand: 20 000 tokens take 0.90 s on each of two instances; 1.1 a second are 0.99 of two, and too many."""
    goals = Objectives(ttft_ms=1000, tpot_ms=1000)
    assert model(goals).expected(GroupLoad(1.0, ((20_000.0, 1.0),), 1.0), 2).prompts > 0
    assert model(goals).expected(GroupLoad(1.2, ((20_000.0, 1.0),), 1.0), 2).overloaded


def test_prompts_leave_less_time_for_tokens() -> None:
    """By hand: half of the time for prompts halves the step to 10 ms, in which no request fits: any takes 12 ms."""
    goals = Objectives(ttft_ms=10_000, tpot_ms=20)
    half = GroupLoad(0.5 / ONE.seconds(5000, 5000 * 5000), ((5000.0, 1.0),), 100.0)
    assert model(goals).expected(half, 1).tokens < 0.05
    assert model(goals).expected(half, 4).tokens > 0.99


def test_a_request_must_find_room_beside_the_others() -> None:
    """By hand: 1 request/s of 1 000 tokens and 10 answers of 100 ms hold 900 on the mean, of 1 500 slots: it does not
    fit beside another one in most of the time."""
    goals = Objectives(ttft_ms=10_000, tpot_ms=100)
    load = GroupLoad(1.0, ((1000.0, 1.0),), 10.0)
    assert model(goals, slots=1500).expected(load, 1).memory < 0.5
    assert model(goals, slots=6000).expected(load, 1).memory > 0.99
