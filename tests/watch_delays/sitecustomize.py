"""Late news from the API server, to find tests (and code) whose outcome depends on which watch is ahead of which.

With this folder on ``PYTHONPATH`` every Python process imports this file at its start, so also those that tests start.
``WATCH_DELAYS`` is the seed; without it nothing happens. Each watch of a process is late by a time of its own, drawn
by seed, test, process and kind; each write takes a moment before it is sent and a moment before its answer is seen.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final

_MODULE: Final = "pointsman.kube.request"
_ON_TIME: Final = 0.35  # the share of watches that are not late
_LATEST_S: Final = 1.5
_WRITE_S: Final = 0.15


def _dice(*what: str) -> random.Random:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    process = os.environ.get("POINTSMAN_POD_NAME", "test")
    return random.Random(":".join((os.environ["WATCH_DELAYS"], test, process, *what)))


def _delay(requests: Any) -> None:
    """Replace what a :class:`pointsman.kube.request.Requests` sends and receives."""
    watch, write = requests.watch, requests.write

    async def late_watch(self: Any, target: Any, *more: Any, **options: Any) -> AsyncGenerator[bytes, None]:
        dice = _dice(target.resource.plural)
        late_s = 0.0 if dice.random() < _ON_TIME else dice.uniform(0, _LATEST_S)
        arrived: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()

        async def receive() -> None:
            try:
                async with aclosing(watch(self, target, *more, **options)) as lines:
                    async for line in lines:
                        arrived.put_nowait((time.monotonic() + late_s, line))
            finally:
                arrived.put_nowait((time.monotonic() + late_s, None))

        receiving = asyncio.create_task(receive())
        try:
            while True:
                due_s, line = await arrived.get()
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                if line is None:
                    await receiving  # raises what ended the watch
                    return
                yield line
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def slow_write(self: Any, target: Any, *more: Any, **options: Any) -> bytes:
        dice = vars(self).setdefault("dice_of_writes", _dice("writes"))
        late_s = 0.0 if target.resource.plural == "leases" else _WRITE_S
        await asyncio.sleep(dice.uniform(0, late_s))
        answer: bytes = await write(self, target, *more, **options)
        await asyncio.sleep(dice.uniform(0, late_s))
        return answer

    requests.watch, requests.write = late_watch, slow_write


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == _MODULE else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_delay(module: ModuleType) -> None:
            execute(module)
            _delay(module.Requests)

        spec.loader.exec_module = execute_and_delay  # type: ignore[method-assign]
        return spec


if os.environ.get("WATCH_DELAYS"):
    sys.meta_path.insert(0, _Finder())
