"""An elastic group in simulated time: its requests, its instances, and what the planner sees of them."""

import math
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pointsman.api.protocol.metrics import ELASTIC_DECODE_SUMS, ELASTIC_SLOTS, GATEWAY_ENDED, GATEWAY_PROMPT_TOKENS
from pointsman.planner.core.elastic.decide import GroupState, decide
from pointsman.planner.core.elastic.observe import attainment_at_most
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.metrics import scrape_pair
from pointsman.planner.core.metrics.observe import Reading
from pointsman.planner.core.types import Bounds, Objectives, Policy, Reason
from pointsman.planner.exposition import parse
from pointsman.planner.simulator.elastic.pages import manager_page
from pointsman.planner.simulator.elastic.planners import GROUP_PLANNERS
from pointsman.planner.simulator.elastic.serving import DEATH_NOTICED_S, Serving, Zeros
from pointsman.planner.simulator.elastic.simulate import simulate_group
from pointsman.planner.simulator.elastic.times import LinearTimes
from pointsman.planner.simulator.elastic.types import (
    GroupFaults,
    GroupLeads,
    GroupPlanner,
    GroupResult,
    GroupSimulation,
    Instances,
)
from pointsman.planner.simulator.events import Events
from pointsman.planner.simulator.pages import GatewayPage
from pointsman.planner.simulator.types import Outcome, Trace
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime, extrapolate
from pointsman.serving.elastic.requests import Slots, Token
from pointsman.serving.elastic.step_sums import TERMS
from pointsman.serving.elastic.types import Settings
from pointsman.workers.elastic.manager.metrics import ManagerMetrics

ONE = PrefillTime(0.02, 2.4e-4, 4e-9)
LATENCY = LatencyModel({degree: extrapolate(ONE, degree, 0.9, 0.002) for degree in (1, 2, 3, 4)})


TIMES = LinearTimes(LATENCY, step_s=0.03, step_s_per_request=8e-4, member_s=0.002, move_s_per_token=1e-6)

SIMULATION = GroupSimulation(
    instances=Instances(TIMES, LATENCY, slots=60_000, gpus=2),
    ready=1,
    bounds=Bounds(1, 6),
    max_degree=4,
    leads=GroupLeads(start_s=20.0),
    seed=1,
)
POLICY = Policy(
    objectives=Objectives(ttft_ms=3000, tpot_ms=100, attainment=0.9, ttft_ms_per_prompt_token=0.4),
    max_gpus=12,
    interval_s=2.5,
    scale_in_stabilization_s=30.0,
    start_s=20.0,
)


def trace(*parts: tuple[float, float], seed: int = 1, prompt: range = range(200, 3000)) -> Trace:
    """Poisson arrivals; ``parts``: (seconds, requests a second) one after another."""
    rng, begins_s, rows = Random(seed), 0.0, []
    for seconds, rate in parts:
        at_s = begins_s + rng.expovariate(rate)
        while at_s < begins_s + seconds:
            rows.append((at_s, rng.choice(prompt), rng.randrange(10, 60)))
            at_s += rng.expovariate(rate)
        begins_s += seconds
    columns = list(zip(*rows, strict=True))
    return Trace("drawn", np.array(columns[0]), np.array(columns[1]), np.array(columns[2]))


RISE_AND_FALL = trace((40, 0.3), (50, 2.2), (80, 0.3))


@cache
def usual(planner: str, ready: int = 1) -> GroupResult:
    """Of the rise and fall, with what several tests look at."""
    return run(planner=planner, ready=ready)


def run(of: Trace = RISE_AND_FALL, planner: str = "pointsman", **changes: Any) -> GroupResult:
    return simulate_group(of, replace(SIMULATION, **changes), POLICY, GROUP_PLANNERS[planner]())


def test_a_request_alone_takes_its_prefill_and_its_steps() -> None:
    alone = Trace("alone", np.array([1.0]), np.array([2000]), np.array([11]))
    done = run(alone, "static")
    first_s = LATENCY.by_degree[1].seconds(2000, 2000 * 2000)
    assert done.ttft_s[0] == pytest.approx(first_s)
    assert done.end_s[0] == pytest.approx(1.0 + first_s + 10 * 0.0308)
    assert done.tpot_s[0] == pytest.approx(0.0308)


