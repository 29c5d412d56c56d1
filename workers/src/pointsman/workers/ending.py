"""Ending tasks for certain."""

import asyncio
from collections.abc import Iterable
from typing import Any

CANCEL_AGAIN_SECONDS = 0.5


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel ``tasks`` and wait until all have ended; what they raise is not raised here.

    One cancellation may not do: ``asyncio.wait_for`` of Python 3.11 drops it if what it waits for is done at the same
    moment (python/cpython#86296), and nats-py waits that way.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()  # seen
