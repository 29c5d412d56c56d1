"""One task for each object that is planned: begun when it gets a policy, ended when it loses it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

Key = tuple[str, str]
"""``(namespace, name)``."""

LOOK_FOR_SERVICES_S: Final = 1.0
LOOKS_FAILED: Final = 3  # in a row, before it is said: one may be an answer of the API server that was lost
MOST_OF_AN_ERROR: Final = 1000  # letters


async def run_each(
    keys: Callable[[], set[Key]],
    plan: Callable[[Key], Coroutine[Any, Any, None]],
    forget: Callable[[Key], None],
    also: Callable[[], Awaitable[None]],
) -> None:
    """Until cancelled, run ``plan`` for each of ``keys``. ``forget`` follows its end; ``also`` is part of each look."""
    tasks: dict[Key, asyncio.Task[None]] = {}

    try:
        while True:
            wanted = keys()
            for key in wanted - tasks.keys():
                tasks[key] = asyncio.create_task(plan(key), name=f"plan {key[0]}/{key[1]}")
            for key in tasks.keys() - wanted:
                task = tasks.pop(key)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)  # it says nothing after this
                forget(key)
            await also()
            await asyncio.sleep(LOOK_FOR_SERVICES_S)
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