def test_a_long_prompt_is_computed_by_several_instances_and_nothing_is_moved_for_it() -> None:
    alone = Trace("alone", np.array([1.0]), np.array([40_000]), np.array([40]))
    done = run(alone, "static", ready=4)
    assert done.ttft_s[0] == pytest.approx(LATENCY.by_degree[4].seconds(40_000, 40_000**2))
    assert done.iterations["prefill", 4] == 1
    assert not done.moved_tokens


def test_the_planner_starts_instances_for_a_rise_and_ends_them_after_it() -> None:
    done, few, many = usual("pointsman"), usual("static"), usual("static", 6)
    largest = max(each.serving for each in done.timeline)
    rise = next(each for each in done.decisions if each.decision.instances > 1)
    assert rise.decision.reason is Reason.INSTANCES_SHORT
    assert 40 < rise.at_s < 55
    assert 2 <= largest <= 6
    # An instance that is decided on serves when it has started, no earlier.
    serving = next(each.at_s for each in done.timeline if each.serving > 1)
    assert serving - rise.at_s == pytest.approx(20, abs=3 * POLICY.interval_s)
    assert done.timeline[-1].serving < largest
    assert few.attainment < done.attainment
    assert done.gpu_hours < many.gpu_hours


def one_less(prompt_tokens: int) -> GroupResult:
    """Two requests on two instances, of which one is ended at 20 s."""

    def decide_one_less(state: None, seen: GroupObservation, *_: object) -> tuple[None, GroupDecision]:
        wanted = 1 if seen.seen.at_s > 20 else seen.desired
        return None, GroupDecision(Reason.SPARE_CAPACITY, "", wanted, changes_layout=wanted != seen.desired)

    two = Trace("two", np.array([1.0, 1.1]), np.array([prompt_tokens] * 2), np.array([600, 600]))
    planner = GroupPlanner("one less", decide_one_less, lambda: None)
    simulation = replace(SIMULATION, ready=2, max_degree=2, leads=GroupLeads(drain_timeout_s=5.0))
    return simulate_group(two, simulation, POLICY, planner)


def test_an_instance_that_is_ended_hands_its_kv_over_and_no_request_is_computed_again() -> None:
    done = one_less(10_000)
    (end,) = (each for each in done.transitions if each.kind == "stop")
    assert end.succeeded
    assert 0 < end.ended_s - end.began_s < 5
    assert 0 < done.moved_tokens["drain"] < 12_000
    assert done.recomputed == 0
    assert (done.outcome == Outcome.COMPLETED).all()


def test_what_an_instance_cannot_hand_over_in_time_is_computed_again() -> None:
    done = one_less(50_000)
    (end,) = (each for each in done.transitions if each.kind == "stop")
    assert not end.succeeded
    assert end.ended_s - end.began_s == pytest.approx(5.0)
    assert done.recomputed >= 1
    assert (done.outcome == Outcome.COMPLETED).all()


def test_every_request_ends_once_whatever_breaks() -> None:
    faults = GroupFaults(
        start_failure_share=0.3, crashes_per_instance_hour=120, metric_dropout_share=0.2, metric_outages_s=((60, 80),)
    )
    recomputed = 0
    for seed in range(3):
        done = run(faults=faults, seed=seed, noise_sigma=0.1, gateways=2, streaming_share=0.5)
        assert (done.outcome == Outcome.COMPLETED).all(), seed
        assert any(each.kind == "crash" for each in done.transitions), seed
        assert (done.end_s >= done.arrival_s + done.ttft_s).all(), seed
        most = SIMULATION.bounds.most * SIMULATION.instances.gpus
        assert done.peak_gpus <= most, seed
        assert done.gpu_hours <= most * done.ended_s / 3600, seed
        recomputed += done.recomputed
    assert recomputed > 0


