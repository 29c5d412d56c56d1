"""A performance model learned from the running service alone, for when no table fits it.

Measurements are kept as means of buckets over their input (tokens of a prefill, batch and KV tokens of a decode step),
so that a steady load does not make the planner forget what other loads taught it. Over the buckets goes a least-squares
fit of relative errors: a line while little is known, a parabola once the buckets reach far enough. No coefficient is
below 0, since no engine gets faster by more work.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.performance_model import CorrectedModel, Correction, PerformanceModel
from pointsman.planner.core.types import EngineSample

LEAST_MS: Final = 0.01  # of a pass or a step, where measurements that contradict each other are fitted by less
MOST_BUCKETS: Final = 128  # of one role
KV_UNIT: Final = 100_000.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """Means of the samples of one region. ``seen``: the role's number of samples when the last one came."""

    seen: int = 0
    weight: float = 0.0
    tokens: float = 0.0
    batch: float = 0.0
    milliseconds: float = 0.0

    def take(self, seen: int, tokens: float, batch: float, milliseconds: float) -> "Bucket":
        """With one more sample; at most 40 older ones count."""
        weight = min(self.faded(seen), 40.0) + 1
        share = 1 / weight
        return Bucket(
            seen,
            weight,
            self.tokens + share * (tokens - self.tokens),
            self.batch + share * (batch - self.batch),
            self.milliseconds + share * (milliseconds - self.milliseconds),
        )

    def faded(self, seen: int) -> float:
        """Its weight after so many samples of the role: what is not seen any more fades."""
        return float(self.weight * 0.9997 ** (seen - self.seen))


@dataclass(frozen=True, slots=True)
class Buckets:
    """Those of one role by their numbers, and how many samples there were."""

    kept: tuple[tuple[int, Bucket], ...] = ()
    samples: int = 0

    def take(self, samples: list[EngineSample], key_of: Callable[[EngineSample], int]) -> "Buckets":
        """With these samples; buckets with the least weight make room."""
        kept = dict(self.kept)
        for number, sample in enumerate(samples, self.samples + 1):
            known = kept.get(key_of(sample), Bucket())
            kept[key_of(sample)] = known.take(number, sample.tokens or 0.0, sample.batch, sample.observed_ms)
        while len(kept) > MOST_BUCKETS:
            del kept[min(kept, key=lambda k: kept[k].faded(self.samples))]
        return Buckets(tuple(kept.items()), self.samples + len(samples))

    def means(self) -> list[Bucket]:
        """With the weights that they have now."""
        return [replace(b, weight=b.faded(self.samples)) for _, b in self.kept]


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """Times in milliseconds, of whole passes and steps."""

    prefill: tuple[float, float, float]  # of 1, n, n²
    decode: tuple[float, float, float, float]  # of 1, batch, KV tokens, KV tokens²

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        a, b, c = self.prefill
        return max(LEAST_MS, a + b * new_tokens + c * new_tokens * new_tokens)

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        d0, d1, d2, d3 = self.decode
        if d3 < 0:
            kv_tokens = min(kv_tokens, -d2 / (2 * d3))  # beyond what was seen a step does not become shorter
        return max(LEAST_MS, d0 + d1 * batch + d2 * kv_tokens + d3 * kv_tokens * kv_tokens)


def pass_ms(model: PerformanceModel, prompts: float, new_tokens: float, prefix_tokens: float) -> float:
    """Time to prefill so many prompts (1 or more) together, each of ``new_tokens``."""
    measured = model.base if isinstance(model, CorrectedModel) else model
    if isinstance(measured, LearnedModel):  # it was measured by the pass, whatever prompts that was of
        return model.prefill_ms(prompts * new_tokens, 0)
    # They share the fixed part, which is about what a prompt of one token takes.
    return prompts * model.prefill_ms(new_tokens, prefix_tokens) - (prompts - 1) * model.prefill_ms(1, 0)


