"""Forecasts of the arrival rate."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.sizing.demand import is_sudden
from pointsman.planner.core.tuning import Tuning
from pointsman.planner.core.workload.arrival_forecast import SURPRISES_KEPT, RateForecaster, Trend

TICK_S, LEAD_S = 2.5, 45.0


def after(counts: Sequence[float | None], forecaster: RateForecaster | None = None) -> RateForecaster:
    """Windows of 2.5 s, one after the other."""
    found = forecaster or RateForecaster()
    for tick, count in enumerate(counts):
        found = found.observe(count, TICK_S, TICK_S * (tick + 1))
    return found


def poisson(draw: random.Random, mean: float) -> int:
    """Knuth's, for small means."""
    limit, count, product = math.exp(-mean), 0, draw.random()
    while product > limit:
        count, product = count + 1, product * draw.random()
    return count


def test_before_anything_is_seen_nothing_is_expected() -> None:
    nothing = after([None, None])
    assert nothing.trend is None
    assert nothing.expected(LEAD_S) == 0


def test_a_constant_load_is_forecast_as_itself() -> None:
    assert after([25.0] * 60).expected(LEAD_S) == pytest.approx(10, rel=0.02)


def test_a_rising_load_is_forecast_higher_than_it_is_now() -> None:
    counts = [10 + 0.5 * tick for tick in range(120)]
    assert after(counts).expected(LEAD_S) > counts[-1] / TICK_S * 1.05


def test_a_falling_load_is_expected_to_fall_little_more() -> None:
    """A step down looks like a trend for minutes, and workers given up for where it seems to lead start again."""
    falling = after([60 - 0.4 * tick for tick in range(120)])
    level = falling.trend.level  # type: ignore[union-attr]
    expected = falling.expected(LEAD_S)
    assert level / 1.25 < expected < level / 1.15


def test_a_step_is_followed_within_two_ticks_not_smoothed_over_minutes() -> None:
    draw = random.Random(11)
    counts = [poisson(draw, 3 * TICK_S) for _ in range(100)] + [poisson(draw, 14 * TICK_S) for _ in range(2)]
    assert after(counts).expected(LEAD_S) > 10


def test_steady_poisson_arrivals_are_never_taken_for_a_change() -> None:
    draw, forecaster = random.Random(5), RateForecaster()
    for tick in range(1, 2000):
        forecaster = forecaster.observe(poisson(draw, 10 * TICK_S), TICK_S, TICK_S * tick)
        if tick > 20:
            assert forecaster.expected(LEAD_S) < 16
    assert forecaster.rose_s is None
    assert forecaster.fell_s is None


def test_a_gap_in_the_observations_is_bridged_not_read_as_zero() -> None:
    assert after([25.0] * 40 + [None] * 10).expected(LEAD_S) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("slope", [0.4, -0.4])
def test_in_a_gap_no_slope_is_followed_and_the_rate_becomes_uncertain(slope: float) -> None:
    """A quarter of an hour. The first window that is seen after it counts for more than all of before."""
    before = after([60 + slope * tick for tick in range(120)])
    gone = after([None] * 360, before)
    assert before.trend is not None and gone.trend is not None
    assert gone.trend.level == before.trend.level
    assert gone.trend.var_level > 100 * before.trend.var_level
    found = gone.observe(50.0, TICK_S, 1e4).trend
    assert found is not None and found.level == pytest.approx(20, rel=0.05)


@given(counts=st.lists(st.none() | st.floats(0, 1e7), max_size=80))
def test_no_history_makes_a_negative_or_infinite_forecast_and_memory_stays_bounded(counts: list[float | None]) -> None:
    forecaster = after(counts)
    assert 0 <= forecaster.expected(LEAD_S) < math.inf
    assert len(forecaster.surprises) <= SURPRISES_KEPT


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_count_that_cannot_be_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="count is"):
        RateForecaster().observe(bad, TICK_S, 0.0)


def test_one_lucky_window_of_a_constant_load_is_no_step() -> None:
    # 41 where 20 are usual: by the root of a count that is 3.8 deviations, by the count itself 4.6.
    found = RateForecaster()
    for tick, count in enumerate([20.0, 24.0, 17.0, 21.0, 18.0, 22.0] * 20 + [41.0], 1):
        found = found.observe(count, 2.5, 2.5 * tick)
    assert found.rose_s is None


def test_a_falling_load_is_never_expected_to_be_gone() -> None:
    found = RateForecaster()
    for tick in range(100):
        found = found.observe(max(100.0 - tick, 0.0), 2.5, 2.5 * tick)
    assert found.trend is not None
    assert found.expected(120.0) >= found.trend.level / 2


def test_a_load_that_doubles_is_seen_whatever_its_windows_look_like() -> None:
    # No window stands out by itself, and the filter follows meanwhile: a few more of them tell.
    for seed in range(60):
        draw, found = random.Random(seed), RateForecaster()
        for tick in range(1, 241):
            found = found.observe(poisson(draw, 7.5 * TICK_S), TICK_S, TICK_S * tick)
        doubled_s = TICK_S * 240
        for tick in range(241, 250):
            found = found.observe(poisson(draw, 15.0 * TICK_S), TICK_S, TICK_S * tick)
        assert found.rose_s is not None, f"seed {seed}"
        assert found.rose_s > doubled_s
        assert found.fell_s is None or found.fell_s <= doubled_s, f"seed {seed}"


def test_a_load_that_rises_and_falls_again_is_no_rise_any_more() -> None:
    found = RateForecaster()
    for tick in range(1, 60):
        found = found.observe(20.0 * TICK_S, TICK_S, TICK_S * tick)
    rose = found.observe(60.0 * TICK_S, TICK_S, TICK_S * 60)
    assert rose.rose_s == TICK_S * 60
    assert is_sudden(rose, TICK_S * 61)
    fell = rose.observe(60.0 * TICK_S, TICK_S, TICK_S * 61).observe(5.0 * TICK_S, TICK_S, TICK_S * 62)
    assert (fell.rose_s, fell.fell_s) == (None, TICK_S * 62)
    assert not is_sudden(fell, TICK_S * 62)


def test_chance_does_not_look_like_a_fall() -> None:
    """Two requests a second for ten hours: a fall gives workers back that a rise would have to start again."""
    draw = random.Random(1)
    forecaster, falls = RateForecaster(), 0
    for tick in range(10 * 1440):
        forecaster = forecaster.observe(poisson(draw, 2 * TICK_S), TICK_S, TICK_S * (tick + 1))
        falls += forecaster.fell_s == TICK_S * (tick + 1)
    assert falls <= 1, "nine, were a fall believed as soon as a rise"


def test_a_steep_ramp_is_expected_to_double_at_most_within_a_start() -> None:
    steep = RateForecaster(trend=Trend(level=10.0, slope=1.0, var_level=0.1, covariance=0.0, var_slope=1e-6))
    assert steep.expected(5.0) == 15.0
    assert steep.expected(90.0) == 2 * 10.0 + 1
    assert steep.expected(90.0, Tuning(max_forecast_growth=4.0)) == 4 * 10.0 + 1
