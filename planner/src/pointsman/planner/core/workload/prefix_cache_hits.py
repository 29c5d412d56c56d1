"""What of prompts is cached where: at the decode worker that each is given to, and at the prefill workers.

The two are far from alike. A conversation goes on where its last answer was made: that decode worker lacks only its
last words, and the local/remote rule keeps them there. To prefill workers go beginnings, and what came to another
decode worker. So the tokens that decode workers lack say what is sent and at which threshold, and those that prefill
workers compute say what it costs them. One cached share for all would send every turn of a conversation.
"""

from dataclasses import dataclass

from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Load


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Sums over the last requests, of which older ones fade, and how the tokens that decode workers lack spread."""

    prompts: float = 0.0  # tokens of requests that were given to a decode worker …
    missing: float = 0.0  # … and those that it lacked
    prefilled: float = 0.0  # requests that prefill workers computed …
    asked: float = 0.0  # … tokens of their prompts …
    computed: float = 0.0  # … those that the prefill workers lacked …
    pulled: float = 0.0  # … and those that the decode workers lacked; not known of all engines: as many as computed
    shares: tuple[tuple[float, float], ...] = ()  # (tokens that its decode worker lacks, share of requests)

    def observe(self, load: Load, shares: tuple[tuple[float, float], ...], tuning: Tuning = SHIPPED) -> "Prefixes":
        """Take one window; ``shares``: with what it said of them. Unknown changes nothing."""
        uncached = load.uncached
        if uncached is None:
            return self
        kept = max(0.0, 1 - uncached.requests / tuning.memory_requests)
        return Prefixes(
            kept * self.prompts + uncached.prompt_tokens,
            kept * self.missing + uncached.tokens,
            kept * self.prefilled + uncached.prefilled,
            kept * self.asked + uncached.asked_tokens,
            kept * self.computed + uncached.computed_tokens,
            kept * self.pulled + (uncached.computed_tokens if load.pulled_tokens is None else load.pulled_tokens),
            shares,
        )

    @property
    def missing_share(self) -> float:
        """Of the prompt tokens those that decode workers lack; 1 where nobody says."""
        return min(1.0, self.missing / self.prompts) if self.prompts > 0 else 1.0

    @property
    def matter(self) -> bool:
        """Whether decode workers have some: with less than a hundredth all prompts are alike."""
        return bool(self.shares) and self.missing_share < 1 - 0.01

    @property
    def held_by_prefill(self) -> float:
        """Tokens that a prefill worker has of a prompt it is given, in the mean."""
        return max(0.0, self.asked - self.computed) / self.prefilled if self.prefilled > 0 else 0.0

    def computed_by_prefill(self, missing: float) -> float:
        """Tokens that a prefill worker computes of a prompt of which the decode worker lacks ``missing``.

        More in the mean, where it lacks what only decode workers have; less, where it has a beginning that they lack.
        """
        if self.prefilled <= 0 or self.asked <= 0 or self.pulled <= 0:
            return missing
        if self.computed > self.pulled:
            return missing + (self.computed - self.pulled) / self.prefilled
        return missing * self.computed / self.pulled
