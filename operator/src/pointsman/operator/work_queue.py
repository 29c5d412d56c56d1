"""Keyed work queue: a burst of changes to one key is one piece of work, and a key never runs twice at once."""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pointsman.process.clock import SYSTEM_CLOCK, Clock, Timer

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 60.0


class QueueClosed(Exception):
    """There is no more work: the queue was closed."""


@dataclass(frozen=True)
class QueueStats:
    """For metrics: keys ready, running, delayed and in back-off; ``oldest_age_s`` is the longest wait of a ready
    key.
    """

    ready: int
    running: int
    delayed: int
    failing: int
    oldest_age_s: float


class WorkQueue(Generic[K]):
    """Set of keys that need work.

    A key that is added while it is ready is there once; one that is added while it runs runs again afterwards. A
    failed key comes back after 0.5 s, doubling to 60 s (with jitter, so that what failed together does not return
    together), until it succeeds. One event loop only.
    """

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM_CLOCK,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """``jitter`` gives a number in [0, 1): the part of a back-off's last fifth that is taken."""
        self._clock = clock
        self._jitter = jitter
        self._ready: dict[K, float] = {}  # in order of arrival; the value is since when
        self._running: set[K] = set()
        self._again: set[K] = set()  # added while running
        self._later: dict[K, tuple[float, Timer]] = {}
        self._failures: dict[K, int] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def add(self, key: K) -> None:
        """The key needs work now."""
        if self._closed:
            return
        if key in self._running:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = self._clock.monotonic_s()
            self._wake_one()

    def add_later(self, key: K, delay_s: float) -> None:
        """The key needs work in ``delay_s`` seconds; an earlier time that is already set stays."""
        if self._closed:
            return
        if delay_s <= 0:
            self.add(key)
            return
        due_s = self._clock.monotonic_s() + delay_s
        waiting = self._later.get(key)
        if waiting is not None:
            if waiting[0] <= due_s:
                return
            waiting[1].cancel()
        self._later[key] = (due_s, self._clock.call_later(delay_s, lambda: self._due(key)))

    async def get(self) -> K:
        """The key that waited longest; the caller ends with :meth:`done` or :meth:`failed`. Raises QueueClosed."""
        while not self._ready:
            if self._closed:
                raise QueueClosed
            getter = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                if getter in self._getters:
                    self._getters.remove(getter)
                elif self._ready:  # woken and cancelled at once: the work is someone else's
                    self._wake_one()
                raise
        if self._closed:
            raise QueueClosed
        key = next(iter(self._ready))
        del self._ready[key]
        self._running.add(key)
        return key

    def done(self, key: K) -> None:
        """The key's work succeeded: its back-off starts anew with the next failure."""
        self._failures.pop(key, None)
        self._finish(key)

    def failed(self, key: K) -> float:
        """The key's work failed: it comes back after its back-off, whose seconds are returned."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        # The exponent is bounded so that a key that fails for weeks does not overflow a float.
        delay_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 32))
        delay_s *= 1 - self._jitter() / 5
        self._finish(key)
        self.add_later(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """The key's object is gone: drop its delays and back-off, and what is ready."""
        self._failures.pop(key, None)
        self._again.discard(key)
        self._ready.pop(key, None)
        waiting = self._later.pop(key, None)
        if waiting is not None:
            waiting[1].cancel()

    def close(self) -> None:
        """No more work is handed out; what runs may end."""
        self._closed = True
        for _, timer in self._later.values():
            timer.cancel()
        self._later.clear()
        while self._getters:
            self._wake_one()

    def stats(self) -> QueueStats:
        """What waits and runs now."""
        oldest_s = next(iter(self._ready.values()), None)
        return QueueStats(
            ready=len(self._ready),
            running=len(self._running),
            delayed=len(self._later),
            failing=len(self._failures),
            oldest_age_s=0.0 if oldest_s is None else self._clock.monotonic_s() - oldest_s,
        )

    async def run(self, work: Callable[[K], Awaitable[float | None]], *, workers: int = 4) -> None:
        """Work on keys, ``workers`` at a time, until the queue is closed and what ran has ended.

        ``work(key)`` returns in how many seconds it wants to be called again, None for not before the next change. An
        exception puts the key into back-off and goes to the log.
        """
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(self._work(work), name=f"worker-{number}")

    async def _work(self, work: Callable[[K], Awaitable[float | None]]) -> None:
        while True:
            try:
                key = await self.get()
            except QueueClosed:
                return
            try:
                again_s = await work(key)
            except Exception as error:  # noqa: BLE001 - one key's bug must not stop the others' work
                _log_failure(key, error, self.failed(key))
            except asyncio.CancelledError:
                self._finish(key)
                raise
            else:
                self.done(key)
                if again_s is not None:
                    self.add_later(key, again_s)

    def _finish(self, key: K) -> None:
        self._running.remove(key)
        if key in self._again:
            self._again.remove(key)
            self.add(key)

    def _due(self, key: K) -> None:
        del self._later[key]
        self.add(key)

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return


def _log_failure(key: Hashable, error: Exception, delay_s: float) -> None:
    log.error(
        "work failed", extra={"key": str(key), "retry_in_s": round(delay_s, 1), "why": str(error)}, exc_info=error
    )
