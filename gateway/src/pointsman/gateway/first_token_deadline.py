"""How long the first token of a request may take, as the gateway tells its workers.

It travels as the time that is left (``X-Pointsman-Deadline-Ms``), a duration: the clocks of two hosts need not agree. A
worker waits for a remote prefill for half of it.
"""

import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pointsman.api.protocol import headers
from pointsman.gateway.errors import RequestInvalid

MAX_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class FirstTokenDeadline:
    """``due_s``: when the first token is due on the monotonic ``clock`` of this process, after ``allowed_s``."""

    due_s: float
    allowed_s: float
    clock: Callable[[], float]

    @classmethod
    def after(cls, allowed_s: float, clock: Callable[[], float]) -> "FirstTokenDeadline":
        """The deadline of a token that is waited for from now on."""
        return cls(clock() + allowed_s, allowed_s, clock)

    def renewed(self) -> "FirstTokenDeadline":
        """The same time again, from now on."""
        return self.after(self.allowed_s, self.clock)

    @property
    def left_ms(self) -> int:
        """Milliseconds left, 0 or more."""
        return max(0, int((self.due_s - self.clock()) * 1000))


def first_token_deadline(given: str | None, limit_s: float, clock: Callable[[], float]) -> FirstTokenDeadline:
    """The deadline of a request that arrives now.

    ``given``: the client's own header, a whole number of milliseconds; at most ``limit_s``, the gateway's limit, holds.
    Raises RequestInvalid for anything else.
    """
    if given is None:
        return FirstTokenDeadline.after(limit_s, clock)
    text = given.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise RequestInvalid(
            f"The header {headers.DEADLINE_MS} is {text[:32]!r}; it must be a whole number of at most "
            f"{MAX_DIGITS} digits, the milliseconds until the first token.",
            param=headers.DEADLINE_MS,
        )
    return FirstTokenDeadline.after(min(int(text) / 1000, limit_s), clock)


# Of the request that is served: from the HTTP handler to the place that writes the headers of each attempt.
DEADLINE: contextvars.ContextVar[FirstTokenDeadline | None] = contextvars.ContextVar("first token", default=None)
