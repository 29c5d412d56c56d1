"""What the next minutes bring: a Kalman filter with a local linear trend, bounds from its own past errors.

The filter runs on ``log1p(rate)``, so a doubling weighs the same at any level and a forecast is never negative. Bounds
are conformal: the empirical quantile of the last errors *at that horizon*, with no assumption about their distribution.
"""

import math
from dataclasses import dataclass, replace

LEVEL_NOISE = 1.0  # relative to OBSERVATION_NOISE: how fast the level may move
TREND_NOISE = 0.1
OBSERVATION_NOISE = 10.0
KEPT_ERRORS = 200
MIN_ERRORS = 10  # before the empirical quantile is used
TREND_HALF_LIFE_TICKS = 24.0  # a trend is not believed for ever: it fades over two minutes of 5 s ticks
BURST_BOUNDS = (1.0, 9.0)


@dataclass(frozen=True, slots=True)
class Kalman:
    """Level and trend of one series, with their covariance. ``trend`` is per tick."""

    level: float
    trend: float = 0.0
    var_level: float = 1.0
    var_trend: float = 0.1
    covariance: float = 0.0

    def predict(self) -> "Kalman":
        """The state one tick later, before its observation."""
        return Kalman(
            level=self.level + self.trend,
            trend=self.trend,
            var_level=self.var_level + 2 * self.covariance + self.var_trend + LEVEL_NOISE,
            var_trend=self.var_trend + TREND_NOISE,
            covariance=self.covariance + self.var_trend,
        )

    def update(self, observed: float) -> "Kalman":
        """The state after seeing ``observed``."""
        gain_level = self.var_level / (self.var_level + OBSERVATION_NOISE)
        gain_trend = self.covariance / (self.var_level + OBSERVATION_NOISE)
        surprise = observed - self.level
        return Kalman(
            level=self.level + gain_level * surprise,
            trend=self.trend + gain_trend * surprise,
            var_level=(1 - gain_level) * self.var_level,
            var_trend=self.var_trend - gain_trend * self.covariance,
            covariance=(1 - gain_level) * self.covariance,
        )

    def ahead(self, ticks: float) -> float:
        """The level ``ticks`` from now, the trend fading with ``TREND_HALF_LIFE_TICKS``."""
        fade = math.log(2) / TREND_HALF_LIFE_TICKS
        return self.level + self.trend * (1 - math.exp(-fade * ticks)) / fade


@dataclass(frozen=True, slots=True)
class Forecast:
    """A rate at one horizon, in the unit of the series."""

    expected: float
    high: float  # q90 of past errors above the forecast: what capacity is planned for
    low: float  # the median error: what a scale-in may count on


@dataclass(frozen=True, slots=True)
class Horizon:
    """Forecasts made for one horizon: those still waiting for their truth, and the errors of those that have it."""

    ticks: int
    pending: tuple[
        float, ...
    ] = ()  # log1p forecasts, oldest first; the oldest is due now when there are ``ticks`` of them
    errors: tuple[float, ...] = ()  # observed − forecast, in log1p


@dataclass(frozen=True, slots=True)
class RateForecaster:
    """One series. ``observe`` once per tick; None (nothing was seen) advances the filter without an observation."""

    horizons: tuple[Horizon, ...]
    state: Kalman | None = None

    @classmethod
    def for_horizons(cls, *ticks: int) -> "RateForecaster":
        """A fresh forecaster. Horizons are in ticks, at least 1."""
        if any(horizon < 1 for horizon in ticks):
            raise ValueError(f"horizons are {ticks}: each must be at least 1 tick")
        return cls(tuple(Horizon(horizon) for horizon in ticks))

    def observe(self, rate: float | None) -> "RateForecaster":
        """Take this tick's rate (0 or more). Raises ValueError for a negative one: a counter was read wrong."""
        if rate is None:
            if self.state is None:
                return self
            state = self.state.predict()
            return RateForecaster(tuple(_advance(h, None, state) for h in self.horizons), state)
        if rate < 0 or not math.isfinite(rate):
            raise ValueError(f"rate is {rate}: it must be a finite number, 0 or more")
        seen = math.log1p(rate)
        state = Kalman(seen) if self.state is None else self.state.predict().update(seen)
        return RateForecaster(tuple(_advance(h, seen, state) for h in self.horizons), state)

    def at(self, ticks: int) -> Forecast | None:
        """The forecast for one of the horizons; None before anything was observed."""
        if self.state is None:
            return None
        errors = next(h.errors for h in self.horizons if h.ticks == ticks)
        expected = self.state.ahead(ticks)
        return Forecast(
            expected=_rate(expected),
            high=_rate(expected + _quantile(errors, 0.9)),
            low=_rate(expected + _quantile(errors, 0.5)),
        )


def _advance(horizon: Horizon, seen: float | None, state: Kalman) -> Horizon:
    pending, errors = horizon.pending, horizon.errors
    if len(pending) >= horizon.ticks:
        if seen is not None:  # a forecast whose truth was not seen teaches nothing
            errors = (*errors, seen - pending[0])[-KEPT_ERRORS:]
        pending = pending[1:]
    return replace(horizon, pending=(*pending, state.ahead(horizon.ticks)), errors=errors)


def _rate(log_rate: float) -> float:
    return max(math.expm1(log_rate), 0.0)


def _quantile(errors: tuple[float, ...], share: float) -> float:
    """The conformal quantile: ⌈(n+1)·share⌉-th smallest. Few errors: 0.2 (22 % more) for q90, 0 for the median."""
    if len(errors) < MIN_ERRORS:
        return 0.2 if share > 0.5 else 0.0
    ordered = sorted(errors)
    rank = min(math.ceil((len(ordered) + 1) * share), len(ordered))
    return ordered[rank - 1]


def burst_index(inter_arrivals_s: list[float]) -> float:
    """Squared coefficient of variation of inter-arrival times: 1 is Poisson. Too few samples: 1."""
    if len(inter_arrivals_s) < MIN_ERRORS:
        return 1.0
    mean = sum(inter_arrivals_s) / len(inter_arrivals_s)
    if mean <= 0:
        return BURST_BOUNDS[1]
    variance = sum((x - mean) ** 2 for x in inter_arrivals_s) / len(inter_arrivals_s)
    low, high = BURST_BOUNDS
    return min(max(variance / (mean * mean), low), high)
