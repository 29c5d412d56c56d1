"""The forecast's benchmark: its arithmetic on series made by hand, that it measures what the planner plans with, and
that what is kept and published is what the present forecast gives."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
from bench.pages import REPORTS
from bench.planner import forecast_page, verdicts
from bench.planner.forecast_accuracy import (
    AHEAD_S,
    HORIZONS_S,
    LAST,
    LEAD_S,
    LOADS,
    MEAN,
    NOMINAL,
    ONE_OF_A_KIND,
    POLICY,
    RECENT_S,
    RESULT,
    SEEDS,
    TICK_S,
    Accuracy,
    Compared,
    accuracy,
    compared,
    covered,
    drawn,
    judged_by,
    mape,
    measured,
    read_cells,
    rows,
)
from bench.planner.scenarios import SCENARIOS, Synthetic
from bench.rows import RESULTS, read

from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy
from pointsman.planner.replay.generators import Segment
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Floats

NOW_S = HORIZONS_S[0]


def evenly(*pieces: tuple[float, float]) -> Floats:
    """Arrivals at an even distance, ``(rate, until)`` one piece after the other; none on a tick."""
    found, begin_s = [], 0.0
    for rate, until_s in pieces:
        found.append(begin_s + (np.arange(round((until_s - begin_s) * rate)) + 0.5) / rate)
        begin_s = until_s
    return np.concatenate(found)


def said(*pairs: tuple[float, float], true: float | None = None, bound: float = 5.0) -> list[Compared]:
    """What ours said, and what came."""
    return [Compared(came, true, False, ours, bound, 2 * came, 3 * came) for ours, came in pairs]


# --- arithmetic ---


def test_a_perfect_forecast_is_not_off_and_others_by_their_share_of_what_came() -> None:
    assert mape([(3.0, 3.0), (0.5, 0.5)]) == 0.0
    assert mape([(3.0, 2.0), (1.0, 2.0), (2.0, 2.0)]) == pytest.approx(1 / 3)
    assert mape([(0.0, 4.0)]) == 1.0


def test_of_nothing_that_came_no_error_is_a_share() -> None:
    assert mape([(7.0, 0.0), (3.0, 2.0)]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="nothing came"):
        mape([(7.0, 0.0)])


def test_a_constant_bound_covers_what_is_no_more_than_it() -> None:
    assert covered([(5.0, float(came)) for came in range(1, 11)]) == 0.5
    assert covered([(5.0, 5.0)]) == 1.0
    assert covered([(5.0, 5.1)]) == 0.0


def test_figures_of_a_load_are_of_the_right_forecast_and_leave_out_the_empty() -> None:
    found = said((3.0, 2.0), (8.0, 8.0), (1.0, 0.0))
    ahead = accuracy("made up", 1, AHEAD_S, found)
    assert (ahead.forecasts, ahead.empty) == (3, 1)
    assert (ahead.ours, ahead.last, ahead.mean) == (0.25, 1.0, 2.0)
    assert ahead.covered_came == pytest.approx(2 / 3, abs=1e-4)
    assert ahead.above == pytest.approx(15 / 12 - 1, abs=1e-4)
    assert ahead.known is None and ahead.covered_true is None and ahead.covered_calm is None


def test_the_present_has_no_bound_that_is_judged() -> None:
    now = accuracy("made up", 1, NOW_S, said((3.0, 2.0), true=2.0))
    assert now.ours == 0.5 and now.known == 0.0
    assert now.covered_came is now.covered_true is now.covered_calm is now.above is None


def test_true_rates_are_judged_apart_where_they_do_not_rise() -> None:
    calm, rising = said((3.0, 2.0), true=4.0)[0], replace(said((3.0, 2.0), true=9.0)[0], rises=True)
    ahead = accuracy("made up", 1, AHEAD_S, [calm, rising])
    assert (ahead.covered_true, ahead.covered_calm, ahead.covered_came) == (0.5, 1.0, 1.0)
    assert ahead.known == pytest.approx((2 / 2 + 7 / 2) / 2)


# --- what is compared with what ---


def test_the_present_is_judged_by_the_half_minute_that_begins_and_the_lead_by_the_one_that_ends() -> None:
    assert judged_by(100.0, 0.0) == (100.0, 100.0 + RECENT_S)
    assert judged_by(100.0, AHEAD_S) == (100.0 + AHEAD_S - RECENT_S, 100.0 + AHEAD_S)


def test_every_look_is_compared_with_what_came_then_and_with_nothing_after_the_last_arrival() -> None:
    found = compared(evenly((4.0, 200.0), (8.0, 400.0)))
    # Of the last arrival the tick is not over.
    assert len(found[NOW_S]) == int((400.0 - TICK_S - RECENT_S) / TICK_S)
    assert len(found[AHEAD_S]) == int((400.0 - TICK_S - AHEAD_S) / TICK_S)

    def at(now_s: float, horizon_s: float) -> Compared:
        return found[horizon_s][round(now_s / TICK_S) - 1]

    assert (at(100.0, NOW_S).came, at(100.0, NOW_S).last, at(100.0, NOW_S).mean) == (4.0, 4.0, 4.0)
    assert at(200.0, NOW_S).came == 8.0 and at(200.0, NOW_S).last == 4.0 and at(200.0, NOW_S).mean == 4.0
    assert at(202.5, NOW_S).last == 8.0 and at(202.5, NOW_S).mean == pytest.approx(4.0 + 4.0 * TICK_S / RECENT_S)
    assert at(200.0 - AHEAD_S, AHEAD_S).came == 4.0
    assert at(200.0 - AHEAD_S + RECENT_S, AHEAD_S).came == 8.0
    assert at(190.0, AHEAD_S).came == 8.0 and at(190.0, AHEAD_S).ours == pytest.approx(4.0, rel=0.1)
    assert at(290.0, AHEAD_S).ours == pytest.approx(8.0, rel=0.1)
    assert all(each.true is None and not each.rises for each in found[AHEAD_S])


def test_a_tick_in_which_nobody_came_was_seen_to_be_empty() -> None:
    arrivals = np.concatenate([evenly((4.0, 100.0)), [300.0]])
    found = compared(arrivals)[NOW_S]
    assert found[round(150.0 / TICK_S)].came == 0.0
    assert found[round(150.0 / TICK_S)].last == 0.0
    assert found[round(150.0 / TICK_S)].ours < 1.0


def test_rates_that_are_known_are_means_of_the_time_judged() -> None:
    ramp = [Segment(0.0, 100.0, 2.0, 2.0, 1, 1), Segment(100.0, 200.0, 2.0, 12.0, 1, 1)]
    assert drawn(ramp, 0.0, 10.0) == pytest.approx(20.0)
    assert drawn(ramp, 90.0, 110.0) == pytest.approx(20.0 + 25.0)
    assert drawn(ramp, 100.0, 200.0) == pytest.approx(700.0)
    assert drawn(ramp, 300.0, 400.0) == 0.0
    found = compared(evenly((4.0, 300.0)), [Segment(0.0, 150.0, 4.0, 4.0, 1, 1), Segment(150.0, 300.0, 8.0, 8.0, 1, 1)])
    rises = [each.rises for each in found[AHEAD_S]]
    assert rises == [150.0 - AHEAD_S < tick * TICK_S <= 150.0 for tick in range(1, len(rises) + 1)]


@pytest.mark.parametrize("name", ["onoff", "ramp"])
def test_the_known_rates_are_those_that_a_seeds_requests_were_drawn_from(name: str) -> None:
    (trace,) = LOADS[name].traces
    assert isinstance(trace, Synthetic)
    arrivals = trace(12).arrival_s
    for piece in trace.segments(12):
        came = int(np.searchsorted(arrivals, piece.end_s) - np.searchsorted(arrivals, piece.start_s))
        usual = drawn([piece], piece.start_s, piece.end_s)
        assert abs(came - usual) < 4 * usual**0.5 + 2


# --- it is the planner's forecast ---


@pytest.mark.parametrize(
    ("shape", "horizon_s"),
    [
        ("ramp:low=2,high=5,rise_s=120,fall_s=60,level_s=60", AHEAD_S),
        ("step:low=2,high=5,up_s=60,down_s=150,duration_s=240", AHEAD_S),
        ("step:low=2,high=5,up_s=60,down_s=150,duration_s=240", NOW_S),
    ],
)
def test_what_is_measured_is_what_the_planner_plans_with(shape: str, horizon_s: float) -> None:
    trace, planner = Synthetic(shape)(3), ours()
    number = "expectedRatePerSecond" if horizon_s else "ratePerSecond"
    live: dict[int, float] = {}

    def decide(
        state: State, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None
    ) -> tuple[State, Decision, NextTick]:
        after, decision, tick = planner.decide(state, observation, policy, now_s, base)
        if number in (inputs := dict(decision.inputs)):
            live[round(now_s / TICK_S)] = inputs[number]
        return after, decision, tick

    # Neither a start nor the pods that serve may teach the planner another lead.
    policy = replace(POLICY, scale_out=False, scale_in=False, role_switch=False, start_is_told=True)
    simulate(trace, SCENARIOS["step"].simulation(3), policy, replace(planner, decide=decide))
    here = {tick: each.ours for tick, each in enumerate(compared(trace.arrival_s)[horizon_s], start=1)}
    both = here.keys() & live.keys()
    assert len(both) > 50
    assert {tick: live[tick] for tick in both} == pytest.approx({tick: here[tick] for tick in both}, abs=1e-4)


def test_ticks_and_horizons_are_those_of_a_policy_that_says_nothing_of_them() -> None:
    assert (POLICY.interval_s, POLICY.start_s, POLICY.start_is_told) == (TICK_S, LEAD_S, False)
    assert round(NOMINAL, 4) == 0.8413


# --- what is judged ---


def cells(*per_load: tuple[str, float, float, float, float]) -> list[Accuracy]:
    return [
        Accuracy(
            load, seed, horizon_s, 100, 0, mine, last, mean, None,
            share if horizon_s else None, share if horizon_s and load != ONE_OF_A_KIND else None, None, 0.1,
        )
        for load, mine, last, mean, share in per_load for seed in SEEDS for horizon_s in HORIZONS_S
    ]  # fmt: skip


def test_errors_are_judged_beside_both_plain_forecasts_and_the_bound_by_its_quantile() -> None:
    found = {(row.name, row.peer_name): row for row in rows(cells(("step", 0.2, 0.4, 0.1, 0.84)))}
    assert len(found) == 5
    now = "step: MAPE, now"
    assert found[now, LAST].met and found[now, LAST].ratio == 0.5
    assert not found[now, MEAN].met and found[now, MEAN].ratio == 2.0
    bound = found["step: true rates within the bound, 92.5 s ahead", None]
    assert not bound.met and bound.target == ">= 0.8413"


def test_of_a_real_trace_the_counts_are_judged() -> None:
    names = [row.name for row in rows(cells((ONE_OF_A_KIND, 0.2, 0.4, 0.3, 0.9)))]
    assert f"{ONE_OF_A_KIND}: rates that came within the bound, 92.5 s ahead" in names
    assert not any("true rates" in name for name in names)


# --- what is kept and published ---


@pytest.mark.parametrize("name", ["step", ONE_OF_A_KIND])
def test_what_is_kept_is_what_the_present_forecast_gives(name: str) -> None:
    kept = {cell.horizon_s: cell for cell in read_cells() if (cell.load, cell.seed) == (name, SEEDS[0])}
    for cell in measured(LOADS[name], SEEDS[0]):
        assert asdict(kept[cell.horizon_s]) == pytest.approx(asdict(cell), abs=2e-4), "run make bench-forecast"


def test_every_load_is_kept_with_all_its_seeds_at_both_horizons_and_the_rows_are_made_of_that() -> None:
    kept = Counter((cell.load, cell.seed, cell.horizon_s) for cell in read_cells())
    wanted = {
        (load.name, seed, horizon_s): 1 for load in LOADS.values() for seed in load.seeds for horizon_s in HORIZONS_S
    }
    assert kept == wanted
    assert read(RESULTS / f"{RESULT}.json") == list(rows(read_cells()))


def test_azures_arrivals_are_the_same_for_every_seed_and_only_those() -> None:
    def same(name: str) -> bool:
        one, other = (SCENARIOS[name].trace(seed).arrival_s for seed in SEEDS[:2])
        return np.array_equal(one, other)

    assert [name for name in ("azure_conv", "moon_conv") if same(name)] == [ONE_OF_A_KIND]


def test_the_page_and_its_picture_are_made_of_what_is_kept() -> None:
    kept = read_cells()
    page = (REPORTS / "planner-evaluation.md").read_text()
    assert forecast_page.section(kept) in page
    assert (REPORTS / "pictures" / forecast_page.PICTURE).read_text() == forecast_page.picture(kept)


def test_every_row_of_a_forecast_would_have_a_reason_of_its_own_kind_where_it_is_missed_now() -> None:
    missed = [row for row in rows(read_cells()) if not row.met]
    assert missed
    for row in missed:
        about_bound = "bound" in (verdicts.reason_of(row, verdicts.reasons()) or "")
        assert about_bound == ("within the bound" in row.name)


def test_what_the_reasons_say_of_all_loads_is_so() -> None:
    found = {load: [cell for cell in read_cells() if cell.load == load and cell.horizon_s] for load in LOADS}
    known = {load: cells for load, cells in found.items() if LOADS[load].rates_are_known}

    def mean(cells: Sequence[Accuracy], field: str) -> float:
        return statistics.fmean(float(getattr(cell, field)) for cell in cells)

    constant = [mean(cells, "covered_true") for load, cells in known.items() if load.startswith("constant")]
    for cells in known.values():
        assert mean(cells, "covered_came") < mean(cells, "covered_true")
        assert mean(cells, "covered_calm") > min(constant) - 0.01, "no more often too low"


def test_the_page_says_where_a_plain_forecast_is_better_and_where_none_is() -> None:
    def told(found: Sequence[Accuracy]) -> str:
        (line,) = (each for each in forecast_page.section(found).splitlines() if "**A plain forecast" in each)
        return line[line.index("**") :]

    everywhere = [(name, 0.2, 0.4, 0.3, 0.9) for name in LOADS]
    assert told(cells(*everywhere)) == "**A plain forecast is better** nowhere."
    worse = cells(*(("ramp", 0.2, 0.4, 0.1, 0.9) if each[0] == "ramp" else each for each in everywhere))
    assert "on ramp, now (the mean of 30 s: 10.0 %, Pointsman: 20.0 %); on ramp, 92.5 s ahead" in told(worse)
    assert "step" not in told(worse)
