"""Feeds that have much to apply give the event loop back."""

import asyncio

from pointsman.gateway.kv_events import LoopBudget


async def test_all_users_together_spend_the_budget_once_in_an_iteration_of_the_loop() -> None:
    budget = LoopBudget(0.002)
    iterations = 0
    spent: dict[int, float] = {}

    async def count() -> None:
        nonlocal iterations
        while True:
            await asyncio.sleep(0)
            iterations += 1

    async def use() -> None:
        for _ in range(20):
            await budget.wait()
            spent[iterations] = spent.get(iterations, 0.0) + 0.001
            budget.spend(0.001)

    counting = asyncio.create_task(count())
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(use())
    counting.cancel()
    assert sum(spent.values()) > 0.079
    assert max(spent.values()) < 0.0041, "a counter may be one iteration late"
    assert len(spent) >= 20
