"""A clock that moves only when a test says so."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_ROUNDS = 30  # of the event loop until what a timer started has come to rest


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """``pointsman.process.clock.Clock`` for tests. Begins at 1 000 s, in the year 2026."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()
        self.after_step: Callable[[], None] = lambda: None
        """Called whenever something has happened: the place for what must hold always."""

    def monotonic_s(self) -> float:
        return self._now_s

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now_s)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self._now_s + max(0.0, delay_s), next(self._order), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        timer = self.call_later(delay_s, wake)
        try:
            await done
        finally:
            timer.cancel()

    async def settle(self) -> None:
        """Let tasks run until they wait for the clock or for one another. For code without real I/O."""
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move on, stopping at each timer that falls due."""
        await self.settle()
        until_s = self._now_s + seconds
        while self._timers and self._timers[0][0] <= until_s:
            due_s, _, timer = heapq.heappop(self._timers)
            if timer.callback is None:
                continue
            self._now_s = max(self._now_s, due_s)
            timer.callback()
            await self.settle()
            self.after_step()
        self._now_s = until_s
        await self.settle()
