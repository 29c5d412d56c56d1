"""What the planner's word is worth: predicted beside observed, and what its plans would have brought."""

from dataclasses import astuple, replace

import pytest

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.prediction_score import Score
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    Objectives,
    Policy,
    Reason,
    RoutingNumbers,
    Service,
    Switch,
    WorkerCondition,
)
from pointsman.planner.core.virtual_fleet import VirtualFleet
from pointsman.planner.memory import from_json, to_json
from unit.planner.captured import captured
from unit.planner.operating_points import point
from unit.planner.scenes import LLAMA_8B_H100, LONG, POLICY, SHORT, observed

FREE = replace(POLICY, mode=Mode.SHADOW, max_gpus=16, scale_out=True, role_switch=False)


def scored(attainment: float, prefill: int, decode: int, rate: float, ticks: int = 80) -> Score:
    state = State()
    service = Service(ttft_attainment=attainment, tpot_attainment=1.0, attainment=attainment, prefill_queue_depth=0.0)
    for tick in range(ticks):
        seen = observed(2.5 * tick, replace(LONG, arrivals_per_s=rate), prefill, decode, service=service)
        state, _, _ = decide(state, seen, FREE, 2.5 * tick, LLAMA_8B_H100)
    return state.score


def test_where_workers_are_enough_it_says_so_and_clients_agree() -> None:
    score = scored(0.99, 4, 4, 20.0)
    assert score.predicted is not None
    assert score.predicted > 0.9
    assert score.observed == pytest.approx(0.99)
    assert score.error == pytest.approx(abs(0.99 - score.predicted), abs=0.05)


def test_where_they_are_too_few_its_plans_would_have_helped() -> None:
    score = scored(0.1, 1, 4, 20.0)
    assert score.predicted is not None
    assert score.if_executed is not None
    assert score.predicted < 0.6
    assert score.if_executed > score.predicted + 0.3


def test_its_plans_are_within_the_budget_and_take_as_long_as_starts_do() -> None:
    """Four GPUs for a load that needs a dozen: what is promised is what four would do, when they serve."""
    policy, state, shown = replace(FREE, max_gpus=4, start_s=60.0), State(), []
    few = Service(ttft_attainment=0.1, tpot_attainment=1.0, attainment=0.1, prefill_queue_depth=0.0)
    for tick in range(80):
        seen = observed(2.5 * tick, replace(LONG, arrivals_per_s=100.0), 1, 1, service=few)
        state, decision, _ = decide(state, seen, policy, 2.5 * tick, LLAMA_8B_H100)
        assert state.virtual is not None
        serving = [state.virtual.serving(role, 2.5 * tick) for role in LANGUAGE_ROLES]
        shown.append((2.5 * tick, len(state.virtual.workers), sum(serving)))
    began_s = next(at_s for at_s, gpus, _ in shown if gpus == 4)
    served_s = next(at_s for at_s, _, serving in shown if serving == 4)
    assert served_s - began_s == pytest.approx(60.0, abs=2.5)
    assert max(gpus for _, gpus, _ in shown) == 4
    assert dict(decision.inputs)["gpusIfExecuted"] == 4
    assert state.score.if_executed is not None
    assert state.score.if_executed < 0.6


def test_a_real_worker_that_cannot_be_read_keeps_no_virtual_one() -> None:
    policy, state = replace(FREE, scale_in=True), State()
    for tick in range(160):
        seen = observed(2.5 * tick, replace(LONG, arrivals_per_s=1.0), 4, 6)
        lost = replace(seen.workers[0], condition=WorkerCondition.UNREACHABLE)
        seen = replace(seen, workers=(lost, *seen.workers[1:]), long_unread=1)
        state, decision, _ = decide(state, seen, policy, 2.5 * tick, LLAMA_8B_H100)
    assert dict(decision.inputs)["gpusIfExecuted"] == 2


def test_after_an_overload_no_more_wait_than_a_gateway_holds() -> None:
    fleet = VirtualFleet.of(observed(0.0, LONG, 1, 1))
    for tick in range(1000):
        fleet = fleet.with_queue(point(), 1000.0, 2.5, 2.5 * tick)
    assert fleet.backlog == 4096


def test_workers_that_switch_serve_in_neither_role_until_they_have() -> None:
    fleet = VirtualFleet.of(observed(0.0, LONG, 1, 3))
    to_prefill = Switch(Role.DECODE, Role.PREFILL, 1)
    decision = Decision(Reason.PREFILL_SHORT, "", 2, 2, RoutingNumbers(512, 32), switches=(to_prefill,))
    fleet = fleet.carried_out(decision, 100.0, lead_s=90.0, switch_s=10.0)
    for now_s, serving in ((105.0, (1, 2)), (110.0, (2, 2))):
        assert tuple(fleet.serving(role, now_s) for role in LANGUAGE_ROLES) == serving
    assert fleet.switches(105.0)
    assert not fleet.switches(110.0)


