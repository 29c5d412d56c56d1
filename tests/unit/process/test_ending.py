"""Ending tasks for certain."""

import asyncio

from pointsman.process.ending import end


async def test_a_task_that_drops_a_cancellation_is_cancelled_again() -> None:
    dropped = 0

    async def stubborn() -> None:
        nonlocal dropped
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                dropped += 1
                if dropped == 2:
                    raise

    async def failing() -> None:
        raise RuntimeError("not of interest any more")

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(failing())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    async with asyncio.timeout(30):
        await end(tasks)
    assert all(task.done() for task in tasks)
    assert dropped == 2