def test_the_same_seed_gives_the_same_result() -> None:
    faults = GroupFaults(crashes_per_instance_hour=40, metric_dropout_share=0.2)
    first, second = (run(faults=faults, seed=3, noise_sigma=0.1) for _ in range(2))
    assert np.array_equal(first.end_s, second.end_s)
    assert first.decisions == second.decisions
    assert first.timeline == second.timeline
    other = run(faults=faults, seed=4, noise_sigma=0.1)
    assert not np.array_equal(first.end_s, other.end_s)


def test_instances_cost_gpus_from_their_start_to_their_end() -> None:
    done = usual("static", 6)
    assert done.gpu_hours == pytest.approx(6 * 2 * done.ended_s / 3600)
    assert done.peak_gpus == 12


def observations(**changes: Any) -> list[GroupObservation]:
    seen: list[GroupObservation] = []

    def look(state: Any, observation: GroupObservation, *rest: Any) -> tuple[Any, GroupDecision]:
        seen.append(observation)
        return decide(state, observation, *rest)

    simulate_group(RISE_AND_FALL, replace(SIMULATION, **changes), POLICY, GroupPlanner("observer", look, GroupState))
    return seen


def test_the_planner_sees_what_pages_show_and_no_exact_counts() -> None:
    seen = observations()
    assert seen[0].seen.load is None  # a rate takes two pages
    load = seen[8].seen.load
    assert load is not None
    counted = np.count_nonzero((RISE_AND_FALL.arrival_s > 20) & (RISE_AND_FALL.arrival_s <= 22.5))
    assert load.arrivals_per_s * 2.5 == pytest.approx(counted)
    # Lengths are those of the gateway's buckets.
    values = {value for each in seen if each.seen.load for value, _ in each.seen.load.prompt_length_shares}
    assert values <= {
        math.sqrt(low * high) for low, high in ((128, 256), (256, 512), (512, 1024), (1024, 2048), (2048, 4096))
    }
    assert any(each.manager and each.manager.steps.steps > 0 for each in seen)


@pytest.mark.parametrize("tokens", [150_000, 400_000, 900_000])
def test_the_longest_prompts_are_seen_about_as_long_as_they_are(tokens: int) -> None:
    page = GatewayPage(None)
    before = page.page(held=0)
    page.accepted(tokens)
    ((seen, share),) = scrape_pair.observed(before, page.page(held=0), GATEWAY_PROMPT_TOKENS.name).shares()
    assert share == 1
    assert 0.7 < seen / tokens < 1.5


def test_gateways_do_not_see_the_first_token_of_clients_that_do_not_stream() -> None:
    seen = observations(streaming_share=0.0)
    assert all(each.seen.service is None or each.seen.service.ttft_attainment is None for each in seen)
    assert any(each.seen.load and each.seen.load.output_tokens for each in seen)


def test_old_pages_stand_for_those_that_cannot_be_read_until_they_are_stale() -> None:
    outage = GroupFaults(metric_outages_s=((45, 75),))
    out = [each.seen for each in observations(faults=outage) if 45 <= each.seen.at_s < 75]
    assert all(each.old_pages == 2 for each in out)  # of the gateway and the manager
    assert [each.age_s for each in out] == pytest.approx([2.5 * (1 + number) for number in range(len(out))])
    assert len({each.load for each in out}) == 1
    reasons = {each.at_s: each.decision.reason for each in run(faults=outage).decisions}
    stale_s = min(at_s for at_s, reason in reasons.items() if at_s > 45 and reason is Reason.STALE_METRICS)
    assert stale_s == pytest.approx(42.5 + POLICY.stale_after_s + 2.5)


def test_requests_and_steps_are_counted_once_though_pages_are_lost() -> None:
    def counted(faults: GroupFaults) -> tuple[float, float]:
        seen = observations(faults=faults)
        requests = sum(each.seen.load.arrivals_per_s * each.seen.window_s for each in seen if each.seen.load)
        return requests, sum(each.manager.steps.steps for each in seen if each.manager)

    requests, steps = counted(GroupFaults())
    of_lost = counted(GroupFaults(metric_dropout_share=0.2))
    assert of_lost[0] == pytest.approx(requests, rel=0.1)
    assert of_lost[1] == pytest.approx(steps, rel=0.2), "other decisions, other batches"


