"""Waiting for a condition with a deadline, never for a time."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

DEADLINE_S: Final = 60.0  # generous: the computer may be busy with other tests
_POLL_S: Final = 0.05
T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str, timeout_s: float = DEADLINE_S) -> T:
    """The first true value of ``condition()``; fails with ``what`` and the last value at the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what} (last: {value!r})"
        time.sleep(_POLL_S)
