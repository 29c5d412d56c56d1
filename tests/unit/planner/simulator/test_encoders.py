"""Images before prompts: what encode workers do, what they cost, and how the planner answers with them."""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from pointsman.planner.core.types import Bounds, Decision, Observation, Reason, RoutingNumbers, WorkerCondition
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.budget import Budget
from pointsman.planner.simulator.encoders import Encoders
from pointsman.planner.simulator.events import Events
from pointsman.planner.simulator.request import Request
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import (
    EncodePool,
    Faults,
    Leads,
    Outcome,
    Result,
    Simulation,
    Trace,
    TransitionRecord,
    Truth,
)
from pointsman.serving.flow_control import FlowBounds
from unit.planner.simulator.scenes import ENGINE, POLICY, poisson, scripted, static, stay

IMAGES = replace(POLICY, encode=Bounds(1, 8))


def with_images(trace: Trace, most: int, seed: int = 0, least: int = 0) -> Trace:
    return replace(trace, images=np.random.default_rng(seed).integers(least, most + 1, len(trace)))


def moved(result: Result) -> list[tuple[float, int]]:
    """When the encode pool was scaled, and to what."""
    decided = [(record.at_s, record.decision) for record in result.decisions]
    return [(at_s, decision.encode or 0) for at_s, decision in decided if decision.changes_encode]


def encode(replicas: int) -> Callable[[Observation], Decision]:
    """A decision for so many that encode."""
    return lambda seen: replace(stay(seen), reason=Reason.ENCODE_SHORT, encode=replicas, changes_encode=True)


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_images_are_begun_in_order_by_whoever_is_free_and_requests_go_on_with_their_last_one(workers: int) -> None:
    draw, now_s, free = Random(workers), 0.0, [0.0] * workers
    arrivals = [(now_s := now_s + draw.expovariate(workers / 0.5), draw.randint(1, 6)) for _ in range(2000)]
    expected = []
    for at_s, images in arrivals:
        ends_s = []
        for _ in range(images):
            ends_s.append(max(at_s, heapq.heappop(free)) + 0.12)
            heapq.heappush(free, ends_s[-1])
        expected.append(max(ends_s))
    events, ended = Events(), {}
    simulation, pool = Simulation(ENGINE, 1, 1, truth=Truth(encode_kappa=1.2)), EncodePool(100.0, workers)
    encoders = Encoders(
        simulation, pool, events, Budget(16), Random(0), lambda request, at_s: ended.update({request.index: at_s})
    )
    for index, (at_s, images) in enumerate(arrivals):
        events.at(at_s, lambda it: encoders.add(it[0], it[1], events.now_s), (Request(index, 1, 1, at_s), images))
    while events.next_s < math.inf:
        events.step()
    assert [ended[index] for index in range(len(arrivals))] == pytest.approx(expected)
    assert encoders.waiting == 0


def test_a_first_token_waits_for_the_images_and_more_workers_share_them() -> None:
    one = Trace("one", np.array([1.0]), np.array([1000]), np.array([20]), images=np.array([3]))
    plain = simulate(replace(one, images=None), Simulation(ENGINE, 1, 1), POLICY, static()).ttft_s[0]
    for workers, steps in ((1, 3), (2, 2), (3, 1), (6, 1)):
        service = Simulation(ENGINE, 1, 1, encode=EncodePool(200.0, workers))
        assert simulate(one, service, IMAGES, static()).ttft_s[0] == pytest.approx(plain + 0.2 * steps)


def test_what_flow_control_holds_is_counted_from_when_the_images_were_encoded() -> None:
    two = Trace("two", np.array([0.0, 0.3]), np.array([500] * 2), np.array([100] * 2), images=np.array([1, 1]))
    routing = RoutingNumbers(0, 32, FlowBounds(None, 1, None))
    service = Simulation(ENGINE, 1, 1, encode=EncodePool(5000.0, 2), routing=routing)
    plain = simulate(replace(two, images=None), service, POLICY, static())
    shown = simulate(two, service, IMAGES, static())
    assert plain.held_s[1] > 0
    assert shown.held_s == pytest.approx(plain.held_s)
    assert shown.ttft_s == pytest.approx(plain.ttft_s + 5.0)


