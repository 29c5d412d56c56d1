"""Ending tasks for certain."""

import asyncio
from collections.abc import Iterable
from typing import Any, Final

CANCEL_AGAIN_S: Final = 0.5


async def end(tasks: Iterable[asyncio.Task[Any]], again_s: float = CANCEL_AGAIN_S) -> None:
    """Cancel ``tasks`` and wait until all have ended; what they raise is not raised here.

    One cancellation may not do: ``asyncio.wait_for`` of Python 3.11 drops it if what it waits for is done at the same
    moment (python/cpython#86296), and nats-py waits that way. ``again_s`` is longer than the tasks need for their own
    farewell, which a second cancellation would cut short.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=again_s)
        for task in done:
            if not task.cancelled():
                task.exception()  # seen
