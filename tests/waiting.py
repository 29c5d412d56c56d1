"""Waiting for a condition with a deadline, never for a time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

DEADLINE_S: Final = 120.0  # generous: the computer may be busy with other tests
ASYNC_DEADLINE_S: Final = 180.0
_POLL_S: Final = 0.05
_FIRST_POLL_S: Final = 0.005
_LONGEST_POLL_S: Final = 0.25  # who asks all the time slows down what he waits for
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


async def eventually(
    condition: Callable[[], object | Awaitable[object]], what: str, timeout_s: float = ASYNC_DEADLINE_S
) -> None:
    """The same in an event loop: return when ``condition()``, awaited if it can be, is true."""
    deadline = time.monotonic() + timeout_s
    pause_s = _FIRST_POLL_S
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what} (last: {value!r})"
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _LONGEST_POLL_S)
