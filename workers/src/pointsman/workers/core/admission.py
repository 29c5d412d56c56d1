"""When a prefill worker takes the next request: the token budget applied to what its engine computes right now.

The seed's rule admits a batch; a running engine has no batches, so what is being computed is the admission so far, and
the next request joins it if it would have joined the batch (``pointsman.serving.token_budget``).
"""

from collections.abc import Collection
from dataclasses import dataclass

from pointsman.serving.token_budget import beyond_admission, cost_tokens, fits


@dataclass(frozen=True, slots=True)
class PrefillLimits:
    """``budget_tokens`` None is no limit; ``max_requests`` at one time; ``max_context_tokens`` of the model."""

    budget_tokens: int | None
    max_requests: int
    max_context_tokens: int

    def wants_another(self, running: Collection[int]) -> bool:
        """Whether to pull at all, given the prompt lengths being computed.

        With no room for even one token nothing is pulled, so that another worker can have it.
        """
        if not running:
            return True
        room = self.budget_tokens is None or self._used(running) < self.budget_tokens
        return room and len(running) < self.max_requests

    def admits(self, prompt_tokens: int, running: Collection[int]) -> bool:
        """Whether a pulled request may start beside those being computed; an oversize one starts alone."""
        return len(running) < self.max_requests and fits(
            prompt_tokens,
            admitted_requests=len(running),
            admitted_tokens=self._used(running),
            budget_tokens=self.budget_tokens,
            max_context_tokens=self.max_context_tokens,
        )

    def waiting(self, taken: Collection[int]) -> int:
        """How many of the prompts this worker has taken, oldest first, wait for its others."""
        return beyond_admission(
            taken,
            max_requests=self.max_requests,
            budget_tokens=self.budget_tokens,
            max_context_tokens=self.max_context_tokens,
        )

    def _used(self, running: Collection[int]) -> int:
        return sum(cost_tokens(tokens, self.max_context_tokens) for tokens in running)