def test_an_idle_pool_changes_no_request_and_is_paid_for() -> None:
    trace, service = poisson(8.0, 60, 3000, 100), Simulation(ENGINE, 2, 2, truth=Truth(noise_sigma=0.1))
    plain = simulate(trace, service, POLICY, ours())
    beside = simulate(
        trace, replace(service, encode=EncodePool(100.0, 2, gpus=2)), replace(IMAGES, max_gpus=20), ours()
    )
    for name in ("outcome", "prefilled", "ttft_s", "tpot_s", "end_s", "held_s"):
        assert np.array_equal(getattr(plain, name), getattr(beside, name), equal_nan=True), name
    assert beside.gpu_hours == pytest.approx(plain.gpu_hours + 4 * plain.ended_s / 3600)
    assert beside.peak_gpus == plain.peak_gpus + 4
    assert not moved(beside)


def test_workers_start_with_their_lead_end_their_image_before_they_leave_and_may_be_taken_back() -> None:
    trace = with_images(poisson(4.0, 200, 500, 50), 1, least=1)
    service = Simulation(
        ENGINE, 1, 1, encode=EncodePool(5000.0, 1), leads=Leads(start_s=30.0, reaction_s=0.5), drain_s=5000.0
    )
    acts = {10.0: encode(4), 60.0: encode(2), 62.0: encode(4), 100.0: encode(1), 120.0: encode(20)}
    result = simulate(trace, service, IMAGES, scripted(acts))
    records = [change for change in result.transitions if change.role is None]

    def during(begin_s: float, end_s: float) -> list[TransitionRecord]:
        return [change for change in records if begin_s <= change.began_s < end_s]

    starts = during(10, 60)
    assert [(change.kind, change.ended_s - change.began_s) for change in starts] == [("start", 30.0)] * 3
    assert [change.kind for change in during(60, 62)] == ["stop"] * 2
    assert [(change.kind, change.ended_s - change.began_s) for change in during(62.5, 99)] == [("start", 0.0)] * 2
    left = during(100, 110)
    assert len(left) == 3
    assert all(0 < change.ended_s - change.began_s <= 5.0 for change in left)
    refused = [record.refused for record in result.decisions if record.refused]
    assert refused == ["Encode 20 is not within 1 to 8"]
    assert (result.outcome == Outcome.COMPLETED).all()


def test_who_encodes_starts_when_the_budget_has_room_and_is_billed_from_there_to_its_end() -> None:
    events, budget = Events(), Budget(4)
    simulation = Simulation(ENGINE, 1, 1, leads=Leads(start_s=30.0))
    encoders = Encoders(simulation, EncodePool(100.0, 1, gpus=1), events, budget, Random(0), lambda *_: None)
    budget.take(2)  # of others
    events.at(10.0, encoders.scale, 4)
    events.at(50.0, budget.give_back, 1)
    events.at(100.0, encoders.scale, 1)
    while events.next_s < math.inf:
        events.step()
    begun = [(change.kind, change.began_s, change.ended_s) for change in encoders.transitions()]
    assert begun == [("start", 10.0, 40.0), ("start", 50.0, 80.0), ("stop", 100.0, 100.0), ("stop", 100.0, 100.0)]
    assert budget.peak == 4
    assert encoders.gpu_hours(200.0) * 3600 == pytest.approx(200 + 90 + 50)


def test_images_without_anybody_who_encodes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"requests with images, so simulation\.encode must be set"):
        simulate(with_images(poisson(2.0, 5, 100, 10), 2), Simulation(ENGINE, 1, 1), POLICY, static())


@pytest.mark.parametrize("seed", range(2))
def test_every_request_with_images_ends_exactly_once_whatever_fails(seed: int) -> None:
    trace = with_images(poisson(10.0, 120, 2500, 120, seed=seed), 4, seed)
    faults = Faults(0.3, 0.3, crashes_per_worker_hour=60, metric_dropout_share=0.1, metric_outages_s=((40.0, 60.0),))
    leads = Leads(start_s=10, start_spread=0.5, drain_timeout_s=2.0)
    service = Simulation(
        ENGINE, 3, 3, encode=EncodePool(60.0, 3), leads=leads, faults=faults, truth=Truth(noise_sigma=0.1), seed=seed
    )
    ran, again = (simulate(trace, service, IMAGES, ours()) for _ in range(2))
    assert (ran.outcome == Outcome.COMPLETED).all()
    assert ran.timeline == again.timeline
    assert np.array_equal(ran.end_s, again.end_s)
    assert ran.peak_gpus <= IMAGES.max_gpus


