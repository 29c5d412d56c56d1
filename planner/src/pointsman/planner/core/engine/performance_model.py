"""How long the engine takes: a base model, and its correction from what is observed.

Base models answer two questions, in milliseconds:

* ``prefill_ms(new_tokens, prefix_tokens)``: one prompt alone in the prefill engine, ``prefix_tokens`` of it cached;
* ``decode_step_ms(batch, kv_tokens)``: one decode step of ``batch`` sequences that hold ``kv_tokens`` tokens together.

``GridModel`` interpolates a measured grid; mixture-of-experts models are 16–21 % off in the linear form.
``Correction`` is a line over it, fitted to what is observed: engines, drivers and models differ from any table by up
to 3x.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pointsman.planner.core.tuning import SHIPPED


class PerformanceModel(Protocol):
    """What the planner and the simulator ask of a model. All times are milliseconds."""

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        """Time to prefill ``new_tokens`` after ``prefix_tokens`` that are cached."""

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        """Time of one decode step for ``batch`` sequences holding ``kv_tokens`` tokens in all."""


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


# --- correction ---


@dataclass(frozen=True, slots=True)
class Correction:
    """Time = ``fixed_ms`` + ``factor`` × the table's time, within a bound; so it rises as the table does."""

    fixed_ms: float = 0.0
    factor: float = 1.0

    def ms(self, table_ms: float, bound: float = SHIPPED.model_ratio_bound) -> float:
        """The corrected time of what takes ``table_ms`` by the table: at most ``bound`` times as long or as short."""
        return min(max(self.fixed_ms + self.factor * table_ms, table_ms / bound), bound * table_ms)

    @classmethod
    def fit(cls, seen: Iterable[tuple[float, float, float]], bound: float = SHIPPED.model_ratio_bound) -> "Correction":
        """The line with the least relative errors over (milliseconds by the table, observed, samples)."""
        # A time of 0 in a user's table is no time to compare with. One beyond the bound, as of a pod that was paused,
        # counts as if it were at the bound.
        points = [
            (1 / table_ms, min(max(observed_ms / table_ms, 1 / bound), bound), weight)
            for table_ms, observed_ms, weight in seen
            if table_ms > 0
        ]
        if not points:
            return cls()
        total = sum(weight for _, _, weight in points)
        mean = sum(weight * inverse for inverse, _, weight in points) / total
        ratio = sum(weight * ratio for _, ratio, weight in points) / total
        # A line of the ratio over the inverse of the table's time, about the middle of what was seen: its rise there is
        # the fixed part's share of the time.
        spread = 1 + sum(weight * (inverse / mean - 1) ** 2 for inverse, _, weight in points)
        fixed = sum(weight * (inverse / mean - 1) * (each - ratio) for inverse, each, weight in points) / spread
        middle = (ratio * total + 1) / (total + 1)  # the table counts as one sample
        return cls(fixed / mean, max(0.0, middle - fixed))


@dataclass(frozen=True, slots=True)
class CorrectedModel:
    """A table, corrected by what is observed: what everything else in the planner asks."""

    base: PerformanceModel
    prefill: Correction = Correction()
    decode: Correction = Correction()
    ratio_bound: float = SHIPPED.model_ratio_bound

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        return self.prefill.ms(self.base.prefill_ms(new_tokens, prefix_tokens), self.ratio_bound)

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        return self.decode.ms(self.base.decode_step_ms(batch, kv_tokens), self.ratio_bound)
