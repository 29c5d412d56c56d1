"""Forecasts of the arrival rate."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.forecast import RateForecaster, burst_index


def after(rates: list[float | None], *horizons: int) -> RateForecaster:
    forecaster = RateForecaster.for_horizons(*horizons)
    for rate in rates:
        forecaster = forecaster.observe(rate)
    return forecaster


def test_before_anything_is_seen_there_is_no_forecast() -> None:
    assert after([None, None], 2).at(2) is None


def test_a_constant_load_is_forecast_as_itself() -> None:
    forecast = after([10.0] * 60, 2, 24).at(24)
    assert forecast is not None
    assert forecast.expected == pytest.approx(10, rel=0.02)
    assert forecast.low <= forecast.high < 11


def test_a_rising_load_is_forecast_higher_than_it_is_now() -> None:
    rates: list[float | None] = [5 * 1.03**tick for tick in range(60)]
    forecast = after(rates, 6).at(6)
    assert forecast is not None
    assert forecast.expected > rates[-1]  # type: ignore[operator]  # the list holds numbers here


def test_the_upper_bound_covers_nine_of_ten_truths_of_a_noisy_load() -> None:
    rng, horizon = random.Random(7), 4
    forecaster = RateForecaster.for_horizons(horizon)
    promised: list[float] = []
    covered: list[bool] = []
    for tick in range(1500):
        rate = max(0.0, rng.gauss(20 + 8 * math.sin(tick / 80), 4))
        if tick >= 300:
            covered.append(rate <= promised[tick - horizon])
        forecaster = forecaster.observe(rate)
        forecast = forecaster.at(horizon)
        assert forecast is not None
        promised.append(forecast.high)
    assert 0.87 < sum(covered) / len(covered) < 0.95


def test_a_gap_in_the_observations_is_bridged_not_read_as_zero() -> None:
    with_gap = after([10.0] * 40 + [None] * 10, 2).at(2)
    assert with_gap is not None
    assert with_gap.expected == pytest.approx(10, rel=0.05)


@given(rates=st.lists(st.none() | st.floats(0, 1e6), max_size=60))
def test_no_history_makes_a_negative_or_infinite_forecast_and_memory_stays_bounded(rates: list[float | None]) -> None:
    forecaster = after(rates, 3)
    forecast = forecaster.at(3)
    if forecast is not None:
        assert all(0 <= x < math.inf for x in (forecast.expected, forecast.high, forecast.low))
    assert len(forecaster.horizons[0].pending) <= 3


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="rate is"):
        RateForecaster.for_horizons(1).observe(bad)


def test_the_burst_index_tells_poisson_from_bursts() -> None:
    rng = random.Random(3)
    poisson = [rng.expovariate(5) for _ in range(4000)]
    bursts = [0.01 if n % 20 else 4.0 for n in range(4000)]
    assert burst_index(poisson) == pytest.approx(1, abs=0.15)
    assert burst_index(bursts) > 5
    assert burst_index([]) == 1
