"""An event loop in a thread beside the engine's, which never waits for it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
STOP_S: Final = 5.0


class BackgroundLoop:
    """Runs coroutines until ``stop``; the thread does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Begin ``work``; cancelling the result cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have ``function`` called there; returns at once."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """Run ``last``, then end the loop and the thread."""
        if not self._thread.is_alive():
            last.close()
            return
        ended = self.start(last)
        ended.add_done_callback(lambda _: self.call(self._loop.stop))
        self._thread.join(STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
