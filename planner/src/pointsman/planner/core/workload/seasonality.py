"""What the same time of the last days says of the next minutes: rises that the rate itself does not show yet.

The mean rate of each bin of the last week is remembered. A forecast of it is the level of the present plus the rise
from now to then on earlier days: on all of them (``day``), or a week ago (``week``). It is compared with what came, as
the Kalman filter's forecast is, and believed for the share of the rises it foretold beyond the filter that came: the
least-squares weight of two forecasts (Bates and Granger 1969). Only rises count, nothing is expected to fall by it.

Times are seconds since 1970 in UTC, rates requests a second. What is unknown is None, never 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import ClassVar, Final

from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.workload.arrival_forecast import RateForecaster

DAY_S: Final = 86_400.0
BIN_S: Final = 300.0
DAYS: Final = 7
MOST_PENDING: Final = 20  # … and of those, at most, not compared yet


@dataclass(frozen=True, slots=True)
class Trust:
    """How much of the rises that were foretold beyond the filter's forecast came; sums that fade."""

    came: float = 0.0  # foretold · came
    foretold: float = 0.0  # foretold²
    compared_s: float = 0.0

    def compare(self, foretold: float, came: float, weight_s: float, day_s: float) -> "Trust":
        """With one more comparison, that stands for ``weight_s``; both beyond what the filter expected."""
        keep = math.exp(-weight_s / (2 * day_s))  # what was compared two days ago weighs a third
        return Trust(
            keep * self.came + weight_s * foretold * came,
            keep * self.foretold + weight_s * foretold * foretold,
            self.compared_s + weight_s,
        )

    def share(self, day_s: float) -> float:
        """How far it is believed, 0 to 1; not at all before a day was compared."""
        if self.foretold <= 0 or self.compared_s < day_s:
            return 0.0
        return min(max(self.came / self.foretold, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class SeasonalForecast:
    """What the season says of the rate at the lead."""

    per_s: float  # it alone
    days: int  # of so many days before …
    weekly: bool  # … or of the same day a week before
    share: float  # how far it is believed
    rise_per_s: float  # that it adds to the filter's forecast, 0 or more


@dataclass(frozen=True, slots=True)
class _Promise:
    """Rises foretold beyond the filter's forecast ``filter_per_s``; None: not known."""

    due_s: float
    filter_per_s: float
    rises_per_s: tuple[float | None, ...]  # by the days before, and by the same day a week before


@dataclass(frozen=True, slots=True)
class Season:
    """A week of bins and what they were worth. ``rates`` are those of the bins before ``number``, the newest last;
    bins are numbered since 1970. A simulation with shorter days has a subclass."""

    day_s: ClassVar[float] = DAY_S
    bin_s: ClassVar[float] = BIN_S
    number: int | None = None  # of the bin in progress
    count: float = 0.0
    seconds: float = 0.0
    rates: tuple[float | None, ...] = ()
    trusts: tuple[Trust, ...] = (Trust(), Trust())  # in the days before, and in the same day a week before
    pending: tuple[_Promise, ...] = ()

    def observe(
        self,
        count: float,
        window_s: float,
        now_s: float,
        forecaster: RateForecaster,
        lead_s: float,
        tuning: Tuning = SHIPPED,
    ) -> "Season":
        """Take ``count`` arrivals of the last window, that ``forecaster`` has just seen."""
        trend = forecaster.trend
        if trend is None or window_s <= 0:
            return self
        every_s = max(self.bin_s / 10, lead_s / MOST_PENDING, window_s)
        season = self._counted(count, window_s, now_s)
        season = season._compared(trend.level, every_s, now_s)
        due_s = now_s + lead_s + 2 * window_s  # a rise is known two windows later
        if season.pending and due_s < season.pending[-1].due_s + every_s:
            return season
        expected = forecaster.expected(lead_s, tuning)
        rises = (
            None if rise is None else _beyond(trend.level, rise, expected)
            for rise in season._rises(now_s, now_s + lead_s)
        )
        promise = _Promise(due_s, expected, tuple(rises))
        return replace(season, pending=(*season.pending, promise)[-MOST_PENDING:])

    def forecast(
        self, now_s: float, forecaster: RateForecaster, lead_s: float, tuning: Tuning = SHIPPED
    ) -> SeasonalForecast | None:
        """By the one of day and week whose rises came more; None before a day is known."""
        if forecaster.trend is None:
            return None
        level, expected = forecaster.trend.level, forecaster.expected(lead_s, tuning)
        days = sum(self._rise(now_s, now_s + lead_s, back) is not None for back in range(1, DAYS + 1))
        found = [
            SeasonalForecast(
                max(0.0, level + rise), known, weekly, trust.share(self.day_s),
                trust.share(self.day_s) * _beyond(level, rise, expected),
            )
            for rise, known, weekly, trust in zip(
                self._rises(now_s, now_s + lead_s), (days, 1), (False, True), self.trusts, strict=True
            )
            if rise is not None
        ]  # fmt: skip
        removed = [trust.came * trust.share(self.day_s) for trust in self.trusts]
        return found[-1] if found and removed[1] > removed[0] else found[0] if found else None

    def with_history(self, rates: Mapping[int, float], number: int) -> "Season":
        """The season of these bins before ``number``, by their numbers. What they foretell of each other is compared as
        if the filter expected that each bin goes on."""
        first = max(min(rates, default=number), number - 2 * self._kept)
        season = type(self)(first)
        for each in range(first, number):
            season = season._next(rates.get(each))._compared_bins()
        return season

    @property
    def known_bins(self) -> int:
        """Of the last week."""
        return sum(rate is not None for rate in self.rates)

    @property
    def history_bins(self) -> int:
        """That a history should have: a week, and a day for which it can be compared."""
        return round((DAYS + 1) * self.day_s / self.bin_s)

    @property
    def _kept(self) -> int:
        return round(DAYS * self.day_s / self.bin_s) + 2  # a neighbour on each side

    def _counted(self, count: float, window_s: float, now_s: float) -> "Season":
        number = math.floor((now_s - window_s / 2) / self.bin_s)
        season = self if self.number is not None else replace(self, number=number)
        assert season.number is not None
        if number - season.number > self._kept:  # nothing of a week is known any more
            season = type(self)(number)
        while season.number is not None and season.number < number:
            # Of a bin that was seen for less than half of its time no rate is known.
            rate = season.count / season.seconds if season.seconds >= season.bin_s / 2 else None
            season = season._next(rate)
        if number < (season.number or 0):
            return season  # of a bin that is over
        return replace(season, count=season.count + count, seconds=season.seconds + window_s)

    def _next(self, rate: float | None) -> "Season":
        """The bin in progress is over."""
        assert self.number is not None
        rounded = None if rate is None else float(f"{rate:.3g}")
        rates = (*self.rates, rounded)[-self._kept :]
        return replace(self, number=self.number + 1, count=0.0, seconds=0.0, rates=rates)

    def _compared(self, came_per_s: float, every_s: float, now_s: float) -> "Season":
        """What was foretold for the last ``every_s`` with what came; what nobody saw is compared with nothing."""
        season = replace(self, pending=tuple(promise for promise in self.pending if promise.due_s > now_s))
        for promise in self.pending:
            if now_s - every_s < promise.due_s <= now_s:
                season = season._with(promise.rises_per_s, came_per_s - promise.filter_per_s, every_s)
        return season

    def _compared_bins(self) -> "Season":
        """What earlier days foretold of the newest bin, from the one before, with what came."""
        if len(self.rates) < 2 or self.rates[-1] is None or self.rates[-2] is None or self.number is None:
            return self
        before, came = self.rates[-2], self.rates[-1] - self.rates[-2]
        then_s = (self.number - 0.5) * self.bin_s
        rises = self._rises(then_s - self.bin_s, then_s)
        foretold = [None if rise is None else _beyond(before, rise, before) for rise in rises]
        return self._with(foretold, came, self.bin_s)

    def _with(self, foretold: Sequence[float | None], came: float, weight_s: float) -> "Season":
        """With one more comparison of each forecast that is known."""
        trusts = (
            trust if rise is None else trust.compare(rise, came, weight_s, self.day_s)
            for trust, rise in zip(self.trusts, foretold, strict=True)
        )
        return replace(self, trusts=tuple(trusts))

    def _rises(self, from_s: float, to_s: float) -> tuple[float | None, float | None]:
        """By the days before, their mean, and by the same day a week before; None: not known."""
        days = [rise for back in range(1, DAYS + 1) if (rise := self._rise(from_s, to_s, back)) is not None]
        return fmean(days) if days else None, self._rise(from_s, to_s, DAYS)

    def _rise(self, from_s: float, to_s: float, back: int) -> float | None:
        """From one moment to another, so many days before; None: one of them is not known."""
        before, then = self._rate(from_s - back * self.day_s), self._rate(to_s - back * self.day_s)
        return None if before is None or then is None else then - before

    def _rate(self, at_s: float) -> float | None:
        """At a moment of the past: within its bin the rate changes as between both neighbours at least, so that a slope
        stays a slope and a step a step (minmod, as finite-volume methods reconstruct)."""
        number = math.floor(at_s / self.bin_s)
        rate = self._of_bin(number)
        if rate is None:
            return None
        before, after = self._of_bin(number - 1), self._of_bin(number + 1)
        if before is None or after is None or (rate - before) * (after - rate) <= 0:
            return rate
        return rate + min(rate - before, after - rate, key=abs) * (at_s / self.bin_s - number - 0.5)

    def _of_bin(self, number: int) -> float | None:
        index = number - ((self.number or 0) - len(self.rates))
        return self.rates[index] if 0 <= index < len(self.rates) else None


def _beyond(level: float, rise: float, expected: float) -> float:
    """What a rise of the season would add to what is expected without it."""
    return max(0.0, level + rise - expected) if rise > 0 else 0.0
