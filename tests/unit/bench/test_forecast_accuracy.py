"""The forecast's benchmark: what is compared with what, and that it measures what the planner plans with."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from bench.pages import texts
from bench.planner.evaluation_page import missed
from bench.planner.forecast_accuracy import AHEAD_S, RECENT_S, RESULT, TICK_S, Look, drawn, looks, mape, rows
from bench.planner.loads import LOADS
from bench.rows import RESULTS, read

from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy
from pointsman.planner.replay.generators import Segment
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Floats


def evenly(*pieces: tuple[float, float]) -> Floats:
    """Arrivals at an even distance, ``(rate, until)`` one piece after the other; none on a tick."""
    found, begin_s = [], 0.0
    for rate, until_s in pieces:
        found.append(begin_s + (np.arange(round((until_s - begin_s) * rate)) + 0.5) / rate)
        begin_s = until_s
    return np.concatenate(found)


def test_errors_are_shares_of_what_came_and_of_nothing_no_error_is_a_share() -> None:
    found = [Look(came, None, said, 0.0, 2 * came, 3 * came) for said, came in ((3.0, 2.0), (8.0, 8.0), (1.0, 0.0))]
    assert (mape(found, "ours"), mape(found, "last"), mape(found, "mean")) == (0.25, 1.0, 2.0)


def test_every_look_is_compared_with_what_came_then_and_with_nothing_after_the_last_arrival() -> None:
    found = looks(evenly((4.0, 200.0), (8.0, 400.0)))
    # Of the last arrival the tick is not over.
    assert len(found[0.0]) == int((400.0 - TICK_S - RECENT_S) / TICK_S)
    assert len(found[AHEAD_S]) == int((400.0 - TICK_S - AHEAD_S) / TICK_S)

    def at(now_s: float, horizon_s: float) -> Look:
        return found[horizon_s][round(now_s / TICK_S) - 1]

    assert (at(100.0, 0.0).came, at(100.0, 0.0).last, at(100.0, 0.0).mean) == (4.0, 4.0, 4.0)
    assert at(200.0, 0.0).came == 8.0 and at(200.0, 0.0).last == 4.0 and at(200.0, 0.0).mean == 4.0
    assert at(202.5, 0.0).last == 8.0 and at(202.5, 0.0).mean == pytest.approx(4.0 + 4.0 * TICK_S / RECENT_S)
    assert at(200.0 - AHEAD_S, AHEAD_S).came == 4.0
    assert at(200.0 - AHEAD_S + RECENT_S, AHEAD_S).came == 8.0
    assert at(290.0, AHEAD_S).ours == pytest.approx(8.0, rel=0.1)
    quiet = looks(np.concatenate([evenly((4.0, 100.0)), [300.0]]))[0.0][round(150.0 / TICK_S)]
    assert (quiet.came, quiet.last, quiet.ours < 1) == (0.0, 0.0, True), "an empty tick is a count of zero"


def test_rates_that_are_known_are_means_of_the_time_judged() -> None:
    ramp = [Segment(0.0, 100.0, 2.0, 2.0, 1, 1), Segment(100.0, 200.0, 2.0, 12.0, 1, 1)]
    assert drawn(ramp, 90.0, 110.0) == pytest.approx(20.0 + 25.0)
    assert drawn(ramp, 100.0, 200.0) == pytest.approx(700.0)
    assert drawn(ramp, 300.0, 400.0) == 0.0
    (first, *_) = looks(evenly((4.0, 300.0)), ramp)[0.0]
    assert first.true == pytest.approx(2.0)


@pytest.mark.parametrize("horizon_s", [AHEAD_S, 0.0])
def test_what_is_measured_is_what_the_planner_plans_with(horizon_s: float) -> None:
    load = LOADS["step"].model_copy(update={"trace": "step:low=2,high=5,up_s=60,down_s=150,duration_s=240"})
    service, planner = load.service(3), ours()
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
    policy = replace(service.policy, scale_out=False, scale_in=False, role_switch=False, start_is_told=True)
    simulate(service.trace, service.simulation, policy, replace(planner, decide=decide))
    here = {tick: each.ours for tick, each in enumerate(looks(service.trace.arrival_s)[horizon_s], start=1)}
    both = here.keys() & live.keys()
    assert len(both) > 50
    assert {tick: live[tick] for tick in both} == pytest.approx({tick: here[tick] for tick in both}, abs=1e-4)


@pytest.mark.parametrize("name", ["step", "azure_conv"])
def test_what_is_committed_is_what_the_present_forecast_gives(name: str) -> None:
    committed = [asdict(row) for row in read(RESULTS / f"{RESULT}.json") if row.name.startswith(f"{name}: ")]
    assert committed == [asdict(row) for row in rows(name)], "run make bench-forecast"


def test_every_missed_row_has_a_reason_of_its_own_kind() -> None:
    for why, found in missed(read(RESULTS / f"{RESULT}.json"), texts("reasons")):
        for row in found:
            assert ("bound" in why) == ("within the bound" in row.name)
