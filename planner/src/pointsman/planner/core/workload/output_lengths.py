"""How long answers to prompts of each length are.

Prompts are counted when they arrive, answers when they end. So after the mix of requests has changed, answers to the
prompts of before still end. They are therefore compared with the usual answers to the prompts that they answer. If they
were 1.2 times as long, answers 1.2 times as long as usual are expected to the prompts that arrive.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pointsman.planner.core.tuning import SHIPPED, Tuning

LEAST_ANSWERS: Final = 12  # fewer say little: answers are as uneven as exponential times

Prompts = Sequence[tuple[float, float]]
"""(tokens: the middle of a bucket, requests or their share)."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Mean ``tokens`` of the answers that ended while so many ``requests`` arrived. ``answered``: (prompt tokens,
    requests) of what they answered."""

    requests: float
    tokens: float
    answered: Prompts


@dataclass(frozen=True, slots=True)
class OutputLengths:
    """``usual``: (prompt tokens, answers, mean tokens of an answer) of each bucket of prompts."""

    usual: tuple[tuple[int, float, float], ...] = ()

    def observe(
        self,
        answers: Iterable[tuple[float, float, float]],
        arriving: Collection[float],
        tuning: Tuning = SHIPPED,
    ) -> "OutputLengths":
        """Take answers that ended: (prompt tokens, answers, tokens of them all) of each bucket of prompts.

        Of a bucket of which nothing is known, only if its prompts are still ``arriving``: else these answers are the
        long ones of a few prompts that came once.
        """
        usual = {prompt: (count, mean) for prompt, count, mean in self.usual}
        for prompt, count, tokens in answers:
            if prompt not in arriving and round(prompt) not in usual:
                continue
            before, mean = usual.get(round(prompt), (0.0, 0.0))
            before = min(before, tuning.memory_requests)
            usual[round(prompt)] = before + count, (before * mean + tokens) / (before + count)
        return OutputLengths(tuple((prompt, *usual[prompt]) for prompt in sorted(usual)))

    def as_to(self, prompts: Prompts, ended: Sequence[Answers]) -> tuple[list[float], list[float]]:
        """(weights, tokens) of the answers that ended, had they been to ``prompts``.

        Weighted so, their mean is what is usual to ``prompts``, times the tokens of all answers over those of the usual
        ones to the same prompts: an answer counts once. To prompts without a usual answer, answers are expected as they
        were usual to those that were answered. Where none of these has a usual answer, the tokens are taken as they
        are, and weigh as the requests that arrived.
        """
        usual = {prompt: mean for prompt, count, mean in self.usual if count >= LEAST_ANSWERS and mean >= 1}
        then = [_mean([(usual[round(p)], n) for p, n in each.answered if round(p) in usual]) for each in ended]
        counts = [sum(n for _, n in each.answered) for each in ended]
        typical = _mean([(expected, n) for expected, n in zip(then, counts, strict=True) if expected]) or 1.0
        weights, tokens = [], []
        for expected, count, each in zip(then, counts, ended, strict=True):
            now = _mean([(usual.get(round(p), expected), n) for p, n in prompts]) if expected else None
            weights.append(count * expected / typical if expected and now else each.requests)
            tokens.append(each.tokens * now / expected if expected and now else each.tokens)
        return weights, tokens


def _mean(values: Sequence[tuple[float, float]]) -> float | None:
    """Of (value, weight); None without any weight."""
    weight = sum(weight for _, weight in values)
    return sum(value * weight for value, weight in values) / weight if weight > 0 else None
