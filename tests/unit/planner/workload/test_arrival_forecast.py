"""Forecasts of the arrival rate."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.tuning import Tuning
from pointsman.planner.core.workload.arrival_forecast import (
    KEPT_ERRORS,
    SURPRISES_KEPT,
    Forecast,
    RateForecaster,
    Trend,
)

TICK_S, LEAD_S = 2.5, 45.0


def after(counts: Sequence[float | None], forecaster: RateForecaster | None = None) -> RateForecaster:
    """Windows of 2.5 s, one after the other."""
    found = forecaster or RateForecaster()
    for tick, count in enumerate(counts):
        found = found.observe(count, TICK_S, TICK_S * (tick + 1), LEAD_S)
    return found


def ahead(forecaster: RateForecaster, ticks: int, quantile: float = 0.84) -> Forecast:
    """At the horizon of a worker's start, after so many ticks."""
    found = forecaster.at(LEAD_S, TICK_S * ticks, LEAD_S, quantile)
    assert found is not None
    return found


def poisson(draw: random.Random, mean: float) -> int:
    """Knuth's, for small means."""
    limit, count, product = math.exp(-mean), 0, draw.random()
    while product > limit:
        count, product = count + 1, product * draw.random()
    return count


def test_before_anything_is_seen_there_is_no_forecast() -> None:
    assert after([None, None]).at(LEAD_S, 5.0, LEAD_S, 0.84) is None


def test_a_constant_load_is_forecast_as_itself() -> None:
    forecast = ahead(after([25.0] * 60), 60)
    assert forecast.expected == pytest.approx(10, rel=0.02)
    assert forecast.high < 11


def test_a_rising_load_is_forecast_higher_than_it_is_now() -> None:
    counts = [10 + 0.5 * tick for tick in range(120)]
    forecast = ahead(after(counts), 120)
    assert forecast.expected > counts[-1] / TICK_S * 1.05


def test_what_came_where_hardly_anything_was_expected_is_no_such_error_where_much_is() -> None:
    """After a wave that a trend was wrong about: 14 where 1 was expected are 13 more, not 13 standard deviations."""
    wrong = tuple((60 * TICK_S, 1.0) for _ in range(40))
    forecaster = replace(after([14 * TICK_S] * 60), pending=wrong, relative_errors=())
    after_it = forecaster.observe(14 * TICK_S, TICK_S, 61 * TICK_S, LEAD_S)
    assert len(after_it.relative_errors) == 40
    forecast = ahead(after_it, 61)
    assert forecast.expected == pytest.approx(14, rel=0.02)
    assert 14 + 13 < forecast.high < 14 + 22


def test_forecasts_that_were_always_too_high_plan_for_no_less_than_is_expected() -> None:
    rising = after([10 + 0.5 * tick for tick in range(120)])
    forecast = ahead(replace(rising, relative_errors=(-2.0,) * 60), 120)
    assert forecast.expected > rising.trend.level > 0  # type: ignore[union-attr]
    assert forecast.high == forecast.expected


def test_a_falling_load_is_expected_to_fall_little_more() -> None:
    """A step down looks like a trend for minutes, and workers given up for where it seems to lead start again."""
    falling = after([60 - 0.4 * tick for tick in range(120)])
    level = falling.trend.level  # type: ignore[union-attr]
    expected = ahead(falling, 120).expected
    assert level / 1.25 < expected < level / 1.15


def test_a_step_is_followed_within_two_ticks_not_smoothed_over_minutes() -> None:
    draw = random.Random(11)
    counts = [poisson(draw, 3 * TICK_S) for _ in range(100)] + [poisson(draw, 14 * TICK_S) for _ in range(2)]
    forecast = ahead(after(counts), len(counts))
    assert forecast.expected > 10


def test_steady_poisson_arrivals_are_never_taken_for_a_change() -> None:
    draw, forecaster = random.Random(5), RateForecaster()
    for tick in range(1, 2000):
        forecaster = forecaster.observe(poisson(draw, 10 * TICK_S), TICK_S, TICK_S * tick, LEAD_S)
        if tick > 20:
            assert ahead(forecaster, tick).expected < 16
    assert forecaster.changed_s is None


def test_the_upper_bound_covers_its_share_of_the_truths_of_a_noisy_load() -> None:
    draw, forecaster = random.Random(7), RateForecaster()
    promised: list[float] = []
    covered: list[bool] = []
    rates = [20 + 8 * math.sin(tick / 80) for tick in range(1500)]
    horizon = round(LEAD_S / TICK_S)
    for tick, rate in enumerate(rates):
        forecaster = forecaster.observe(poisson(draw, rate * TICK_S), TICK_S, TICK_S * (tick + 1), LEAD_S)
        if tick >= 300:
            covered.append(rate <= promised[tick - horizon])
        promised.append(ahead(forecaster, tick + 1, 0.9).high)
    assert 0.8 < sum(covered) / len(covered) < 0.99


@pytest.mark.parametrize(("rate", "at_most"), [(3, 1.10), (20, 1.05)])
def test_the_bound_of_a_constant_load_leaves_the_chance_of_arrivals_to_the_queues(rate: int, at_most: float) -> None:
    draw, forecaster = random.Random(7), RateForecaster()
    promised: list[float] = []
    for tick in range(3000):
        forecaster = forecaster.observe(poisson(draw, rate * TICK_S), TICK_S, TICK_S * (tick + 1), LEAD_S)
        promised.append(ahead(forecaster, tick + 1).high)
    seen = promised[300:]
    assert sum(seen) / len(seen) < at_most * rate
    assert sum(bound >= rate for bound in seen) / len(seen) > 0.7  # and it still is a bound


