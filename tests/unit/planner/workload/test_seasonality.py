"""What earlier days say of the next minutes. Days here have an hour, bins a minute."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pointsman.planner.core.workload.arrival_forecast import RateForecaster, Trend
from pointsman.planner.core.workload.seasonality import BIN_S, DAY_S, Season, SeasonalForecast, Trust

DAY, BIN, TICK, LEAD = 3600.0, 60.0, 10.0, 90.0
BURST_S, LENGTH_S = 1800.0, 300.0  # of the day
LOW, HIGH = 3.0, 11.0
Rate = Callable[[float], float]


class ShortDays(Season):
    day_s, bin_s = DAY, BIN


SEASON: TypeAdapter[Season] = TypeAdapter(ShortDays)


def bursts(at_s: float) -> float:
    return HIGH if BURST_S <= at_s % DAY < BURST_S + LENGTH_S else LOW


def ramps(at_s: float) -> float:
    """Up and down again once a day."""
    return 2.0 + 20.0 * abs(at_s % DAY - DAY / 2) / DAY


@dataclass
class Looks:
    """Look after look at a rate that is known exactly, or with the noise of counts."""

    rate: Rate
    noise: random.Random | None = None
    season: Season = field(default_factory=ShortDays)
    forecaster: RateForecaster = field(default_factory=RateForecaster)
    now_s: float = 0.0

    def until(self, to_s: float) -> list[SeasonalForecast | None]:
        """What is foretold at each look."""
        found = []
        while self.now_s < to_s:
            self.now_s += TICK
            count = self.rate(self.now_s - TICK) * TICK
            if self.noise is not None:
                count = max(0.0, self.noise.gauss(count, count**0.5))
            self.forecaster = self.forecaster.observe(count, TICK, self.now_s)
            self.season = self.season.observe(count, TICK, self.now_s, self.forecaster, LEAD)
            found.append(self.forecast)
        return found

    def unseen(self, to_s: float) -> None:
        while self.now_s < to_s:
            self.now_s += TICK
            self.forecaster = self.forecaster.observe(None, TICK, self.now_s)

    @property
    def forecast(self) -> SeasonalForecast | None:
        return self.season.forecast(self.now_s, self.forecaster, LEAD)

    @property
    def rise(self) -> float:
        return self.forecast.rise_per_s if self.forecast is not None else 0.0


def burst_of(day: int) -> float:
    return day * DAY + BURST_S


def test_a_burst_that_came_at_the_same_time_before_is_expected_a_lead_ahead() -> None:
    looks = Looks(bursts)
    looks.until(burst_of(2) - LEAD - BIN)
    assert looks.rise == 0
    looks.until(burst_of(2) - LEAD / 2)
    assert looks.rise == pytest.approx(HIGH - LOW, rel=0.1)
    looks.until(burst_of(2) + LENGTH_S / 2)
    assert looks.rise < 0.2, "it is there: nothing more is expected"


def test_nothing_is_expected_by_it_before_a_day_was_known_and_another_one_compared() -> None:
    looks = Looks(bursts)
    assert set(looks.until(DAY - 2 * BIN)) == {None}
    second = looks.until(2 * DAY - LEAD)
    assert any(each is not None and each.per_s > 10 for each in second), "it is known …"
    assert max(each.rise_per_s for each in second if each is not None) == 0, "… and not believed"


def test_a_fall_is_never_expected_by_it() -> None:
    looks = Looks(bursts)
    looks.until(burst_of(3) + LENGTH_S - LEAD / 2)
    assert looks.forecast is not None
    assert looks.forecast.per_s < HIGH / 2
    assert looks.rise == 0


def test_a_burst_that_does_not_come_costs_one_lead_and_trust_that_the_next_ones_give_back() -> None:
    looks = Looks(lambda at_s: LOW if at_s // DAY == 4 else bursts(at_s))
    looks.until(4 * DAY)
    assert looks.forecast is not None
    before = looks.forecast.share
    holiday = looks.until(5 * DAY)
    assert before > 0.9
    expected = [each.rise_per_s > 0.1 for each in holiday if each is not None]
    assert sum(expected) * TICK <= LEAD + BIN, "it is expected no longer than it lasts until it should be there"
    assert holiday[-1] is not None
    assert 0.3 < holiday[-1].share < 0.75 * before
    looks.until(burst_of(5) - LEAD / 2)
    assert 0.2 * (HIGH - LOW) < looks.rise < 0.75 * (HIGH - LOW)
    last = looks.until(7 * DAY)[-1]
    assert last is not None
    assert last.share > holiday[-1].share


def test_a_history_that_is_of_another_load_is_not_believed_for_long() -> None:
    looks = Looks(lambda _: LOW)
    looks.now_s = 8 * DAY
    rates = {number: bursts(number * BIN) for number in range(8 * 60)}
    looks.season = looks.season.with_history(rates, 8 * 60)
    looks.until(8 * DAY + 2 * TICK)
    assert looks.forecast is not None
    assert looks.forecast.share > 0.9
    shares = [each.share for each in looks.until(16 * DAY) if each is not None]
    assert shares[int(DAY / TICK)] < 0.75, "after one burst that did not come"
    assert shares[int(2 * DAY / TICK)] < 0.5
    assert shares[-1] < 0.25
    assert looks.rise < 0.01, "and after a week nothing of it is left"


def test_a_history_is_worth_as_much_as_the_same_days_that_were_seen() -> None:
    looks = Looks(bursts)
    looks.now_s = 8 * DAY
    looks.season = looks.season.with_history({number: bursts(number * BIN) for number in range(8 * 60)}, 8 * 60)
    looks.until(burst_of(8) - LEAD / 2)
    assert looks.rise == pytest.approx(HIGH - LOW, rel=0.05)
    assert looks.forecast is not None
    assert looks.forecast.days == 7


def test_a_constant_load_expects_nothing_of_its_noise() -> None:
    looks = Looks(lambda _: 8.0, random.Random(5))
    rises = [each.rise_per_s for each in looks.until(12 * DAY) if each is not None]
    assert sum(rises) / len(rises) < 0.01 * 8


def test_a_load_that_wanders_without_a_season_expects_hardly_anything_of_it() -> None:
    draw, level = random.Random(6), [8.0]
    for _ in range(int(12 * DAY / BIN)):
        level.append(min(max(level[-1] * (1 + draw.gauss(0, 0.05)), 3.0), 20.0))
    looks = Looks(lambda at_s: level[int(at_s // BIN)], random.Random(7))
    rises = [each.rise_per_s for each in looks.until(12 * DAY) if each is not None]
    assert sum(rises) / len(rises) < 0.02 * 8


def test_a_slope_of_earlier_days_is_a_slope_and_adds_what_the_filter_lacks() -> None:
    looks = Looks(ramps)
    looks.until(3 * DAY + 0.75 * DAY)
    assert looks.forecast is not None
    assert looks.forecast.per_s == pytest.approx(ramps(looks.now_s + LEAD), rel=0.02)
    expected = looks.forecaster.expected(LEAD) + looks.rise
    assert expected == pytest.approx(ramps(looks.now_s + LEAD), rel=0.03)


def test_what_happens_on_one_day_of_the_week_is_learned_from_the_week_before() -> None:
    looks = Looks(lambda at_s: bursts(at_s) if at_s // DAY % 7 in (1, 4) else LOW)
    looks.until(22 * DAY + BURST_S - LEAD / 2)  # a day with a burst after one without
    assert looks.forecast is not None
    assert looks.forecast.weekly
    assert looks.rise > 0.7 * (HIGH - LOW)
    looks.until(23 * DAY + BURST_S - LEAD / 2)  # one without after one with
    assert looks.rise < 0.1


def test_bins_that_nobody_saw_are_unknown_and_not_zero() -> None:
    looks = Looks(bursts)
    looks.until(burst_of(2) - 5 * BIN)
    looks.unseen(burst_of(2) + LENGTH_S + 5 * BIN)
    looks.until(3 * DAY)
    unknown = [rate for rate in looks.season.rates[-60:] if rate is None]
    assert 14 <= len(unknown) <= 16
    assert 0.0 not in looks.season.rates
    looks.until(burst_of(3) - LEAD / 2)
    assert looks.forecast is not None
    assert looks.forecast.days == 2, "of the three days before"
    assert looks.rise > 0.8 * (HIGH - LOW)
    first = Looks(bursts)
    first.unseen(DAY)
    first.until(burst_of(1))
    assert first.forecast is None


def test_what_was_foretold_for_a_time_that_nobody_saw_is_compared_with_nothing() -> None:
    looks = Looks(bursts)
    looks.until(burst_of(2) - LEAD / 2)
    before = looks.season.trusts
    looks.unseen(burst_of(2) + LENGTH_S + 2 * LEAD)
    looks.until(burst_of(2) + LENGTH_S + 2 * LEAD + TICK)
    assert looks.season.trusts == before
    assert len(looks.season.pending) == 1


@pytest.mark.parametrize(("slope", "at_s", "what"), [(0.2, 0.0, "a rise of less"), (-0.2, -600.0, "no rise")])
def test_the_season_adds_nothing_where_it_expects_less_than_the_filter_or_no_rise(
    slope: float, at_s: float, what: str
) -> None:
    season = ShortDays().with_history({number: bursts(number * BIN) for number in range(8 * 60)}, 8 * 60)
    known = RateForecaster(Trend(10.0, slope, 1e-9, 0.0, 1e-12))
    found = season.forecast(burst_of(8) - LEAD / 2 + at_s, known, LEAD)
    assert found is not None
    assert found.share > 0.9
    assert found.rise_per_s == 0, what


def test_a_bin_of_which_less_than_half_was_seen_is_unknown() -> None:
    looks = Looks(lambda _: LOW)
    looks.until(2 * BIN + 20)
    looks.unseen(3 * BIN)
    looks.until(4 * BIN + 40)
    looks.unseen(5 * BIN)
    looks.until(6 * BIN)
    assert looks.season.rates == (LOW, LOW, None, LOW, LOW)


def test_after_a_restart_it_goes_on_where_it_was() -> None:
    looks = Looks(bursts, random.Random(8))
    looks.until(burst_of(2) - LEAD / 2)
    read = SEASON.validate_json(SEASON.dump_json(looks.season))
    assert read == looks.season
    other = replace(looks, season=read, noise=random.Random(9))
    looks.noise = random.Random(9)
    assert other.until(3 * DAY) == looks.until(3 * DAY)


def test_a_clock_that_was_set_shifts_bins_and_breaks_nothing() -> None:
    looks = Looks(bursts)
    looks.until(3 * DAY)
    back = replace(looks, now_s=2.5 * DAY)
    back.until(2.9 * DAY)
    assert back.season.rates == looks.season.rates, "windows of bins that are over are left out"
    assert (back.season.count, back.season.seconds) == (looks.season.count, looks.season.seconds)
    back.until(3.2 * DAY)
    assert back.season.number == 3.2 * 60 - 1
    ahead = replace(looks, now_s=30 * DAY)
    ahead.until(30 * DAY + 2 * TICK)
    assert (ahead.season.rates, ahead.forecast) == ((), None), "more than a week later all is unknown"


def test_bins_are_those_of_utc_days_which_never_have_23_or_25_hours() -> None:
    """On 25 October 2026 clocks of Europe go back; 10:00 UTC is 24 hours after 10:00 UTC all the same."""
    at_s = datetime(2026, 10, 25, 10, tzinfo=UTC).timestamp()
    assert (at_s - datetime(2026, 10, 24, 10, tzinfo=UTC).timestamp()) == DAY_S
    assert at_s % DAY_S / BIN_S == 10 * 12


@given(
    st.lists(
        st.tuples(st.floats(0.1, 3 * DAY), st.floats(0, 1e5), st.floats(1, 5000), st.booleans()),
        min_size=1, max_size=60,
    ),
    st.integers(0, 2**31),
)  # fmt: skip
def test_whatever_is_seen_the_rise_is_a_number_of_zero_or_more_and_no_more_than_a_day_brought(
    looks: list[tuple[float, float, float, bool]], start: int
) -> None:
    season: Season = ShortDays()
    forecaster, now_s, most = RateForecaster(), float(start), 0.0
    for step_s, count, lead_s, back in looks:
        now_s += -step_s if back else step_s
        forecaster = forecaster.observe(count, TICK, now_s)
        season = season.observe(count, TICK, now_s, forecaster, lead_s)
        most = max(most, count / TICK)
        found = season.forecast(now_s, forecaster, lead_s)
        if found is not None:
            assert 0 <= found.rise_per_s <= 3 * most + 1
            assert 0 <= found.share <= 1
        assert len(season.rates) <= 7 * 60 + 2
        assert len(season.pending) <= 20


def test_trust_is_the_share_of_the_foretold_rises_that_came() -> None:
    trust = Trust()
    for _ in range(int(DAY / BIN)):
        trust = trust.compare(4.0, 3.0, BIN, DAY)
    assert trust.share(DAY) == pytest.approx(0.75)
    assert trust.compare(4.0, 3.0, BIN, DAY).share(2 * DAY) == 0, "for less than a day"
    against = Trust()
    for _ in range(int(DAY / BIN)):
        against = against.compare(4.0, -3.0, BIN, DAY)
    assert against.share(DAY) == 0
    assert Trust().share(DAY) == 0