@dataclass(frozen=True, slots=True)
class Learner:
    """What the service itself taught, per role."""

    prefills: Buckets = Buckets()
    steps: Buckets = Buckets()

    def observe(self, samples: Sequence[EngineSample]) -> "Learner":
        """Take one tick's measurements; what cannot be a time is not taken."""
        real = [s for s in samples if 0 < s.observed_ms < 1e7 and s.batch > 0]
        prefills = _evenly([s for s in real if s.role is Role.PREFILL and s.tokens is not None and s.tokens > 0])
        steps = _evenly([s for s in real if s.role is Role.DECODE])
        return Learner(
            self.prefills.take(prefills, lambda s: _octave(s.tokens or 1.0)),
            self.steps.take(steps, lambda s: 1000 * (_octave(s.batch) // 3) + _octave(s.tokens or 1.0) // 2),
        )

    def model(self) -> LearnedModel | None:
        """The learned model; None until both a prefill and a decode step were measured."""
        prefill, step = _fit_prefill(self.prefills.means()), _fit_step(self.steps.means())
        if prefill is None or step is None:
            return None
        return LearnedModel(prefill, step)

    def corrected(self, table: PerformanceModel, cached_tokens: float, context_tokens: float) -> CorrectedModel:
        """The table as measured: ``cached_tokens`` of each prompt were cached, a sequence had ``context_tokens``."""
        prefills = (
            (pass_ms(table, b.batch, b.tokens / b.batch, cached_tokens), b.milliseconds, b.weight)
            for b in self.prefills.means()
        )
        steps = (
            (
                table.decode_step_ms(b.batch, b.tokens if b.tokens > 1 else b.batch * context_tokens),
                b.milliseconds,
                b.weight,
            )
            for b in self.steps.means()
        )
        return CorrectedModel(table, Correction.fitted(prefills), Correction.fitted(steps))


def undisturbed(samples: Sequence[EngineSample], model: PerformanceModel, prompt_tokens: float) -> list[EngineSample]:
    """Steps without the prompts that were computed between them; those that were hardly anything else are left out.

    A step that also prefills takes as much longer as the prefill takes: a mean over such steps says how much was
    prefilled here, not how long a decode step takes. ``prompt_tokens``: of a prompt, as computed.
    """
    a_token_s = model.prefill_ms(prompt_tokens, 0) / prompt_tokens / 1000
    found = []
    for sample in samples:
        prefilling = sample.local_tokens_per_s * a_token_s
        if prefilling <= 0.25:  # beyond it a mean step says little of decoding alone
            found.append(replace(sample, observed_ms=sample.observed_ms * (1 - prefilling)))
    return found


def of_even_prompts(samples: Sequence[EngineSample], model: PerformanceModel) -> list[EngineSample]:
    """Passes as if all prompts of their window had had the mean length.

    Attention grows with the square of a prompt, so the mean time of uneven prompts is more than the time of the mean.
    Sizing adds that itself, from the lengths of all requests: here it would count twice.
    """
    found = []
    for sample in samples:
        if sample.tokens is not None and len(sample.lengths) > 1:
            mean, each = sum(tokens * share for tokens, share in sample.lengths), sample.tokens / sample.batch
            # A histogram's buckets are wide: they are stretched to the mean.
            uneven_ms = sum(model.prefill_ms(tokens * each / mean, 0) * share for tokens, share in sample.lengths)
            more_ms = sample.batch * max(0.0, uneven_ms - model.prefill_ms(each, 0))
            even_ms = pass_ms(model, sample.batch, each, 0)
            sample = replace(sample, observed_ms=sample.observed_ms * even_ms / (even_ms + more_ms))
        found.append(sample)
    return found


def _octave(x: float) -> int:
    """The number of a bucket, six an octave."""
    return int(6.0 * math.log2(max(x, 1.0)))


def _evenly(samples: list[EngineSample], most: int = 16) -> list[EngineSample]:
    if len(samples) <= most:
        return samples
    return [samples[i * len(samples) // most] for i in range(most)]


# --- fits: least squares of relative errors over bucket means ---


def _fit_prefill(buckets: list[Bucket]) -> tuple[float, float, float] | None:
    if not buckets:
        return None
    if _reaches(buckets):
        # Scaled, so that the normal equations are well conditioned.
        curve = _least_squares(
            [((1.0, b.tokens / 1e3, b.tokens * b.tokens / 1e6), b) for b in buckets], (1e-9, 1e-9, 1e-9)
        )
        if curve is not None and min(curve) >= 0:
            return curve[0], curve[1] / 1e3, curve[2] / 1e6
    # A prompt's time is proportional to its length until it is known better.
    fixed, slope = _line([(b.tokens, b.milliseconds, b.weight) for b in buckets], 0.0)
    return fixed, slope, 0.0


def _fit_step(buckets: list[Bucket]) -> tuple[float, float, float, float] | None:
    if not buckets:
        return None
    known = [b for b in buckets if b.tokens > 1]
    if _reaches(known):
        for batch_counts in (1.0, 0.0):  # where the batch alone seems to make a step shorter it is left out
            rows = [
                ((1.0, batch_counts * b.batch / 100, b.tokens / KV_UNIT, (b.tokens / KV_UNIT) ** 2), b) for b in known
            ]
            curve = _least_squares(rows, (1e-9, 1e-2, 1e-6, 1e-4))
            if curve is not None and _rises(curve, max(b.tokens for b in known)):
                return curve[0], batch_counts * curve[1] / 100, curve[2] / KV_UNIT, curve[3] / KV_UNIT**2
    # A decode step mostly reads weights: 5.5 ms alone, 7 ms for eight (26 M model on CPU).
    fixed, slope = _line([(b.batch, b.milliseconds, b.weight) for b in buckets], 0.8)
    return fixed, slope, 0.0, 0.0


def _rises(curve: Sequence[float], most_tokens: float) -> bool:
    """Whether a step takes longer with more work, as far as was seen."""
    reach = most_tokens / KV_UNIT
    return curve[1] >= 0 and curve[2] >= 0 and curve[2] + 2 * curve[3] * reach >= 0


def _reaches(buckets: Sequence[Bucket]) -> bool:
    """Whether a parabola may be fitted: four buckets, of which the largest has twice the tokens of the smallest."""
    tokens = [b.tokens for b in buckets]
    return len(tokens) >= 4 and max(tokens) / max(min(tokens), 1e-9) >= 2


def _line(points: list[tuple[float, float, float]], fixed_share: float) -> tuple[float, float]:
    """(intercept, slope), neither below 0, of (x, y, weight).

    While the values of x lie close together, noise decides about their slope, and it is asked for what is far from
    them: ``fixed_share`` of y is then taken as intercept and the rest as slope (ridge regression towards that line).
    """
    weights = [w / max(y, 1e-9) ** 2 for _, y, w in points]
    total = sum(weights)
    x = sum(w * p[0] for w, p in zip(weights, points, strict=True)) / total
    y = sum(w * p[1] for w, p in zip(weights, points, strict=True)) / total
    xx = sum(w * (p[0] - x) ** 2 for w, p in zip(weights, points, strict=True)) / total
    likely = (1 - fixed_share) * y / max(x, 1e-9)
    doubt = x * x / sum(w for _, _, w in points)
    xy = sum(w * (p[0] - x) * (p[1] - y) for w, p in zip(weights, points, strict=True)) / total
    slope = (xy + doubt * likely) / max(xx + doubt, 1e-9)
    if slope < 0:
        return y, 0.0
    if y - slope * x < 0:
        return 0.0, y / max(x, 1e-9)
    return y - slope * x, slope


def _least_squares(
    rows: Sequence[tuple[Sequence[float], Bucket]], ridge: tuple[float, ...]
) -> tuple[float, ...] | None:
    """Coefficients with the least weighted relative error; None when they are not determined."""
    size = len(ridge)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    total = 0.0
    for features, bucket in rows:
        total += bucket.weight
        relative = bucket.weight / max(bucket.milliseconds, 1e-9) ** 2
        for i in range(size):
            scaled = relative * features[i]
            for j in range(size):
                matrix[i][j] += scaled * features[j]
            matrix[i][size] += scaled * bucket.milliseconds
    for i in range(size):
        # The ridge is in units of (1/ms)² of a typical time.
        matrix[i][i] += ridge[i] * total * 1e-6
    return _solve(matrix)


def _solve(matrix: list[list[float]]) -> tuple[float, ...] | None:
    """Gauss elimination with partial pivoting of an n×(n+1) system; None when it is singular."""
    size = len(matrix)
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(matrix[row][i]))
        if abs(matrix[pivot][i]) < 1e-12:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for row in range(i + 1, size):
            factor = matrix[row][i] / matrix[i][i]
            for column in range(i, size + 1):
                matrix[row][column] -= factor * matrix[i][column]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(matrix[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (matrix[i][size] - rest) / matrix[i][i]
    return tuple(found)