def test_where_decisions_are_carried_out_nothing_is_imagined() -> None:
    state = State()
    for tick, mode in enumerate((Mode.SHADOW, Mode.APPROVE, Mode.EXTERNAL, Mode.ACTIVE)):
        state, decision, _ = decide(
            state, observed(2.5 * tick, LONG), replace(FREE, mode=mode), 2.5 * tick, LLAMA_8B_H100
        )
        assert (state.virtual is None) is (mode is Mode.ACTIVE)
        assert ("attainmentIfExecuted" in dict(decision.inputs)) is (mode is not Mode.ACTIVE)
    assert from_json(to_json(state)) == state


def test_a_window_without_answers_is_compared_with_nothing() -> None:
    state, seen = State(), observed(0, LONG, service=Service(prefill_queue_depth=0.0))
    state, decision, _ = decide(state, seen, FREE, 0, LLAMA_8B_H100)
    assert state.score == Score(if_executed=state.score.if_executed, objectives=astuple(FREE.objectives))
    assert state.score.if_executed is not None, "what was overloaded would have been better off"
    assert "predictedAttainment" not in dict(decision.inputs)


def test_many_requests_weigh_more_than_few() -> None:
    score, asked = Score(), Objectives()
    for predicted, got, requests in ((1.0, 1.0, 100), (0.0, 0.5, 5), (1.0, 1.0, 250)):
        score = score.observe(predicted, 1.0, Service(attainment=got), requests, asked)
    assert score.predicted == pytest.approx(350 / 355)
    assert score.error == pytest.approx(2.5 / 355)


def test_the_first_requests_weigh_as_much_as_the_next_ones_until_there_are_500() -> None:
    """A tenth of the requests is late, and by chance none of the first."""
    score, asked = Score(), Objectives()
    for late in (0, 1, *[0.5] * 18):
        score = score.observe(1.0, None, Service(attainment=1 - late / 5), 5, asked)
    assert score.requests == 100
    assert score.observed == pytest.approx(0.9)
    for _ in range(1000):
        score = score.observe(1.0, None, Service(attainment=0.5), 5, asked)
    assert score.requests == 500
    assert score.observe(1.0, None, Service(attainment=1.0), 5, asked).observed == pytest.approx(0.505, abs=1e-4)


def test_what_was_counted_against_other_objectives_is_forgotten() -> None:
    before, after = Objectives(ttft_ms=500), Objectives(ttft_ms=3000)
    score = Score().observe(0.9, None, Service(ttft_attainment=0.2, attainment=0.2), 1000, before)
    anew = score.observe(0.9, None, Service(attainment=1.0), 1, after)
    assert (anew.observed, anew.requests) == (1.0, 1)
    assert score.observe(0.9, None, Service(attainment=1.0), 1, before).observed == pytest.approx(0.2016)


def test_the_attainment_that_is_asked_for_changes_the_plan_and_not_the_prediction() -> None:
    found = []
    for asked in (0.8, 0.999):
        policy, state = replace(FREE, objectives=replace(FREE.objectives, tpot_ms=12, attainment=asked)), State()
        for tick in range(3):
            seen = observed(2.5 * tick, SHORT, 3, 4)
            state, decision, _ = decide(state, seen, policy, 2.5 * tick, LLAMA_8B_H100)
        found.append(dict(decision.inputs))
    free, careful = found
    assert careful["decodeNeededNow"] > free["decodeNeededNow"]
    assert careful["predictedAttainment"] == free["predictedAttainment"] > 0.5


@pytest.mark.parametrize("capture", ["cpu_short_prompts", "cpu_prompts_of_both_kinds"])
def test_what_is_learned_in_seconds_from_a_real_engine_is_a_word_to_trust(capture: str) -> None:
    """Half a minute of vLLM 0.32.0 on two shared cores, as the planner saw it: a tiny model, one prefill and two decode
    workers, five or six clients. Most prompts are prefilled where they decode; no table fits such an engine.
    """
    objectives, looks = captured(capture)
    policy = Policy(
        objectives=objectives,
        max_gpus=3, min_gpus=3, prefill=Bounds(1, 2), decode=Bounds(1, 2), scale_out=False, scale_in=False,
    )  # fmt: skip
    state = State()
    for seen in looks:
        got = seen.service  # recorded before gateways counted requests within both
        if got is not None and got.ttft_attainment is not None and got.tpot_attainment is not None:
            both = got.ttft_attainment * got.tpot_attainment
            seen = replace(seen, service=replace(got, attainment=both))
        state, _, _ = decide(state, seen, policy, seen.at_s)
    score = state.score
    assert score.predicted is not None
    assert score.observed is not None
    assert score.error is not None
    assert score.observed > 0.95, "clients were served well"
    assert score.predicted > 0.95
    assert score.error < 0.1, "and in no single look was it far off"
