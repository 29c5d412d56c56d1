"""A quick start that is interrupted: its cluster is cleaned up before the process ends."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

from rich.console import Console

INTERRUPTED: Final = 130
"""Exit status, as shells have it after Ctrl-C."""


async def until_interrupted(work: Coroutine[Any, Any, None], console: Console) -> bool:
    """Whether ``work`` came to its end; at a signal it is cancelled, and has cleaned up when this returns False."""
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        console.print("interrupted; everything that was started has been ended")
        return False
    return True


async def whole(work: Callable[[], object]) -> None:
    """Run blocking ``work`` in a thread; when this task is cancelled meanwhile, the work is still let finish first."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
