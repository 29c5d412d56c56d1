"""From samples to the rows of a table: medians, made monotone, completed where nothing was measured.

No engine gets faster by more work, so what noise says against that is averaged away (pool adjacent violators). The
corners that time or memory left out are the nearest measured cell times what the linear model of
:mod:`pointsman.planner.core.engine.performance_model` says of the difference; the model itself is fitted to relative
errors, as DistServe's artifact does it (arXiv 2401.09670).
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pointsman.planner.profile.linear_model import LinearModel
from pointsman.planner.profile.types import PrefillSample, StepSample, TransferSample

LEAST_VALUES: Final = 2  # on the first axis of either grid: with fewer nothing can be interpolated
_SWEEPS: Final = 20  # of both axes; a grid that is monotone already takes one

Cell = tuple[int, int]
Rows = tuple[tuple[int, int, float], ...]


@dataclass(frozen=True, slots=True)
class Fitted:
    """Both grids as rows of a table, and the linear model of the same samples with its mean relative errors."""

    prefill: Rows
    steps: Rows
    linear: LinearModel
    prefill_error: float
    step_error: float
    prefill_spread: float  # median of (largest - smallest) / median of what was measured more than once
    step_spread: float


@dataclass(frozen=True, slots=True)
class Moved:
    """What moving KV takes: ``hop_ms + bytes / bytes_per_s``."""

    bytes_per_s: float
    hop_ms: float
    bytes_per_token: int


def missing(prefills: Sequence[PrefillSample], steps: Sequence[StepSample]) -> str | None:
    """What is lacking for a table, in words; None if nothing is."""
    lengths = len({sample.new_tokens for sample in prefills})
    batches = len({sample.point.batch for sample in steps})
    lacking = []
    if lengths < LEAST_VALUES:
        lacking.append(f"{lengths} of {LEAST_VALUES} prompt lengths")
    if batches < LEAST_VALUES:
        lacking.append(f"{batches} of {LEAST_VALUES} batch sizes")
    return " and ".join(lacking) or None


def fitted(prefills: Sequence[PrefillSample], steps: Sequence[StepSample]) -> Fitted:
    """The table of these samples. Raises ValueError if ``missing`` says something is."""
    lacking = missing(prefills, steps)
    if lacking is not None:
        raise ValueError(f"only {lacking} were measured")
    linear = linear_model(prefills, steps)
    times = _grouped(((s.new_tokens, s.prefix_tokens), s.ms) for s in prefills)
    stepped = _grouped(((s.point.batch, s.point.context_tokens), _at_the_rows_context(linear, s)) for s in steps)
    most_tokens = max(new + prefix for new, prefix in times)
    most_kv = max(batch * context for batch, context in stepped)
    prefill = _completed(_medians(times), linear.prefill_ms, lambda new, prefix: new + prefix <= most_tokens)
    step = _completed(
        _medians(stepped), lambda b, c: _step(linear, b, c), lambda batch, context: batch * context <= most_kv
    )
    return Fitted(
        prefill=_rows(_monotone(prefill)),
        steps=_rows(_monotone(step)),
        linear=linear,
        prefill_error=_error((linear.prefill_ms(s.new_tokens, s.prefix_tokens), s.ms) for s in prefills),
        step_error=_error((_step(linear, s.point.batch, s.context_tokens), s.ms) for s in steps),
        prefill_spread=_spread(times),
        step_spread=_spread(stepped),
    )


def moved(transfers: Sequence[TransferSample], prefill_ms: Callable[[int], float], overhead_ms: float) -> Moved | None:
    """What was seen of transfers; None if nothing was.

    ``hop_ms`` is what remains of the client's wait without the prefill, the transfer and what any request waits: the
    queue's and both workers' handling.
    """
    seen = [sample for sample in transfers if sample.kv_bytes > 0 and sample.ms > 0]
    if not seen:
        return None
    rest = [sample.wait_ms - overhead_ms - prefill_ms(sample.tokens) - sample.ms for sample in seen]
    return Moved(
        bytes_per_s=sum(s.kv_bytes for s in seen) / sum(s.ms / 1000 for s in seen),
        hop_ms=max(statistics.median(rest), 0.0),
        # Whole blocks are moved: where the last one is fullest, least is counted that is no token.
        bytes_per_token=round(min(s.kv_bytes / s.tokens for s in seen)),
    )


# --- the linear model ---


def linear_model(prefills: Sequence[PrefillSample], steps: Sequence[StepSample]) -> LinearModel:
    """The line with the least relative errors for each role, no coefficient below 0."""
    prefill = _least_squares(
        [(1.0, s.new_tokens, s.new_tokens * s.prefix_tokens + s.new_tokens**2 / 2) for s in prefills],
        [s.ms for s in prefills],
    )
    step = _least_squares(
        [(1.0, s.point.batch, s.point.batch * s.context_tokens) for s in steps], [s.ms for s in steps]
    )
    return LinearModel(*prefill, *step)


def _least_squares(features: Sequence[tuple[float, ...]], times: Sequence[float]) -> tuple[float, ...]:
    """Coefficients of least squared relative error, none below 0: of all subsets the best that needs no bound."""
    scaled = np.array(features, dtype=float) / np.array(times, dtype=float)[:, None]
    target = np.ones(len(times))
    count = scaled.shape[1]
    best, least = (statistics.median(times), *(0.0,) * (count - 1)), math.inf
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            found, *_ = np.linalg.lstsq(scaled[:, chosen], target, rcond=None)
            error = float(((scaled[:, chosen] @ found - target) ** 2).sum())
            if (found >= 0).all() and error < least - 1e-12:
                coefficients = [0.0] * count
                for index, value in zip(chosen, found, strict=True):
                    coefficients[index] = float(value)
                best, least = tuple(coefficients), error
    return best


def _at_the_rows_context(linear: LinearModel, sample: StepSample) -> float:
    """Sequences grow while they are measured: the time at the context that the row names."""
    batch, context = sample.point.batch, sample.point.context_tokens
    return sample.ms * _step(linear, batch, context) / _step(linear, batch, sample.context_tokens)


def _step(linear: LinearModel, batch: float, context: float) -> float:
    return linear.decode_step_ms(batch, batch * context)


def _error(pairs: Iterable[tuple[float, float]]) -> float:
    return statistics.fmean(abs(said - was) / was for said, was in pairs)


# --- grids ---


def _grouped(samples: Iterable[tuple[Cell, float]]) -> dict[Cell, list[float]]:
    found: dict[Cell, list[float]] = {}
    for cell, ms in samples:
        found.setdefault(cell, []).append(ms)
    return found


def _medians(grouped: Mapping[Cell, list[float]]) -> dict[Cell, float]:
    return {cell: statistics.median(values) for cell, values in grouped.items()}


def _spread(grouped: Mapping[Cell, list[float]]) -> float:
    repeated = [(max(v) - min(v)) / statistics.median(v) for v in grouped.values() if len(v) > 1]
    return statistics.median(repeated) if repeated else math.nan


def _completed(
    known: Mapping[Cell, float], model: Callable[[int, int], float], within: Callable[[int, int], bool]
) -> dict[Cell, float]:
    """Every cell of the axes that is ``within``; an unmeasured one from the nearest that was measured."""
    found = dict(known)
    for cell in itertools.product(sorted({a for a, _ in known}), sorted({b for _, b in known})):
        if cell in known or not within(*cell):
            continue
        nearest = min(known, key=lambda other: _distance(cell, other))
        found[cell] = known[nearest] * model(*cell) / model(*nearest)
    return found


def _distance(cell: Cell, other: Cell) -> float:
    return sum(abs(math.log1p(a) - math.log1p(b)) for a, b in zip(cell, other, strict=True))


def _monotone(cells: Mapping[Cell, float]) -> dict[Cell, float]:
    """Rising along both axes, by averaging what falls; along one axis after the other until nothing changes."""
    found = dict(cells)
    for _ in range(_SWEEPS):
        before = dict(found)
        for axis in (0, 1):
            lines: dict[int, list[Cell]] = {}
            for cell in sorted(found):
                lines.setdefault(cell[1 - axis], []).append(cell)
            for line in lines.values():
                for cell, ms in zip(line, _rising([found[cell] for cell in line]), strict=True):
                    found[cell] = ms
        if found == before:
            break
    return found


def _rising(values: Sequence[float]) -> list[float]:
    """The nearest values that never fall (pool adjacent violators, of logarithms: a time's error is relative)."""
    if all(low <= high for low, high in itertools.pairwise(values)):
        return list(values)
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((math.log(value), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, few), (high, many) = pools[-2:]
            pools[-2:] = [((low * few + high * many) / (few + many), few + many)]
    return [math.exp(level) for level, count in pools for _ in range(count)]


def _rows(cells: Mapping[Cell, float]) -> Rows:
    return tuple((first, second, round(ms, 4)) for (first, second), ms in sorted(cells.items()))
