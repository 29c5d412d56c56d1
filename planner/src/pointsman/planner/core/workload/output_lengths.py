"""How long answers to prompts of each length are.

Prompts are counted when they arrive, answers when they end. So after the mix of requests has changed, answers to the
prompts of before still end. They are therefore compared with the usual answers to the prompts that they answer. If they
were 1.2 times as long, answers 1.2 times as long as usual are expected to the prompts that arrive.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pointsman.planner.core.tuning import SHIPPED, Tuning

LEAST_ANSWERS: Final = 12  # fewer say little: answers are as uneven as exponential times

Prompts = Sequence[tuple[float, float]]
"""(tokens: the middle of a bucket, requests or their share)."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Mean ``tokens`` of the answers that ended while so many ``requests`` arrived, and what they answered."""

    requests: float
    tokens: float
    answered: Prompts


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """``usual``: (prompt tokens, answers, mean tokens of an answer) of each bucket of prompts."""

    usual: tuple[tuple[int, float, float], ...] = ()

    def observe(self, answers: Iterable[tuple[float, float, float]], tuning: Tuning = SHIPPED) -> "OutputLengths":
        """Take answers that ended: (prompt tokens, answers, tokens of them all) of each bucket of prompts."""
        usual = {prompt: (count, mean) for prompt, count, mean in self.usual}
        for prompt, count, tokens in answers:
            before, mean = usual.get(round(prompt), (0.0, 0.0))
            before = min(before, tuning.memory_requests)
            usual[round(prompt)] = before + count, (before * mean + tokens) / (before + count)
        return OutputLengths(tuple((prompt, *usual[prompt]) for prompt in sorted(usual)))

    def as_to(self, prompts: Prompts, ended: Sequence[Answers]) -> tuple[list[float], list[float]]:
        """(weights, tokens) of the answers that ended, had they been to ``prompts``.

        Weighted so, their mean is what is usual to ``prompts``, times all tokens over all that were usual: a single
        answer cannot count for many. Of prompts without a usual answer, what is usual to the others is expected.
        """
        usual = {prompt: mean for prompt, count, mean in self.usual if count >= LEAST_ANSWERS}
        then = [_mean([(usual[round(p)], n) for p, n in each.answered if round(p) in usual]) for each in ended]
        known = [(expected, each.requests) for expected, each in zip(then, ended, strict=True) if expected]
        typical = _mean(known) or 1.0
        weights, tokens = [], []
        for expected, each in zip(then, ended, strict=True):
            now = _mean([(usual.get(round(p), expected), n) for p, n in prompts]) if expected else None
            weights.append(each.requests * expected / typical if expected and now else each.requests)
            tokens.append(each.tokens * now / expected if expected and now else each.tokens)
        return weights, tokens


def _mean(values: Sequence[tuple[float, float]]) -> float | None:
    """Of (value, weight); None without any weight."""
    weight = sum(weight for _, weight in values)
    return sum(value * weight for value, weight in values) / weight if weight > 0 else None
