"""From start to exit: the signals, the parts that run until the end, and the order in which they end."""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from enum import IntEnum
from types import TracebackType
from typing import Any, Final, Self

from pointsman.process.ending import end

log = logging.getLogger(__name__)

LOST_LEASE_PATIENCE_S: Final = 5.0  # after the Lease is lost another may lead: this process must be gone by then
_FAREWELL_S: Final = 5.0  # of a part that is ended: giving a Lease back is the longest, 3 s


class ExitStatus(IntEnum):
    """Of a process of Pointsman."""

    STOPPED = 0  # it was asked to
    FAILED = 1  # it could not start, or a part of it ended by itself
    WRONG_SETTINGS = 2
    LOST_LEASE = 3


class Lifetime(AsyncExitStack):
    """A stack whose body ends when ``stopping`` is set: by SIGTERM or SIGINT, or because a part ended by itself.

    Usage::

        async with Lifetime() as life:
            kube = await life.enter_async_context(await Kube.connect(field_manager="pointsman-planner"))
            life.start(elector.run(), "election")
            if await life.reach(elector.elected.wait()):
                life.start(planner.run(), "planning")  # the last that starts is the first that ends
                await life.stopping.wait()
        return life.status
    """

    def __init__(self) -> None:
        super().__init__()
        self.stopping: Final = asyncio.Event()
        self.status = ExitStatus.STOPPED

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool:
        self.stop()
        return bool(await super().__aexit__(kind, error, trace))

    def stop(self, status: ExitStatus = ExitStatus.STOPPED) -> None:
        """Begin to end. What stops a process first is its exit status."""
        if not self.stopping.is_set():
            self.status = status
            self.stopping.set()

    def lease_lost(self) -> None:
        """Stop, and be gone after ``LOST_LEASE_PATIENCE_S`` whatever still runs."""
        self.stop(ExitStatus.LOST_LEASE)
        asyncio.get_running_loop().call_later(LOST_LEASE_PATIENCE_S, os._exit, ExitStatus.LOST_LEASE)

    def start(self, work: Coroutine[Any, Any, object], name: str) -> "asyncio.Task[object]":
        """Run a part until the body ends. None may end before that: it stops the process."""
        task: asyncio.Task[object] = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self.push_async_callback(end, [task], _FAREWELL_S)
        return task

    async def reach(self, awaited: Coroutine[Any, Any, object]) -> bool:
        """Wait for ``awaited`` or the stop, whatever comes first; whether it was ``awaited``."""
        task = asyncio.create_task(awaited)
        stopped = asyncio.create_task(self.stopping.wait())
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        reached = task.done()
        await end((task, stopped))
        if reached:
            task.result()  # what went wrong in it is raised here
        return reached

    def _ended(self, task: "asyncio.Task[object]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None or not self.stopping.is_set():
            log.error("part of the process ended", extra={"part": task.get_name()}, exc_info=error)
            self.stop(ExitStatus.FAILED)
