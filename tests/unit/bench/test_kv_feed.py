"""The benchmark of the KV feed reports what it measured, and its workers are as busy as it says."""

import asyncio
from typing import Any

from bench.kv_feed import Found, Slices, rows
from bench.kv_feed_workers import Cache


class Names(Cache):
    """Events as their kind, prompt and blocks: vLLM is not here."""

    def __init__(self) -> None:
        pass

    def stored(self, prompt: int, first: int, blocks: int) -> Any:
        return {(prompt, block) for block in range(first, first + blocks)}

    def removed(self, prompt: int, blocks: int) -> Any:
        return (prompt, blocks)


def test_a_cache_ends_with_the_blocks_asked_for_and_half_of_them_are_old() -> None:
    batches = list(Names().busy_hours(blocks=2_000, batches=1_003))
    held: set[tuple[int, int]] = set()
    for (event,) in batches:
        if isinstance(event, set):
            held |= event
        else:
            prompt, blocks = event
            held -= {(prompt, block) for block in range(blocks)}
    assert len(held) == 2_000
    assert len(batches) in range(1_000, 1_004)
    assert sum(len(event) for (event,) in batches[:10]) == 1_000, "stored first, and never again"


def test_each_way_has_its_time_its_longest_callback_and_its_hits() -> None:
    found = {"reconnect": [Found(1.0, 2.5, 1.0), Found(4.0, 21.0, 0.5), Found(2.0, 3.0, 1.0)]}
    seconds, slices, hits = rows(found, "make bench-kv-feed")
    assert (seconds.ours, seconds.target, seconds.met, seconds.spread) == (2.0, "<= 3", True, (1.0, 4.0))
    assert (slices.ours, slices.target, slices.met) == (3.0, "<= 20", True)
    assert (hits.ours, hits.target, hits.met) == (1.0, ">= 1", True)


async def test_the_longest_callback_of_the_loop_is_found() -> None:
    with Slices().watched() as slices:
        asyncio.get_running_loop().call_soon(lambda: sum(range(200_000)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert slices.longest_s > 0.0005
