"""The benchmark of the seasonal forecast: its loads, and what is judged."""

import numpy as np
import pytest
from bench.planner import seasonal
from bench.planner.seasonal import RATES, RESULT, SIMULATED
from bench.rows import RESULTS, read

HOUR = 3600


def test_bursts_come_at_the_same_time_of_each_day_but_not_on_the_holiday() -> None:
    of = {name: RATES[name](np.random.default_rng(1), 24.0 * HOUR, 6) for name in RATES}
    for day in range(6):
        at = (24 * day + 9) * HOUR
        for name, begins in (("bursts at the same hour", at), ("bursts within a bin", at + 150)):
            before, burst = of[name][begins - 1], of[name][begins]
            assert burst - before == pytest.approx(8, abs=0.1), name
        holiday = of["bursts, but none on a holiday"]
        assert (holiday[at] - holiday[at - 1] > 7) is not (day == 4)
    assert set(of["constant"]) == {8.0}


def test_rows_are_ratios_of_means_over_the_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    low = {11: (0.01, 0.03), 12: (0.02, 0.03), 13: (0.015, 0.03)}
    monkeypatch.setattr(seasonal, "foreseen", lambda load, seed, lead_s: (low[seed], (0.05, 0.05)))
    monkeypatch.setattr(seasonal, "simulated", lambda load, seed: ((0.99, 0.99), (0.98, 0.98), (11.0, 10.0)))
    found = {each.name: each for each in seasonal.rows("constant")}
    short = found["constant: rate foreseen too low, 90 s ahead"]
    assert (short.ours, short.peer, short.ratio, short.met, short.runs) == (0.015, 0.03, 0.5, True, 3)
    hours = found["constant: GPU-hours"]
    assert (hours.ratio, hours.met) == (1.1, False)
    committed = [each.name.removeprefix("constant: ") for each in read(RESULTS / f"{RESULT}.json")]
    assert len(committed) == 4 * len(RATES) + 3 * len(SIMULATED)
    assert {name.removeprefix("constant: ") for name in found} <= {*committed}