def test_a_gap_in_the_observations_is_bridged_not_read_as_zero() -> None:
    assert ahead(after([25.0] * 40 + [None] * 10), 50).expected == pytest.approx(10, rel=0.05)


@given(counts=st.lists(st.none() | st.floats(0, 1e7), max_size=80))
def test_no_history_makes_a_negative_or_infinite_forecast_and_memory_stays_bounded(counts: list[float | None]) -> None:
    forecaster = after(counts)
    forecast = forecaster.at(LEAD_S, TICK_S * len(counts), LEAD_S, 0.84)
    if forecast is not None:
        assert 0 <= forecast.expected < math.inf
        assert 0 <= forecast.high < math.inf
    assert len(forecaster.pending) <= LEAD_S / TICK_S + 1
    assert len(forecaster.recent) <= 12
    assert len(forecaster.surprises) <= SURPRISES_KEPT
    assert len(forecaster.relative_errors) <= KEPT_ERRORS[1]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_count_that_cannot_be_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="count is"):
        RateForecaster().observe(bad, TICK_S, 0.0, LEAD_S)


def test_one_lucky_window_of_a_constant_load_is_no_step() -> None:
    # 41 where 20 are usual: by the root of a count that is 3.8 deviations, by the count itself 4.6.
    found = RateForecaster()
    for tick, count in enumerate([20.0, 24.0, 17.0, 21.0, 18.0, 22.0] * 20 + [41.0], 1):
        found = found.observe(count, 2.5, 2.5 * tick, 120.0)
    assert found.changed_s is None


def test_a_falling_load_is_never_expected_to_be_gone() -> None:
    found = RateForecaster()
    for tick in range(100):
        found = found.observe(max(100.0 - tick, 0.0), 2.5, 2.5 * tick, 120.0)
    ahead = found.at(120.0, 250.0, 120.0, 0.5)
    assert ahead is not None
    assert found.trend is not None
    assert ahead.expected >= found.trend.level / 2


def test_before_it_was_ever_wrong_chance_alone_is_allowed_for() -> None:
    found = RateForecaster().observe(25.0, 2.5, 2.5, 120.0).observe(25.0, 2.5, 5.0, 120.0)
    ahead = found.at(120.0, 5.0, 120.0, 0.84)
    assert ahead is not None
    assert ahead.high > ahead.expected


def test_a_load_that_doubles_is_seen_whatever_its_windows_look_like() -> None:
    # No window stands out by itself, and the filter follows meanwhile: a few more of them tell.
    for seed in range(60):
        draw, found = random.Random(seed), RateForecaster()
        for tick in range(1, 241):
            found = found.observe(poisson(draw, 7.5 * TICK_S), TICK_S, TICK_S * tick, LEAD_S)
        doubled_s = TICK_S * 240
        for tick in range(241, 250):
            found = found.observe(poisson(draw, 15.0 * TICK_S), TICK_S, TICK_S * tick, LEAD_S)
        assert found.changed_s is not None, f"seed {seed}"
        assert found.changed_s > doubled_s
        assert found.fell_s is None or found.fell_s <= doubled_s, f"seed {seed}"


def test_what_was_forecast_for_a_gap_is_compared_with_nothing() -> None:
    found = RateForecaster()
    for tick in range(1, 31):
        found = found.observe(25.0, TICK_S, TICK_S * tick, 30.0)
    errors = len(found.relative_errors)
    assert 0 < errors < 25
    for tick in range(31, 55):
        found = found.observe(None, TICK_S, TICK_S * tick, 30.0)
    found = found.observe(28.0, TICK_S, TICK_S * 55, 30.0)
    assert len(found.relative_errors) <= errors + 1  # one window says something of one forecast


def test_chance_does_not_look_like_a_fall() -> None:
    """Two requests a second for ten hours: a fall gives workers back that a rise would have to start again."""
    draw = random.Random(1)
    forecaster, falls = RateForecaster(), 0
    for tick in range(10 * 1440):
        forecaster = forecaster.observe(poisson(draw, 2 * TICK_S), TICK_S, TICK_S * (tick + 1), LEAD_S)
        falls += forecaster.fell_s == TICK_S * (tick + 1)
    assert falls <= 1, "nine, were a fall believed as soon as a rise"


@pytest.mark.parametrize(("lead_s", "errors"), [(45.0, 80), (120.0, 96), (600.0, 200)])
def test_errors_of_two_start_ups_are_remembered_within_limits(lead_s: float, errors: int) -> None:
    forecaster = RateForecaster()
    for tick in range(1, 500):
        forecaster = forecaster.observe(25.0, TICK_S, TICK_S * tick, lead_s)
    assert len(forecaster.relative_errors) == errors


@pytest.mark.parametrize("window_s", [30.0, 60.0])
def test_the_bound_is_one_too_where_windows_are_as_long_as_a_prometheus_scrape(window_s: float) -> None:
    draw, forecaster = random.Random(7), RateForecaster()
    covered: list[bool] = []
    for tick in range(1, 1500):
        forecaster = forecaster.observe(poisson(draw, 3 * window_s), window_s, window_s * tick, 90.0)
        found = forecaster.at(90.0, window_s * tick, 90.0, 0.84)
        covered.append(found is not None and found.high >= 3)
    assert sum(covered[200:]) / len(covered[200:]) > 0.7


def test_a_steep_ramp_is_expected_to_double_at_most_within_a_start() -> None:
    steep = RateForecaster(trend=Trend(level=10.0, slope=1.0, var_level=0.1, covariance=0.0, var_slope=1e-6))
    assert steep.expected(5.0) == 15.0
    assert steep.expected(90.0) == 2 * 10.0 + 1
    assert steep.expected(90.0, Tuning(max_forecast_growth=4.0)) == 4 * 10.0 + 1
