"""What the running service teaches of its engine: a correction of its table or, without one, of a usual engine's.

Measurements are kept as means of buckets over their input (tokens of a prefill, batch and KV tokens of a decode step),
so that what one load taught is not forgotten at the next. How the parts of the work compare (weights, KV, attention) is
much the same in all transformers, and one load alone cannot tell them apart.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.linear_model import LinearModel
from pointsman.planner.core.engine.performance_model import CorrectedModel, Correction, PerformanceModel
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import EngineSample

LEAST_MS: Final = 0.01  # of a pass or a step: no measurement is less
MOST_BUCKETS: Final = 128  # of one role
Compared = tuple[tuple[float, float, float], ...]
"""(milliseconds by a model, as measured, samples) of several loads."""


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


# Llama 3.1 8B on an H100, about as its shipped table has it.
USUAL: Final = LinearModel(4.7, 0.0176, 8.8e-7, 6.4, 0.01, 4.3e-5)


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

    def corrected(
        self, table: PerformanceModel | None, cached_tokens: float, context_tokens: float, tuning: Tuning = SHIPPED
    ) -> CorrectedModel | None:
        """The table as measured; without one a usual engine, and None until both roles were measured.

        ``cached_tokens`` of each prompt were cached, a sequence had ``context_tokens``.
        """
        if table is None:
            if not (self.prefills.kept and self.steps.kept):
                return None
            table = USUAL.times(*map(_ratio, self._compared(USUAL, cached_tokens, context_tokens)))
        prefills, steps = self._compared(table, cached_tokens, context_tokens)
        bound = tuning.model_ratio_bound
        return CorrectedModel(table, Correction.fitted(prefills, bound), Correction.fitted(steps, bound), bound)

    def _compared(self, model: PerformanceModel, cached_tokens: float, context_tokens: float) -> tuple[Compared, ...]:
        """Of prefills, and of steps: (milliseconds by ``model``, as measured, samples)."""
        prefills = tuple(
            (pass_ms(model, b.batch, max(1.0, b.tokens / b.batch), cached_tokens), b.milliseconds, b.weight)
            for b in self.prefills.means()
        )
        # Not every engine says how many tokens its sequences hold.
        steps = (
            (b, model.decode_step_ms(b.batch, b.tokens if b.tokens > 1 else b.batch * context_tokens))
            for b in self.steps.means()
        )
        return prefills, tuple((by_model_ms, b.milliseconds, b.weight) for b, by_model_ms in steps)


def _ratio(seen: Compared) -> float:
    """How many times as long as by the model it took: the weighted median, which one that was paused moves little."""
    ratios = sorted((ms / by_model_ms, weight) for by_model_ms, ms, weight in seen)
    half = sum(weight for _, weight in ratios) / 2
    below = itertools.accumulate(weight for _, weight in ratios)
    return next(ratio for (ratio, _), weight in zip(ratios, below, strict=True) if weight >= half)


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