def test_a_long_prompt_in_time_is_not_taken_to_be_late_beside_short_ones() -> None:
    grows = Objectives(ttft_ms=2000, tpot_ms=100, ttft_ms_per_prompt_token=0.3)
    page = GatewayPage(None)
    before = page.page(held=0)
    for tokens, ttft_s in (*[(500, 0.5)] * 9, (50_000, 10.0)):  # 17 s for the long one
        page.accepted(tokens)
        page.got_first_token(ttft_s, tokens, streamed=True)
    ttft, _ = attainment_at_most([Reading(before, page.page(held=0), 2.5)], grows)
    assert ttft == 1.0


def test_a_degree_is_used_when_it_was_measured_on_an_idle_group() -> None:
    seen = observations()
    assert [list(each.latency.by_degree) for each in seen[:5]][-1] == [1]
    largest = max(each.serving for each in seen)
    assert list(seen[-1].latency.by_degree)[-1] >= min(2, largest)


def test_a_plan_beyond_the_bounds_or_the_budget_is_refused() -> None:
    def greedy(state: None, seen: GroupObservation, *_: object) -> tuple[None, GroupDecision]:
        return None, GroupDecision(Reason.INSTANCES_SHORT, "", 9, changes_layout=True)

    planner = GroupPlanner("greedy", greedy, lambda: None)
    short = trace((10, 0.5))
    for gpus, why in ((12, "budget.maxGpus"), (100, "spec.instances")):
        done = simulate_group(short, SIMULATION, replace(POLICY, max_gpus=gpus), planner)
        assert why in done.decisions[0].refused
        assert done.peak_gpus == 2


def test_a_request_that_fits_into_no_number_of_instances_is_refused() -> None:
    large = Trace("large", np.array([1.0, 2.0]), np.array([400_000, 500]), np.array([10, 10]))
    done = run(large, "static")
    assert list(done.outcome) == [Outcome.REFUSED, Outcome.COMPLETED]


def test_gateways_count_a_request_that_the_manager_refuses_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[GatewayPage] = []

    class Kept(GatewayPage):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            pages.append(self)

    monkeypatch.setattr("pointsman.planner.simulator.elastic.simulate.GatewayPage", Kept)
    run(Trace("large", np.array([1.0, 2.0]), np.array([400_000, 500]), np.array([10, 10])), "static")
    ended = pages[0].page(held=0)[GATEWAY_ENDED.name]
    assert sum(ended.values()) == 2, "both requests that arrived"
    assert sum(count for labels, count in ended.items() if ("tpot", "failed") in labels) == 1


def test_the_others_of_an_iteration_notice_a_death_and_compute_the_prompt_again() -> None:
    events, ends = Events(), list[Token]()
    serving = Serving(Settings(), TIMES, LATENCY, events, token=ends.append, refused=lambda _: None)
    for name in ("g-0", "g-1"):
        serving.join(name, 60_000, 0)
    serving.arrive("r", 40_000, 1)
    assert serving.iterations == {("prefill", 2): 1}
    events.at(1.0, serving.leave, "g-1")
    while events.next_s < math.inf and not ends:
        events.step()
    assert serving.recomputed == 1
    assert serving.iterations == {("prefill", 2): 1, ("prefill", 1): 1}
    assert events.now_s == pytest.approx(1.0 + DEATH_NOTICED_S + LATENCY.by_degree[1].seconds(40_000, 40_000**2))


def test_the_managers_page_has_the_samples_of_the_real_one() -> None:
    registry = CollectorRegistry()
    real = ManagerMetrics(registry)
    for state in ("total", "free"):
        real.slots.labels(state).set(1)
    shown = parse(generate_latest(registry).decode())
    page = manager_page(dict.fromkeys(TERMS, 0.0), Slots(2, 1), 3)
    for metric in (ELASTIC_DECODE_SUMS, ELASTIC_SLOTS):
        assert set(page[metric.name]) == set(shown[metric.name])


def test_a_prompt_of_equal_tokens_is_a_sequence_without_memory() -> None:
    prompt = Zeros(5)
    assert (len(prompt), prompt[-1], tuple(prompt), tuple(prompt[1:3])) == (5, 0, (0,) * 5, (0, 0))
    with pytest.raises(IndexError):
        prompt[5]
