"""Waiting for whichever comes first."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first(*awaitables: Coroutine[Any, Any, Any]) -> Any:
    """The result of whichever ends first; the others are cancelled."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Cancel a task and wait until it has ended, however it ends."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
