"""The benchmark of the KV feed reports what it measured."""

import asyncio

import pytest
from bench.kv_feed import Found, LongestCallback, rows


def test_each_way_has_its_time_its_longest_callback_and_its_hits() -> None:
    found = {"reconnect": [Found(1.0, 2.5, 1.0), Found(4.0, 21.0, 0.5), Found(2.0, 3.0, 1.0)]}
    seconds, slices, hits = rows(found, "make bench-kv-feed")
    assert (seconds.ours, seconds.target, seconds.met, seconds.spread) == (2.0, "<= 3", True, (1.0, 4.0))
    assert (slices.ours, slices.target, slices.met) == (3.0, "<= 20", True)
    assert (hits.ours, hits.target, hits.met) == (1.0, ">= 1", True)


async def test_the_longest_callback_of_the_loop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.Handle, "_run", asyncio.Handle._run)  # undone at the end
    longest = LongestCallback()
    longest.watch()
    asyncio.get_running_loop().call_soon(lambda: sum(range(200_000)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert longest.seconds > 0.0005
