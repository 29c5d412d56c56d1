"""The benchmark of the seasonal forecast: its loads, and that what is committed is made of what was measured."""

from dataclasses import asdict

import numpy as np
import pytest
from bench.planner.seasonal import (
    LOADS,
    RESULT,
    SEEDS,
    SIMULATED,
    WITH,
    WITHOUT,
    Forecast,
    Simulated,
    read_cells,
    rows,
)
from bench.rows import RESULTS, read

HOUR = 3600


def test_bursts_come_at_the_same_time_of_each_day_but_not_on_the_holiday() -> None:
    of = {name: LOADS[name](np.random.default_rng(1), 24.0 * HOUR, 6) for name in LOADS}
    for day in range(6):
        at = (24 * day + 9) * HOUR
        for name, begins in (("bursts at the same hour", at), ("bursts within a bin", at + 150)):
            before, burst = of[name][begins - 1], of[name][begins]
            assert burst - before == pytest.approx(8, abs=0.1), name
        holiday = of["bursts, but none on a holiday"]
        assert (holiday[at] - holiday[at - 1] > 7) is not (day == 4)
    assert set(of["constant"]) == {8.0}
    hour = of["azure's hour as a day"]
    assert np.corrcoef(hour[: 24 * HOUR], hour[24 * HOUR : 48 * HOUR])[0, 1] > 0.3


def test_rows_are_ratios_of_means_and_what_was_not_measured_has_none() -> None:
    load = "constant"
    forecast = [
        Forecast(load, seed, 90.0, planner, short=short, above=0.05, believed=0.1)
        for seed in (1, 2)
        for planner, short in ((WITH, 0.01 * seed), (WITHOUT, 0.03))
    ]
    runs = [Simulated(load, 1, planner, 0.99, 0.98, hours, 3) for planner, hours in ((WITH, 11.0), (WITHOUT, 10.0))]
    found = {each.name: each for each in rows(forecast, runs)}
    low = found["constant: rate foreseen too low, 90 s ahead"]
    assert (low.ours, low.peer, low.ratio, low.met, low.runs) == (0.015, 0.03, 0.5, True, 2)
    hours = found["constant: GPU-hours"]
    assert (hours.ratio, hours.met) == (1.1, False)
    assert len(found) == 5


def test_what_is_committed_is_made_of_the_cells_of_all_loads_and_seeds() -> None:
    forecast, runs = read_cells()
    assert {(each.load, each.seed) for each in forecast} == {(load, seed) for load in LOADS for seed in SEEDS}
    assert {(run.load, run.seed) for run in runs} == {(load, seed) for load in SIMULATED for seed in SEEDS}
    assert [asdict(each) for each in read(RESULTS / f"{RESULT}.json")] == [
        asdict(each) for each in rows(forecast, runs)
    ]
