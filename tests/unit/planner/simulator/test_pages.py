"""The simulator's pages are those of real gateways and workers, as far as the planner reads them."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.names import Role
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.planner.core.metrics.observe import FAMILIES, Reading, Seen, observation
from pointsman.planner.core.metrics.scrape_pair import Page
from pointsman.planner.core.types import Objectives, Observation, RoutingNumbers, Worker, WorkerCondition
from pointsman.planner.exposition import parse
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.pages import GatewayPage, WorkerGauges, WorkerPage, as_text
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Faults, Simulation
from pointsman.serving.flow_control import FlowBounds
from pointsman.serving.objectives import Objectives as GatewayObjectives
from pointsman.workers.metrics import WorkerMetrics
from unit.planner.simulator.scenes import ENGINE, POLICY, poisson, scripted, static

CAPTURES = Path(__file__).parents[1] / "captures"
OBJECTIVES = Objectives(ttft_ms=1000, tpot_ms=50)
NOT_SIMULATED = {
    named.WORKER_DECISIONS.name,  # no simulated prompt has to be prefilled locally
    *(name for name in FAMILIES if "encode" in name or "elastic" in name or "images" in name),
    *(name for name in FAMILIES if name == f"{named.WORKER_ENCODE_SECONDS.name}_sum"),
}


def gateway_page() -> Page:
    gateway = GatewayPage(OBJECTIVES)
    gateway.accepted(100)
    gateway.got_first_token(0.5, 100, streamed=True)
    gateway.ended(0.5, 0.02, 100, 20, streamed=True)
    return gateway.page(held=2)


IDLE = WorkerGauges(in_flight=0, queue_depth=0, running=0, waiting=0, used_tokens=0)


def worker_page() -> Page:
    worker = WorkerPage(16_000, 256, 8192, 2048)
    worker.given(100, 60)
    worker.prefilled([(200, 150), (100, 100)], 0.2)
    worker.prefilled_here(50, 0.05)
    worker.pulled(100, 0.01)
    worker.gaps_s.observe(0.02, 10)
    return worker.page(WorkerGauges(in_flight=1, queue_depth=2, running=3, waiting=0, used_tokens=400))


def real_gateway_page() -> Page:
    metrics = GatewayMetrics("simulated")
    metrics.set_objectives(GatewayObjectives(1.0, 0.05))
    metrics.by_path("local")
    return parse(metrics.expose().decode())


def real_worker_page() -> Page:
    WorkerMetrics(registry := CollectorRegistry())
    found = dict(parse(generate_latest(registry).decode()))
    for role in ("prefill", "decode"):
        found |= parse((CAPTURES / f"vllm_metrics_{role}.txt").read_text())
    return found


def labels_of(page: Page, name: str, whose_values: Collection[str]) -> set[tuple[tuple[str, str | None], ...]]:
    """Label names of each sample of a family, with the values of those in ``whose_values``."""
    return {
        tuple((label, value if label in whose_values else None) for label, value in labels)
        for labels in page.get(name, {})
    }


def test_a_simulated_gateway_shows_what_a_real_one_does() -> None:
    simulated, real = gateway_page(), real_gateway_page()
    for name in simulated:
        values = ("le", "ttft", "tpot", "objective", "service", "prompt_tokens")
        shown = labels_of(simulated, name, values)
        assert shown == labels_of(real, name, values), name


@pytest.mark.parametrize(("prompt_tokens", "later"), [(0, 50), (1, 0), (100, 50), (128, 0), (129, 50), (2_000_000, 50)])
def test_answers_are_counted_in_the_bucket_of_their_prompt_by_both(prompt_tokens: int, later: int) -> None:
    simulated, real = GatewayPage(None), GatewayMetrics("simulated")
    simulated.ended(0.5, 0.02, prompt_tokens, 20, streamed=True)
    simulated.ended(0.5, 0.02, prompt_tokens, 30, streamed=False)
    real.finished(prompt_tokens, 20)
    real.finished(prompt_tokens, 30)
    simulated.accepted(prompt_tokens)
    page = parse(real.expose().decode())
    for name in (
        named.GATEWAY_ANSWERS.name,
        named.GATEWAY_ANSWER_TOKENS.name,
        f"{named.GATEWAY_OUTPUT_TOKENS.name}_sum",
    ):
        assert simulated.page(held=0)[name] == page[name]
    begun = simulated.page(held=0)
    simulated.ended(0.5, 0.02, prompt_tokens, later, streamed=True)
    simulated.accepted(prompt_tokens)
    load = observation(
        at_s=2.5, age_s=0.0, gateways=[Reading(begun, simulated.page(held=0), 2.5)], workers=[],
        routing=RoutingNumbers(512, 32), objectives=OBJECTIVES, plan_in_progress=False,
    ).load  # fmt: skip
    assert load is not None
    ((bucket, share),) = load.prompt_length_shares
    assert load.answers == ((bucket, 1.0, float(later)),)
    assert share == 1.0


def test_a_simulated_worker_shows_what_a_real_one_does() -> None:
    simulated, real = worker_page(), real_worker_page()
    for name in simulated:
        values = ("le", "source", "engine")
        shown, expected = labels_of(simulated, name, values), labels_of(real, name, values)
        if name == "vllm:cache_config_info":  # one sample with many labels: those that are read
            assert {label for each in shown for label in each} <= {label for each in expected for label in each}
        else:
            assert shown and shown <= expected, name
    histogram = f"{named.WORKER_UNCACHED_TOKENS.name}_bucket"
    assert labels_of(simulated, histogram, ("le",)) == labels_of(real, histogram, ("le",))


def test_all_that_an_observation_is_made_of_is_shown() -> None:
    assert set(FAMILIES) - NOT_SIMULATED == (gateway_page().keys() | worker_page().keys()) & set(FAMILIES)
    assert gateway_page().keys() | worker_page().keys() <= set(FAMILIES), "and nothing else"


def test_what_a_simulated_gateway_refuses_arrives_and_is_no_load() -> None:
    seen: list[Observation] = []
    planner = scripted({}, seen)
    simulate(poisson(4.0, 60.0, 500, 20), Simulation(ENGINE, 1, 1, gateways=2, refused_per_s=50), POLICY, planner)
    assert all(each.load is not None and each.load.arrivals_per_s < 20 for each in seen[1:])
    gateway = GatewayPage(OBJECTIVES)
    gateway.accepted(100)
    gateway.refused(3)
    page = gateway.page(held=0)
    assert [*page[named.GATEWAY_ARRIVALS.name].values()] == [4]
    assert [*page[named.GATEWAY_ACCEPTED.name].values()] == [1]


def test_as_text_a_page_is_read_as_it_was() -> None:
    for page in (gateway_page(), worker_page()):
        assert parse(as_text(page)) == page


def test_prompts_that_a_simulated_worker_computes_together_are_seen_as_passes() -> None:
    """As vLLM counts them: a step takes so many tokens at most."""
    worker = WorkerPage(16_000, 256, 8192, 2048)
    before = worker.page(IDLE)
    worker.prefilled([(900, 900)] * 6, 0.3)
    worker.prefilled([(900, 900)] * 2, 0.1)
    seen = Seen(Worker("p", Role.PREFILL, WorkerCondition.ACTIVE), Reading(before, worker.page(IDLE), 2.5))
    (sample,) = observation(
        at_s=2.5, age_s=0.0, gateways=[], workers=[seen], routing=RoutingNumbers(512, 32), objectives=OBJECTIVES,
        plan_in_progress=False,
    ).samples  # fmt: skip
    assert (sample.batch, sample.tokens) == (4, 3600)
    assert [share for _, share in sample.lengths] == [1.0]
    assert sample.observed_ms == pytest.approx(200)
    assert worker.steps == 2
    worker.prefilled([(40_000, 40_000)], 2.0)
    assert worker.steps == 2 + 5


def looks(simulation: Simulation, rate: float = 8.0) -> tuple[list[Observation], float]:
    """Half a minute on: what the planner is shown, and the true share within both objectives."""
    seen: list[Observation] = []
    result = simulate(poisson(rate, 200, 2000, 200), simulation, POLICY, scripted({}, seen))
    return [look for look in seen if look.at_s > 30], result.attainment


def mean(looks: list[Observation], what: str) -> float:
    values = [getattr(look.load, what) for look in looks if look.load is not None]
    return float(np.mean([value for value in values if value is not None]))


@pytest.mark.parametrize("whole", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("gateways", [1, 3])
def test_how_clients_are_answered_and_by_how_many_gateways_changes_nothing_that_is_seen(
    whole: float, gateways: int
) -> None:
    plain, _ = looks(Simulation(ENGINE, 2, 2))
    found, _ = looks(Simulation(ENGINE, 2, 2, whole_answers_share=whole, gateways=gateways))
    for what in ("arrivals_per_s", "prompt_tokens", "output_tokens"):
        assert mean(found, what) == pytest.approx(mean(plain, what)), what
    assert found[-1].gateways == gateways


@pytest.mark.parametrize("tpot_ms", [23.0, 28.0, 37.0])
def test_attainment_is_that_of_the_requests_at_any_objective(tpot_ms: float) -> None:
    """P-D1: none of these is the bound of a bucket."""
    policy = replace(POLICY, objectives=replace(POLICY.objectives, tpot_ms=tpot_ms))
    seen: list[Observation] = []
    result = simulate(poisson(30.0, 120, 500, 200), Simulation(ENGINE, 2, 2), policy, scripted({}, seen))
    ended = [sum(count for _, count, _ in look.load.answers) if look.load else 0.0 for look in seen]
    got = [(look.service.tpot_attainment if look.service else None) or 0.0 for look in seen]
    within = sum(share * count for share, count in zip(got, ended, strict=True))
    last = seen[-1].at_s
    true = result.tpot_met[result.end_s <= last]
    assert within / sum(ended) == pytest.approx(float(true.mean()), abs=1e-6)


def test_a_worker_whose_page_is_lost_is_unreachable_and_its_next_page_tells_of_both_windows() -> None:
    seen, _ = looks(Simulation(ENGINE, 3, 3, faults=Faults(metric_dropout_share=0.2), seed=3))
    lost = [any(w.condition == "Unreachable" for w in look.workers) for look in seen]
    assert 0.3 < float(np.mean(lost)) < 0.95
    prefill = [s for look in seen for s in look.samples if s.role is Role.PREFILL]
    assert prefill
    assert mean(seen, "arrivals_per_s") == pytest.approx(8.0, rel=0.15)


def test_the_bounds_of_flow_control_are_of_each_gateway() -> None:
    trace, one = poisson(8.0, 120, 3000, 200), FlowBounds(9000, 30, 1000)
    third = FlowBounds(3000, 10, 1000)
    alone = simulate(trace, Simulation(ENGINE, 1, 1, routing=RoutingNumbers(0, 10_000, one)), POLICY, static())
    three = Simulation(ENGINE, 1, 1, routing=RoutingNumbers(0, 10_000, third), gateways=3)
    assert alone.held_s.sum() > 0
    assert np.array_equal(simulate(trace, three, POLICY, static()).held_s, alone.held_s)


@pytest.mark.parametrize("whole", [0.3, 0.7, 1.0])
def test_a_steady_service_is_no_larger_because_its_clients_do_not_stream(whole: float) -> None:
    """P-D2: with 30 % of clients streaming, a pool of 2 decode workers became 7."""
    trace = poisson(8.0, 600, 2000, 200)
    simulation = Simulation(ENGINE, 2, 2)
    policy = replace(POLICY, max_gpus=12)
    streamed = simulate(trace, simulation, policy, ours())
    mixed = simulate(trace, replace(simulation, whole_answers_share=whole), policy, ours())
    assert mixed.gpu_hours <= 1.02 * streamed.gpu_hours
    assert mixed.attainment >= streamed.attainment - 0.01
