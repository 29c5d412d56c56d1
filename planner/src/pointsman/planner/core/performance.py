"""How long the engine takes: a base model, and its correction from what is observed.

Base models answer two questions, in milliseconds:

* ``prefill_ms(new_tokens, prefix_tokens)``: one prompt alone in the prefill engine, ``prefix_tokens`` of it cached;
* ``decode_step_ms(batch, kv_tokens)``: one decode step of ``batch`` sequences that hold ``kv_tokens`` tokens together.

Two are here: ``LinearModel`` (three coefficients each, the usual roofline form) and ``GridModel`` (interpolates a
measured grid; mixture-of-experts models are 16–21 % off in the linear form). ``Calibration`` multiplies either by κ,
learned per region of the input from observed/predicted: engines, drivers and models differ from any table by up to 3x.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol


class PerformanceModel(Protocol):
    """What the planner and the simulator ask of a model. All times are milliseconds."""

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        """Time to prefill ``new_tokens`` after ``prefix_tokens`` that are cached."""

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        """Time of one decode step for ``batch`` sequences holding ``kv_tokens`` tokens in all."""


@dataclass(frozen=True, slots=True)
class LinearModel:
    """``prefill = max(floor, a + b·n + c·(n·p + n²/2))``, ``decode step = d0 + d1·B + d2·K``; coefficients in ms."""

    prefill_a: float
    prefill_b: float
    prefill_c: float
    decode_d0: float
    decode_d1: float
    decode_d2: float
    prefill_floor_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prefill_a", "prefill_b", "prefill_c", "decode_d0", "decode_d1", "decode_d2", "prefill_floor_ms"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value}: it must be a finite number of milliseconds, 0 or more")

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        attention = new_tokens * prefix_tokens + new_tokens * new_tokens / 2
        return max(self.prefill_floor_ms, self.prefill_a + self.prefill_b * new_tokens + self.prefill_c * attention)

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        return self.decode_d0 + self.decode_d1 * batch + self.decode_d2 * kv_tokens


@dataclass(frozen=True, slots=True)
class Grid:
    """Values over two axes, interpolated bilinearly in the logarithm of both; outside, the edge's slope goes on.

    ``columns[i]`` maps the second axis' values to the third for ``first[i]``; the columns need not be of one length
    (a measured grid ends where memory ends). Times grow as powers of their inputs, so logarithms make them near linear.
    """

    first: tuple[float, ...]
    columns: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]

    @classmethod
    def of(cls, rows: Sequence[tuple[float, float, float]]) -> "Grid":
        """From rows ``(first, second, value)``. Raises ValueError when there is nothing to interpolate."""
        by_first: dict[float, dict[float, float]] = {}
        for first, second, value in rows:
            if value <= 0:
                raise ValueError(f"value at ({first}, {second}) is {value}: a time must be above 0")
            by_first.setdefault(float(first), {})[float(second)] = float(value)
        if len(by_first) < 2:
            raise ValueError(f"{len(by_first)} values on the first axis: at least 2 are needed to interpolate")
        axis = tuple(sorted(by_first))
        columns = tuple(
            (tuple(sorted(column)), tuple(column[key] for key in sorted(column)))
            for column in (by_first[first] for first in axis)
        )
        return cls(axis, columns)

    def at(self, first: float, second: float) -> float:
        """The value at a point; always above 0."""
        low = _segment(self.first, first)
        below, above = self._column(low, second), self._column(low + 1, second)
        return _between(self.first[low], self.first[low + 1], below, above, first)

    def _column(self, index: int, second: float) -> float:
        axis, values = self.columns[index]
        if len(axis) == 1:
            return values[0]
        low = _segment(axis, second)
        return _between(axis[low], axis[low + 1], values[low], values[low + 1], second)


def _segment(axis: tuple[float, ...], x: float) -> int:
    """Index of the lower end of the segment of ``axis`` that holds ``x``, or of the nearest one outside."""
    return min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)


def _between(x0: float, x1: float, y0: float, y1: float, x: float) -> float:
    """Interpolate log y over log(1 + x). Extrapolation keeps the slope, but never a falling one."""
    share = (math.log1p(max(x, 0.0)) - math.log1p(x0)) / (math.log1p(x1) - math.log1p(x0))
    slope = math.log(y1) - math.log(y0)
    if share > 1 and slope < 0:
        return y1
    return math.exp(math.log(y0) + share * slope)


@dataclass(frozen=True, slots=True)
class GridModel:
    """Measured grids: prefill over (new, prefix) tokens, decode step over (batch, context per sequence)."""

    prefill: Grid
    decode: Grid

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        return self.prefill.at(new_tokens, prefix_tokens)

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        return self.decode.at(batch, kv_tokens / batch if batch > 0 else 0.0)


# --- calibration ---

KAPPA_WEIGHT = 0.1  # of one sample, in log space
KAPPA_MIN_SAMPLES = 5  # before a bucket's κ is used
KAPPA_BOUNDS = (0.5, 2.0)
UNTRUSTED_ABOVE_ERROR = 0.30  # mean absolute relative error …
UNTRUSTED_AFTER_UPDATES = 10  # … for this many updates in a row


@dataclass(frozen=True, slots=True)
class Bucket:
    """κ of one region of the input, as a mean of logarithms."""

    log_kappa: float = 0.0
    samples: int = 0

    def observe(self, ratio: float) -> "Bucket":
        """Take one observed/predicted ratio."""
        # The first samples are averaged evenly, so that a fresh bucket is not 90 % its start value.
        weight = max(KAPPA_WEIGHT, 1 / (self.samples + 1))
        return Bucket(self.log_kappa + weight * (math.log(ratio) - self.log_kappa), self.samples + 1)


@dataclass(frozen=True, slots=True)
class Calibration:
    """κ per bucket of one role's base model, and whether the corrected model can be trusted.

    A bucket without enough samples uses the κ of the nearest that has them, or the median of all, whichever is slower:
    a batch larger than any that was seen is no quicker than the largest was, whatever the small ones of a quiet hour
    were; and what few samples of the nearest say is not believed to be quicker than the rest. Without any it is 1.
    ``error`` is the mean absolute relative error of the *corrected* predictions (None before the first sample).
    """

    buckets: tuple[tuple[str, Bucket], ...] = ()
    error: float | None = None
    bad_updates: int = field(default=0)

    @property
    def trusted(self) -> bool:
        """Whether the factors mend the table; else what the service taught takes its place, where that is better."""
        return self.bad_updates < UNTRUSTED_AFTER_UPDATES

    def kappa(self, bucket: str) -> float:
        """The factor for one bucket, within ``KAPPA_BOUNDS``."""
        known = {key: b.log_kappa for key, b in self.buckets if b.samples >= KAPPA_MIN_SAMPLES}
        if bucket in known:
            chosen = known[bucket]
        elif known:
            away = {key: _distance(key, bucket) for key in known}
            least = min(away.values())
            nearest = [log_kappa for key, log_kappa in known.items() if away[key] == least]
            ordered = sorted(known.values())
            middle = len(ordered) // 2
            median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
            chosen = max(median, sum(nearest) / len(nearest))
        else:
            chosen = 0.0
        low, high = KAPPA_BOUNDS
        return min(max(math.exp(chosen), low), high)

    def observe(self, bucket: str, *, observed_ms: float, predicted_ms: float) -> "Calibration":
        """Take one observation. ``predicted_ms`` is the base model's, uncorrected. What is not above 0 is not taken."""
        if not (observed_ms > 0 and predicted_ms > 0 and math.isfinite(observed_ms) and math.isfinite(predicted_ms)):
            return self
        corrected = predicted_ms * self.kappa(bucket)
        miss = abs(observed_ms - corrected) / observed_ms
        error = miss if self.error is None else self.error + KAPPA_WEIGHT * (miss - self.error)
        kept = dict(self.buckets)
        kept[bucket] = kept.get(bucket, Bucket()).observe(observed_ms / predicted_ms)
        bad = self.bad_updates + 1 if error > UNTRUSTED_ABOVE_ERROR else 0
        return replace(self, buckets=tuple(sorted(kept.items())), error=error, bad_updates=bad)


