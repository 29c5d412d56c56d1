"""Prefill admission by token budget.

The rule is that of roseinfer's scheduler (``_take_pending_for_prefill``): first in, first out; a request costs its
prompt length capped at the context window; admission stops *before* the budget would be exceeded; a request larger
than the whole budget is admitted alone, and only as the first, so that it cannot starve.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

DEFAULT_PREFILL_TOKEN_BUDGET: Final = 8192  # until the planner or a plan of somebody else sets another
DEFAULT_MAX_CONCURRENT_PREFILLS: Final = 256  # requests; the token budget is what limits, except for very short prompts


class HasPromptTokens(Protocol):
    """What admission needs to know of a request."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""


R = TypeVar("R", bound=HasPromptTokens)


def cost_tokens(prompt_tokens: int, max_context_tokens: int) -> int:
    """What one request takes of the budget: its prompt length, at most the context window."""
    return min(prompt_tokens, max_context_tokens)


def fits(
    prompt_tokens: int,
    *,
    admitted_requests: int,
    admitted_tokens: int,
    budget_tokens: int | None,
    max_context_tokens: int,
) -> bool:
    """Whether one more request may join what is admitted already.

    ``admitted_requests`` and ``admitted_tokens`` are of the running admission. ``budget_tokens`` None is no limit.
    Raises ValueError for a budget or context window that is not positive.
    """
    _require_positive("max_context_tokens", max_context_tokens)
    if budget_tokens is None:
        return True
    _require_positive("budget_tokens", budget_tokens)
    if admitted_requests == 0:
        return True
    return admitted_tokens + cost_tokens(prompt_tokens, max_context_tokens) <= budget_tokens


def take_pending(
    pending: deque[R], *, max_requests: int, budget_tokens: int | None, max_context_tokens: int
) -> list[R]:
    """Take the next admission off the front of ``pending``; what does not fit stays, in order.

    Raises ValueError for an argument that is not positive (``budget_tokens`` None is no limit).
    """
    _require_positive("max_requests", max_requests)
    _require_positive("max_context_tokens", max_context_tokens)
    taken: list[R] = []
    tokens = 0
    while pending and len(taken) < max_requests:
        prompt_tokens = pending[0].prompt_tokens
        if not fits(
            prompt_tokens,
            admitted_requests=len(taken),
            admitted_tokens=tokens,
            budget_tokens=budget_tokens,
            max_context_tokens=max_context_tokens,
        ):
            break
        taken.append(pending.popleft())
        tokens += cost_tokens(prompt_tokens, max_context_tokens)
        if budget_tokens is not None and tokens > budget_tokens:
            break  # an oversize request goes alone
    if budget_tokens is not None:
        _require_positive("budget_tokens", budget_tokens)
    return taken


@dataclass(frozen=True, slots=True)
class _Length:
    prompt_tokens: int


def beyond_admission(
    prompt_lengths: Iterable[int], *, max_requests: int, budget_tokens: int | None, max_context_tokens: int
) -> int:
    """How many of the requests a worker has taken, oldest first, one admission would leave waiting.

    The rest of its requests are being computed together. These wait for them, like those still on the queue.
    """
    pending = deque(_Length(tokens) for tokens in prompt_lengths)
    take_pending(pending, max_requests=max_requests, budget_tokens=budget_tokens, max_context_tokens=max_context_tokens)
    return len(pending)


def _require_positive(field: str, value: int) -> None:
    if value <= 0:
        raise ValueError(f"{field} is {value}: it must be at least 1")
