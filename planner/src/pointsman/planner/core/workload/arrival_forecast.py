"""What the next minutes bring: a Kalman filter with a local linear trend on counts.

Arrivals in a window are counts, so their variance grows with the rate: the noise is Poisson's times a dispersion that
is learned. A surprise no such noise explains (a step) re-arms the filter at once instead of being followed slowly.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from pointsman.planner.core.tuning import SHIPPED, Tuning

SURPRISES_KEPT: Final = 8


@dataclass(frozen=True, slots=True)
class Trend:
    """Level (per second) and slope (per second²) of a rate, with their covariance."""

    level: float
    slope: float
    var_level: float
    covariance: float
    var_slope: float

    def predict(self, seconds: float, floor: float) -> "Trend":
        """The state ``seconds`` later, before anything is seen of it."""
        scale = max(self.level, floor)
        return Trend(
            level=max(0.0, self.level + self.slope * seconds),
            slope=self.slope,
            var_level=self.var_level
            + 2 * seconds * self.covariance
            + seconds * seconds * self.var_slope
            + (2e-4 * scale * scale + 1e-3) * seconds,  # (1.4 % of the level)² a second, and a floor
            covariance=self.covariance + seconds * self.var_slope,
            var_slope=self.var_slope + 2.5e-8 * scale * scale * seconds,  # (of the level a second)² a second
        )

    def update(self, surprise: float, noise: float) -> "Trend":
        """The state after a window whose rate was ``surprise`` above the level, measured with variance ``noise``."""
        total = self.var_level + noise
        gain_level, gain_slope = self.var_level / total, self.covariance / total
        return Trend(
            level=max(0.0, self.level + gain_level * surprise),
            slope=self.slope + gain_slope * surprise,
            var_level=(1 - gain_level) * self.var_level,
            covariance=(1 - gain_level) * self.covariance,
            var_slope=self.var_slope - gain_slope * self.covariance,
        )


@dataclass(frozen=True, slots=True)
class RateForecaster:
    """One rate. ``observe`` every tick; a window that was not seen is a gap, not a zero. Times are seconds."""

    trend: Trend | None = None
    dispersion: float = 1.5  # variance of counts relative to Poisson's
    surprises: tuple[float, ...] = ()
    rose_s: float | None = None  # when the rate rose suddenly, unless it fell since …
    fell_s: float | None = None  # … and when it last fell suddenly

    def observe(self, count: float | None, window_s: float, now_s: float, tuning: Tuning = SHIPPED) -> "RateForecaster":
        """Take ``count`` arrivals of the last ``window_s`` seconds; None: not known.

        Raises ValueError for a count that cannot be: a counter was read wrong.
        """
        if count is None or window_s <= 0:
            # The rate stays and the uncertainty grows: in a long gap any slope would lead to 0, or to a huge rate.
            return replace(self, trend=self.trend and replace(self.trend.predict(window_s, 0), level=self.trend.level))
        if count < 0 or not math.isfinite(count):
            raise ValueError(f"count is {count}: it must be a finite number, 0 or more")
        rate = count / window_s
        if self.trend is None:
            return replace(self, trend=Trend(rate, 0.0, max(rate, 1 / window_s) / window_s, 0.0, 1e-6))
        return self._follow(self.trend, rate, window_s, now_s, tuning)

    def _follow(self, trend: Trend, rate: float, window_s: float, now_s: float, tuning: Tuning) -> "RateForecaster":
        floor = 1 / window_s
        scale = max(trend.level, floor)
        trend = trend.predict(window_s, floor)
        noise = self.dispersion * scale / window_s
        surprise = rate - trend.level
        # Counts are skewed, their roots (with Anscombe's 3/8) hardly: 38 where 20 are usual is rare, but no four
        # standard deviations.
        usual, seen = (math.sqrt(count + 3 / 8) for count in (trend.level * window_s, rate * window_s))
        deviation = surprise / math.sqrt(trend.var_level + noise) * 2 * usual / (usual + seen)
        surprises = (*self.surprises, deviation)[-SURPRISES_KEPT:]
        sustained = max((abs(sum(surprises[-n:])) / math.sqrt(n) for n in range(4, len(surprises) + 1)), default=0.0)
        # One more for a fall: workers that stay a moment longer cost less than workers that are started again.
        most = tuning.surprise_sigmas + (1.0 if surprise < 0 else 0.0)
        if abs(deviation) <= most and sustained <= most - 0.5:
            spread = min(16.0, surprise * surprise * window_s / scale)
            dispersion = self.dispersion + 0.02 * (spread - self.dispersion)
            return replace(
                self, trend=trend.update(surprise, noise), surprises=surprises,
                dispersion=min(max(dispersion, 1.0), 9.0),
            )  # fmt: skip
        anew = Trend(trend.level, 0.0, surprise * surprise + trend.var_level + noise, 0.0, 1e-6 * scale * scale)
        changed = replace(self, trend=anew.update(surprise, noise), surprises=())
        return replace(changed, rose_s=None, fell_s=now_s) if surprise < 0 else replace(changed, rose_s=now_s)

    def expected(self, ahead_s: float, tuning: Tuning = SHIPPED) -> float:
        """The rate ``ahead_s`` from now; 0 before anything was seen."""
        trend = self.trend
        if trend is None:
            return 0.0
        # A slope that is less than its standard deviation is not used.
        believed = abs(trend.slope) > math.sqrt(max(trend.var_slope, 0.0))
        rate = max(0.0, trend.level + (trend.slope * ahead_s if believed else 0.0))
        # A step down looks like a trend for minutes: workers removed for where it seems to lead are started again.
        return min(max(rate, trend.level / tuning.max_forecast_fall), tuning.max_forecast_growth * trend.level + 1)
