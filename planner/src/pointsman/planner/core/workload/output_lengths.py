"""How long answers to prompts of each length are.

Prompts are counted when they arrive, answers when they end. So after the mix of requests has changed, answers to the
prompts of before still end. Answers are therefore compared with those that are usual to the prompts they answer, and as
many times the usual ones are expected to the prompts that arrive now.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pointsman.planner.core.tuning import SHIPPED, Tuning

LEAST_ANSWERS: Final = 12  # the mean of fewer may be off by a third, lengths being as uneven as exponential ones

Prompts = Iterable[tuple[float, float]]
"""(tokens: the middle of a bucket, requests or their share)."""


@dataclass(frozen=True)
class OutputLengths:
    """``usual``: (prompt tokens, answers, mean tokens of an answer) of each bucket of prompts."""

    usual: tuple[tuple[float, float, float], ...] = ()

    def observe(self, answers: Iterable[tuple[float, float, float]], tuning: Tuning = SHIPPED) -> "OutputLengths":
        """Take answers that ended: (prompt tokens, answers, tokens of them all) of each bucket of prompts."""
        usual = {prompt: (count, mean) for prompt, count, mean in self.usual}
        for prompt, count, tokens in answers:
            before, mean = usual.get(prompt, (0.0, 0.0))
            before = min(before, tuning.memory_requests)
            usual[prompt] = before + count, (before * mean + tokens) / (before + count)
        return OutputLengths(tuple((prompt, *usual[prompt]) for prompt in sorted(usual)))

    def as_to(self, prompts: Prompts, answers: Iterable[tuple[float, Prompts]]) -> list[float]:
        """What answers would have been to ``prompts``: (their tokens, the prompts that they answered) of each kind."""
        now = self._expected(prompts)
        return [tokens * now / (self._expected(answered) or now) if now else tokens for tokens, answered in answers]

    def _expected(self, prompts: Prompts) -> float | None:
        """Tokens of a usual answer to such prompts, on average; None: to none of them it is known."""
        known = [(self._known[prompt], weight) for prompt, weight in prompts if prompt in self._known]
        together = sum(weight for _, weight in known)
        return sum(mean * weight for mean, weight in known) / together if together > 0 else None

    @cached_property
    def _known(self) -> dict[float, float]:
        return {prompt: mean for prompt, count, mean in self.usual if count >= LEAST_ANSWERS}