SERVICE = Simulation(
    ENGINE, 2, 2, encode=EncodePool(100.0, 2), truth=Truth(1.1, 1.1, 0.08, encode_kappa=1.3),
    leads=Leads(start_s=30.0, start_spread=0.1),
)  # fmt: skip
LOAD = "rate=5,later_rate=5,prompt_tokens=1000,later_prompt_tokens=1000,output_tokens=150,later_output_tokens=150"


def test_a_step_in_images_is_answered_by_encode_workers_alone() -> None:
    """Five requests a second throughout; first a fifth of them has images, then all."""
    shape = f"mixshift:{LOAD},at_s=420,duration_s=560,images=3,image_share=0.2,later_image_share=1"
    trace = generate(named_shape(shape), 1)
    policy = replace(IMAGES, max_gpus=16)
    result = simulate(trace, SERVICE, policy, ours())
    calm = [record.decision for record in result.decisions if record.at_s > 380]
    assert len({(decision.prefill, decision.decode) for decision in calm}) == 1
    moves = [move for move in moved(result) if move[0] > 420]
    assert moves and moves[0][0] <= 430, moves
    assert all(after >= before for (_, before), (_, after) in itertools.pairwise(moves))
    late = trace.arrival_s > 420 + 30 + 60
    assert result.ttft_met[late].mean() > 0.95
    fixed = simulate(trace, SERVICE, policy, static())
    assert fixed.ttft_met[late].mean() < 0.5  # without an answer most are late
    # 130 ms, of which nobody was told
    numbers = dict(next(d for d in reversed(calm) if d.inputs).inputs)
    assert numbers["encodeMilliseconds"] == pytest.approx(130, rel=0.05)


def test_the_same_step_in_requests_moves_all_pools_within_one_budget() -> None:
    trace = generate(named_shape("step:low=2,high=14,up_s=60,down_s=200,duration_s=260,images=3"), 2)
    policy = replace(IMAGES, max_gpus=10)
    result = simulate(trace, replace(SERVICE, prefill_workers=1, decode_workers=1), policy, ours())
    assert result.peak_gpus <= 10
    for record in result.decisions:
        decision = record.decision
        assert not record.refused
        assert decision.prefill + decision.decode + (decision.encode or 0) <= 10
    grown = max(point.encode_active for point in result.timeline)
    others = max(point.prefill_active + point.decode_active for point in result.timeline)
    assert grown > 2
    assert others > 2


@pytest.mark.parametrize("seed", [1, 2])
def test_at_a_constant_load_the_pool_is_not_taken_to_and_fro(seed: int) -> None:
    trace = generate(named_shape("steady:rate=6,images=4,prompt_tokens=500,output_tokens=60,duration_s=600"), seed)
    service = replace(SERVICE, prefill_workers=1, decode_workers=1, encode=EncodePool(90.0, 4), seed=seed)
    result = simulate(trace, service, replace(IMAGES, max_gpus=16, encode=Bounds(1, 14)), ours())
    assert result.attainment > 0.97
    assert result.reversals(2 * 30.0) == 0


def test_a_late_or_lost_reading_says_nothing_of_images() -> None:
    seen: list[Observation] = []
    faults = Faults(metric_delay_s=6.0, metric_outages_s=((20.0, 30.0),))
    trace = with_images(poisson(4.0, 40, 500, 50), 2)
    simulate(trace, replace(SERVICE, faults=faults), IMAGES, scripted({}, seen))
    assert all(look.encode is None for look in seen if look.load is None)
    assert any(look.load is None for look in seen)
    known = [look.encode for look in seen if look.encode is not None]
    assert sum(load.requests_per_s for load in known) > 0
    assert {len(look.encode_workers) for look in seen} == {2}
    assert {worker.condition for look in seen for worker in look.encode_workers} == {WorkerCondition.ACTIVE}


def test_a_planner_that_scales_what_is_not_there_is_told_so() -> None:
    result = simulate(poisson(2.0, 10, 100, 10), Simulation(ENGINE, 1, 1), POLICY, scripted({2.0: encode(2)}))
    assert [record.refused for record in result.decisions if record.refused] == ["there is no encode pool"]
