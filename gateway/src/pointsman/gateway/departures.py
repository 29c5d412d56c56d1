"""Ends what waits at workers that have gone.

A worker that leaves the routable set usually drains: its streams go on to their end. One whose node vanished leaves the
set as well, and its connections say nothing about it. So a worker that has left and still has something of ours is
tried: where it takes no connection `MISSED_CONNECTIONS` times in a row, whatever waits there ends, and moves on.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from pointsman.gateway.fleet import Fleet
from pointsman.gateway.types import Worker, WorkerKey

log = logging.getLogger(__name__)

MISSED_CONNECTIONS: Final = 2
INTERVAL_S: Final = 1.0

Abort = Callable[[], None]


class Departures:
    """Attempts register here; ``look`` is called after every change of the routable set."""

    def __init__(self, fleet: Fleet, *, connect_timeout_seconds: float) -> None:
        self._fleet = fleet
        self._connect_timeout_seconds = connect_timeout_seconds
        self._open: dict[WorkerKey, tuple[Worker, set[Abort]]] = {}
        self._tries: dict[WorkerKey, asyncio.Task[None]] = {}

    def enter(self, worker: Worker, abort: Abort) -> None:
        """An attempt waits at ``worker``; ``abort`` is called when the worker is gone. Give it back with `leave`."""
        self._open.setdefault(worker.key, (worker, set()))[1].add(abort)

    def leave(self, worker: Worker, abort: Abort) -> None:
        """The attempt ended. Leaving twice is leaving once."""
        found = self._open.get(worker.key)
        if found is not None:
            found[1].discard(abort)
            if not found[1]:
                del self._open[worker.key]

    @contextmanager
    def watched(self, worker: Worker, abort: Abort) -> Iterator[None]:
        """``enter`` and ``leave``."""
        self.enter(worker, abort)
        try:
            yield
        finally:
            self.leave(worker, abort)

    def look(self) -> None:
        """Try those that have left and have something of ours."""
        here = {worker.key for worker in self._fleet.workers}
        for key, (worker, _aborts) in self._open.items():
            if key not in here and key not in self._tries:
                task = asyncio.create_task(self._try(worker), name=f"departure of {worker.name}")
                self._tries[key] = task
                task.add_done_callback(lambda _task, key=key: self._tries.pop(key, None))  # type: ignore[misc]

    async def stop(self) -> None:
        """End all tries."""
        tries = list(self._tries.values())
        for task in tries:
            task.cancel()
        await asyncio.gather(*tries, return_exceptions=True)

    async def _try(self, worker: Worker) -> None:
        missed = 0
        while worker.key in self._open and all(known.key != worker.key for known in self._fleet.workers):
            missed = 0 if await self._takes_connections(worker.url) else missed + 1
            if missed >= MISSED_CONNECTIONS:
                aborts = list(self._open[worker.key][1]) if worker.key in self._open else []
                log.warning("worker no longer exists", extra={"worker": worker.name, "ended": len(aborts)})
                for abort in aborts:
                    abort()
                return
            await asyncio.sleep(INTERVAL_S)

    async def _takes_connections(self, url: str) -> bool:
        at = urlsplit(url)
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                _reader, writer = await asyncio.open_connection(at.hostname, at.port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return True
