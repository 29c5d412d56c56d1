"""Each baseline does what the paper or code it stands for does, and respects the policy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.tuning import Tuning
from pointsman.planner.core.types import Bounds, Policy
from pointsman.planner.core.workload.arrival_forecast import RateForecaster, Trend
from pointsman.planner.profile.linear_model import LinearModel
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.simulator.baselines import PLANNERS, best_static, causal, clairvoyant
from pointsman.planner.simulator.baselines.layouts import DecodeLoad, decode_batch
from pointsman.planner.simulator.baselines.pointsman import PARTS, PresentRate, without
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Leads, Outcome, Result, Simulation, Trace
from unit.planner.scenes import LLAMA_8B_H100
from unit.planner.simulator.scenes import ENGINE, POLICY

SLOW = replace(
    ENGINE,
    performance=LinearModel(
        prefill_a=20.0,
        prefill_b=0.1,
        prefill_c=4e-6,
        decode_d0=12.0,
        decode_d1=0.1,
        decode_d2=2e-4,
        prefill_floor_ms=0.0,
    ),
)
# A worker prefills about 2 and decodes about 2 of these requests a second.
STEP = generate(named_shape("step:low=1,high=7,up_s=60,down_s=180,duration_s=240"), 1)
SIMULATION = Simulation(SLOW, 1, 1, leads=Leads(start_s=20, drain_timeout_s=5))


@pytest.fixture(scope="module")
def alone() -> Result:
    """The step on the first layout."""
    return simulate(STEP, SIMULATION, POLICY, static())


@pytest.mark.parametrize("name", ["hpa", "heteroscale", "tokenscale", "dynamo"])
def test_a_scaling_baseline_serves_a_step_better_than_standing_still(name: str, alone: Result) -> None:
    result = simulate(STEP, SIMULATION, POLICY, PLANNERS[name]())
    assert result.attainment > alone.attainment + 0.02
    assert any(t.kind == "start" for t in result.transitions)
    assert result.switches == 0


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_no_baseline_leaves_the_policy(name: str) -> None:
    tight = replace(POLICY, max_gpus=5, prefill=Bounds(1, 3), decode=Bounds(1, 3))
    result = simulate(STEP, SIMULATION, tight, PLANNERS[name]())
    assert [record.refused for record in result.decisions if record.refused] == []
    # Those that drain stand beside those that start in their place.
    assert max(p.prefill_active + p.decode_active + p.starting + p.switching for p in result.timeline) <= 5


def test_arrow_flips_workers_and_starts_none() -> None:
    shift = generate(named_shape("mixshift:rate=5,later_rate=9,at_s=60,duration_s=180,later_output_tokens=300"), 1)
    fixed = replace(SIMULATION, prefill_workers=2, decode_workers=3)
    result = simulate(shift, fixed, POLICY, PLANNERS["arrow"]())
    assert {t.kind for t in result.transitions} == {"switch"}


def test_ours_without_role_switch_switches_nothing() -> None:
    result = simulate(STEP, SIMULATION, POLICY, without("role switch"))
    assert result.switches == 0


@pytest.mark.parametrize("name", sorted(PARTS))
def test_ours_without_any_part_still_serves_and_differs_from_the_whole_only_by_it(name: str) -> None:
    planner, part = without(name), PARTS[name]
    assert planner.name == f"Pointsman without {name}"
    assert isinstance(replace(Policy(), **part.policy), Policy)
    assert {*part.tuning} <= {*Tuning.model_fields}
    result = simulate(STEP, SIMULATION, POLICY, planner)
    assert (result.outcome == int(Outcome.COMPLETED)).mean() > 0.5


def test_without_a_forecast_what_is_now_is_expected_and_nothing_more() -> None:
    rising = Trend(level=10.0, slope=0.1, var_level=0.5, covariance=0.0, var_slope=1e-6)
    assert replace(RateForecaster(), trend=rising).expected(60.0) == pytest.approx(16.0)
    assert replace(PARTS["forecast"].first().forecaster, trend=rising).expected(60.0) == 10.0
    seen = PARTS["forecast"].first().forecaster.observe(5.0, 2.5, 2.5).observe(5.0, 2.5, 5.0)
    assert isinstance(seen, PresentRate)


# --- bounds ---


def steady(rate_per_s: float) -> Trace:
    return generate(named_shape(f"steady:rate={rate_per_s},duration_s=60,prompt_tokens=4000"), 2)


def test_the_best_static_layout_is_the_smallest_that_reaches_the_attainment() -> None:
    trace = steady(5.0)
    found = best_static.search(trace, SIMULATION, POLICY, 0.95)
    assert found.result.attainment >= 0.95
    for layout in ((found.prefill - 1, found.decode), (found.prefill, found.decode - 1)):
        if min(layout) >= 1:
            smaller = replace(SIMULATION, prefill_workers=layout[0], decode_workers=layout[1])
            assert simulate(trace, smaller, POLICY, static()).attainment < 0.95


def test_the_clairvoyant_serves_a_step_before_it_comes_and_cheaper_than_a_fixed_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clairvoyant, "PREFILL_USES", (0.8,))  # one of its head-rooms is enough here
    monkeypatch.setattr(clairvoyant, "DECODE_USES", (0.95,))
    result = clairvoyant.search(STEP, SIMULATION, POLICY)
    assert result.attainment >= 0.95
    assert result.gpu_hours < best_static.search(STEP, SIMULATION, POLICY).result.gpu_hours
    first_start_s = min(t.began_s for t in result.transitions if t.kind == "start")
    assert first_start_s < 60.0


def test_the_clairvoyant_fills_only_valleys_that_are_shorter_than_a_start() -> None:
    need = np.array([3, 1, 1, 3, 1, 1, 1, 1, 1, 3])
    assert list(clairvoyant.without_valleys(need, 3)) == [3, 3, 3, 3, 1, 1, 1, 1, 1, 3]


def test_the_causal_reference_knows_the_present_and_nothing_of_what_comes() -> None:
    """Two traces that are the same until the step: so is what it asks for."""
    never = generate(named_shape("step:low=1,high=1.001,up_s=60,down_s=180,duration_s=240"), 1)
    same_until_s = 60.0
    before = np.flatnonzero(STEP.arrival_s < same_until_s)
    assert np.array_equal(STEP.arrival_s[before], never.arrival_s[: len(before)])
    reaction = causal.REACTIONS[0]
    schedules = [
        causal.reacting(trace, clairvoyant.prefill_work_s(trace, SIMULATION), SIMULATION, POLICY, reaction)
        for trace in (STEP, never)
    ]
    until = int(same_until_s / clairvoyant.SLOT_S)
    for asked, calm in zip(*schedules, strict=True):
        assert asked[: until + 1] == calm[: until + 1]
    rose = schedules[0][0][until + 3]
    assert rose[0] > schedules[1][0][until + 3][0]
    assert rose[1] > schedules[1][0][until + 3][1]


def test_the_causal_reference_serves_a_step_but_for_what_came_while_its_workers_started() -> None:
    result, quick = (
        causal.search(STEP, replace(SIMULATION, leads=replace(SIMULATION.leads, start_s=start_s)), POLICY)
        for start_s in (SIMULATION.leads.start_s, 1.0)
    )
    assert 0.5 < result.attainment < quick.attainment
    assert quick.attainment > 0.9


@given(tpot=st.floats(8, 200), prompt=st.floats(16, 30_000), output=st.floats(1, 2000))
def test_the_decode_batch_keeps_the_objective_and_one_more_breaks_it(tpot: float, prompt: float, output: float) -> None:
    load = DecodeLoad.of(1, prompt, output)
    batch = decode_batch(load, LLAMA_8B_H100, tpot, kv_capacity_tokens=None)
    assert batch == 0 or LLAMA_8B_H100.decode_step_ms(batch, batch * load.context_tokens) <= 0.9 * tpot
    if batch < 4096:
        assert LLAMA_8B_H100.decode_step_ms(batch + 1, (batch + 1) * load.context_tokens) > 0.9 * tpot


def test_kv_capacity_limits_the_batch() -> None:
    load = DecodeLoad.of(1, 4000, 96)
    assert decode_batch(load, LLAMA_8B_H100, 1000, kv_capacity_tokens=45_056) == 10


def test_an_objective_below_one_step_holds_no_sequence() -> None:
    load = DecodeLoad.of(1, 1000, 100)
    assert decode_batch(load, LLAMA_8B_H100, 1.0, None) == 0
