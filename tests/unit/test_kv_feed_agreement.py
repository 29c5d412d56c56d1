"""An engine's evictions, through the worker's index and feed to the gateway's index: the gateway finds what is cached.

The engine is a set of counted physical blocks that evicts any of them, ends of prefixes or not.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol.kv_feed import FrameReader
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.kv_feed import FeedState
from pointsman.gateway.types import WorkerKey
from pointsman.serving.block_hashes import chained_block_hashes
from pointsman.workers.core.prefix_index import BlocksRemoved, BlocksStored, PrefixIndex
from pointsman.workers.kv_feed import KvFeedPublisher

BLOCK = 1
W = WorkerKey("w")
Prefix = tuple[int, ...]


class Worker:
    """One engine with its index, and what a gateway knows of it."""

    def __init__(self) -> None:
        self.cached: Counter[Prefix] = Counter()
        self.index = PrefixIndex(BLOCK)
        self._feed = KvFeedPublisher(self.index, instance="i1", block_size=BLOCK, known=lambda: True)
        self._pieces: AsyncGenerator[bytes, None] = self._feed.stream()
        self._reader = FrameReader()
        self._gateway = KvIndex()
        self._state = FeedState(self._gateway, W)

    async def __aenter__(self) -> "Worker":
        while not self._state.known:
            await self._read()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pieces.aclose()

    async def _read(self) -> None:
        self._reader.push(await anext(self._pieces))
        while (frame := self._reader.next()) is not None:
            self._state.apply(frame)

    async def serve(self, prompt: Sequence[int]) -> None:
        """Compute and store what is not cached; of a prompt that is cached whole, the last block."""
        ends = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        hits = min(self.hits(prompt), len(prompt) - 1)
        self.cached.update(ends[hits:])
        names = tuple(repr(end).encode() for end in ends)
        event = BlocksStored(names[hits:], names[hits - 1] if hits else None, prompt[hits:], BLOCK)
        self._feed.publish(self.index.apply([event]))
        await self._read()

    async def evict(self, prefix: Prefix) -> None:
        """One physical block, if there is one."""
        if self.cached[prefix]:
            self.cached[prefix] -= 1
            if changes := self.index.apply([BlocksRemoved((repr(prefix).encode(),))]):
                self._feed.publish(changes)
                await self._read()

    def hits(self, prompt: Sequence[int]) -> int:
        """Blocks of ``prompt`` that the engine would take from its cache."""
        hits = 0
        while hits < len(prompt) and self.cached[tuple(prompt[: hits + 1])] > 0:
            hits += 1
        return hits

    def known(self, prompt: Sequence[int]) -> int:
        """Blocks of ``prompt`` that the gateway finds at the worker."""
        return self._gateway.matches(chained_block_hashes(prompt, BLOCK)).get(W, 0)


async def test_what_follows_an_evicted_block_is_found_as_soon_as_that_block_is_stored_again() -> None:
    async with Worker() as worker:
        for prompt in ([1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 7]):
            await worker.serve(prompt)
        await worker.evict((1, 2))
        assert worker.known([1, 2, 3, 4]) == 1
        await worker.serve([1, 2, 8])
        assert [worker.known(prompt) for prompt in ([1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 8], [1, 7])] == [4, 5, 3, 2]


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.booleans(), prompts), max_size=25))
def test_the_gateway_finds_exactly_what_is_cached_whatever_is_evicted(steps: list[tuple[bool, list[int]]]) -> None:
    async def play() -> None:
        async with Worker() as worker:
            for serves, prompt in steps:
                if serves:
                    await worker.serve(prompt)
                else:
                    await worker.evict(tuple(prompt))
                for _, asked in steps:
                    assert worker.known(asked) == worker.hits(asked)
            for prefix in list(worker.cached.elements()):
                await worker.evict(prefix)
            assert (len(worker.index), worker.index._followers) == (0, {})

    asyncio.run(play())
