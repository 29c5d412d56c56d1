"""What the running service teaches of its engine: a correction of its table or, without one, a model.

Measurements are kept as means of buckets over their input (tokens of a prefill, batch and KV tokens of a decode step),
so that what one load taught is not forgotten at the next. Over the buckets goes a least-squares fit of relative errors.
It is pulled towards a usual engine: how the parts of the work compare (weights, KV, attention) is much the same in all
transformers, and one load alone cannot tell them apart. No engine gets faster by more work.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.performance_model import CorrectedModel, Correction, PerformanceModel
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import EngineSample

LEAST_MS: Final = 0.01  # of a pass or a step: no measurement and no prediction is less
MOST_BUCKETS: Final = 128  # of one role


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
    """Times in milliseconds."""

    prefill: tuple[float, float, float]  # of a pass; and summed over its prompts, of a token and of tokens²
    decode: tuple[float, float, float, float]  # of 1, batch, KV tokens, KV tokens²

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        a, b, c = self.prefill
        return max(LEAST_MS, a + b * new_tokens + c * new_tokens * new_tokens)

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        d0, d1, d2, d3 = self.decode
        if d3 < 0:
            kv_tokens = min(kv_tokens, -d2 / (2 * d3))  # beyond what was seen a step does not become shorter
        return max(LEAST_MS, d0 + d1 * batch + d2 * kv_tokens + d3 * kv_tokens * kv_tokens)


# Llama 3.1 8B on an H100, about as its shipped table has it.
USUAL: Final = LearnedModel((4.7, 0.0176, 4.4e-7), (6.4, 0.01, 4.3e-5, 0.0))


def pass_ms(model: PerformanceModel, prompts: float, new_tokens: float, prefix_tokens: float) -> float:
    """Time to prefill so many prompts (1 or more) together, each of ``new_tokens``."""
    # They share the fixed part, which is about what a prompt of one token takes.
    return prompts * model.prefill_ms(new_tokens, prefix_tokens) - (prompts - 1) * model.prefill_ms(1, 0)


@dataclass(frozen=True, slots=True)
class Learner:
    """What the service itself taught, per role."""

    prefills: Buckets = Buckets()
    steps: Buckets = Buckets()

    def observe(self, samples: Sequence[EngineSample]) -> "Learner":
        """Take one tick's measurements; what cannot be a time is not taken."""
        real = [s for s in samples if LEAST_MS <= s.observed_ms < 1e7 and s.batch > 1e-3]
        prefills = _evenly([s for s in real if s.role is Role.PREFILL and s.tokens is not None and s.tokens >= 1])
        steps = _evenly([s for s in real if s.role is Role.DECODE])
        return Learner(
            self.prefills.take(prefills, lambda s: 1000 * (_octave(s.batch) // 3) + _octave(s.tokens or 1.0)),
            self.steps.take(steps, lambda s: 1000 * (_octave(s.batch) // 3) + _octave(s.tokens or 1.0) // 2),
        )

    def fit(self) -> LearnedModel | None:
        """The model of what was measured; None until both roles were."""
        prefill, step = _fit_prefill(self.prefills.means()), _fit_step(self.steps.means())
        return None if prefill is None or step is None else LearnedModel(prefill, step)

    def corrected(
        self, table: PerformanceModel, cached_tokens: float, context_tokens: float, tuning: Tuning = SHIPPED
    ) -> CorrectedModel:
        """The table as measured: ``cached_tokens`` of each prompt were cached, a sequence had ``context_tokens``."""
        prefills = (
            (pass_ms(table, b.batch, max(1.0, b.tokens / b.batch), cached_tokens), b.milliseconds, b.weight)
            for b in self.prefills.means()
        )
        # Not every engine says how many tokens its sequences hold.
        steps = (
            (b, table.decode_step_ms(b.batch, b.tokens if b.tokens > 1 else b.batch * context_tokens))
            for b in self.steps.means()
        )
        of_steps = [(by_table_ms, b.milliseconds, b.weight) for b, by_table_ms in steps]
        bound = tuning.model_ratio_bound
        return CorrectedModel(table, Correction.fit(prefills, bound), Correction.fit(of_steps, bound), bound)


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
    # Prompts of a pass attend to themselves, not to one another.
    rows = [((1.0, b.tokens, b.tokens * b.tokens / b.batch), b) for b in buckets]
    fixed, token, squared = _fit(rows, USUAL.prefill)
    return fixed, token, squared


def _fit_step(buckets: list[Bucket]) -> tuple[float, float, float, float] | None:
    if not buckets:
        return None
    usual, known = USUAL.decode, [b for b in buckets if b.tokens > 1]
    if 2 * sum(b.weight for b in known) < sum(b.weight for b in buckets):
        # The engine seldom says how many tokens its sequences hold. A step mostly reads weights: 5.5 ms alone, 7 ms
        # for eight (26 M model on CPU).
        batch = sum(b.weight * b.batch for b in buckets) / sum(b.weight for b in buckets)
        fixed, each = _fit([((1.0, b.batch), b) for b in buckets], (4 * batch, 1.0))
        return fixed, each, 0.0, 0.0
    rows = [((1.0, b.batch, b.tokens, b.tokens * b.tokens), b) for b in known]
    fixed, each, token, squared = _fit(rows, usual, free=3)
    if squared >= 0:  # no token of KV takes longer than those before it
        fixed, each, token = _fit([(parts[:3], b) for parts, b in rows], usual[:3])
        return fixed, each, token, 0.0
    most = max(b.tokens for b in known)
    if token + 2 * squared * most < 0:  # it would fall before the most that was seen: it bends until there
        bent = [((1.0, b.batch, b.tokens - b.tokens * b.tokens / (2 * most)), b) for b in known]
        fixed, each, token = _fit(bent, usual[:3])
        squared = -token / (2 * most)
    return fixed, each, token, squared


def _fit(
    rows: Sequence[tuple[tuple[float, ...], Bucket]], usual: Sequence[float], *, free: int | None = None
) -> list[float]:
    """Coefficients of the parts of the work in ``rows``.

    Each is pulled towards the ``usual`` one, scaled to the measured mean, with the weight of one sample. A part that
    would make an engine faster by more work is left out, but for the one with the index ``free``.
    """
    total = sum(b.weight for _, b in rows)
    mean_ms = sum(b.weight * b.milliseconds for _, b in rows) / total
    means = [sum(b.weight * parts[i] for parts, b in rows) / total for i in range(len(usual))]
    parts_ms = [each * mean for each, mean in zip(usual, means, strict=True)]  # of the mean work
    # Parts are in units of their means, so that the normal equations are well conditioned; no time is less than a
    # thousandth of the mean.
    relative = [
        (
            [part / mean for part, mean in zip(parts, means, strict=True)],
            b.milliseconds,
            b.weight / max(b.milliseconds, mean_ms / 1000) ** 2,
        )
        for parts, b in rows
    ]
    for i, part_ms in enumerate(parts_ms):
        unit = [float(i == j) for j in range(len(usual))]
        relative.append((unit, part_ms * mean_ms / sum(parts_ms), 1 / mean_ms**2))
    kept = [*range(len(usual))]
    while True:
        found = dict(zip(kept, _least_squares(relative, kept), strict=True))
        below = [i for i in kept if i != free and found[i] < 0]
        if not below:
            return [found.get(i, 0.0) / mean for i, mean in enumerate(means)]
        kept.remove(min(below, key=lambda i: found[i]))


def _least_squares(rows: Sequence[tuple[list[float], float, float]], kept: Sequence[int]) -> list[float]:
    """Of (parts, milliseconds, weight), the milliseconds of the ``kept`` parts; the others are taken as 0."""
    size = len(kept)
    matrix = [
        [*(sum(w * x[i] * x[j] for x, _, w in rows) for j in kept), sum(w * x[i] * ms for x, ms, w in rows)]
        for i in kept
    ]
    # Gauss elimination. The usual parts make the matrix positive definite: no pivot is 0.
    for i in range(size):
        for row in (row for row in range(size) if row != i):
            factor = matrix[row][i] / matrix[i][i]
            matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]