def prefill_bucket(tokens: float) -> str:
    """One of 8 log-spaced buckets of prompt lengths, up to 131 072 tokens."""
    return f"p{_log_bucket(tokens, 64, 131_072, 8)}"


def decode_bucket(batch: float, kv_tokens: float) -> str:
    """One of 8×8 buckets over (batch, KV tokens)."""
    return f"d{_log_bucket(batch, 1, 512, 8)}-{_log_bucket(kv_tokens, 256, 1_048_576, 8)}"


@cache
def _distance(one: str, other: str) -> int:
    """How many steps two buckets of a role are apart."""
    return sum(abs(a - b) for a, b in zip(_place(one), _place(other), strict=False))


def _place(bucket: str) -> tuple[int, ...]:
    return tuple(int(part) for part in bucket[1:].split("-") if part.isdecimal())


def _log_bucket(x: float, low: float, high: float, count: int) -> int:
    if x <= low:
        return 0
    share = math.log(x / low) / math.log(high / low)
    return min(int(share * count), count - 1)


@dataclass(frozen=True, slots=True)
class CalibratedModel:
    """A base model times κ: what everything else in the planner asks."""

    base: PerformanceModel
    prefill: Calibration = Calibration()
    decode: Calibration = Calibration()

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        return self.base.prefill_ms(new_tokens, prefix_tokens) * self.prefill.kappa(prefill_bucket(new_tokens))

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        return self.base.decode_step_ms(batch, kv_tokens) * self.decode.kappa(decode_bucket(batch, kv_tokens))

    @property
    def trusted(self) -> bool:
        """Both roles' corrections are within bounds."""
        return self.prefill.trusted and self.decode.trusted
