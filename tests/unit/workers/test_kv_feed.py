"""What a gateway gets from a worker's KV feed: a snapshot, every change after it, a new snapshot when it is slow."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol import kv_feed as wire
from pointsman.api.protocol.kv_feed import FrameReader, MalformedFeed, encode_frame, pack_hashes, unpack_hashes
from pointsman.serving.block_hashes import chained_block_hashes
from pointsman.workers import kv_feed
from pointsman.workers.core.prefix_index import AllBlocksCleared, BlocksRemoved, BlocksStored, KvEvent, PrefixIndex
from pointsman.workers.kv_feed import KvFeedPublisher

BLOCK = 4


def name(tokens: Sequence[int]) -> bytes:
    """The engine's own hash of the last block of a prefix."""
    return repr(tuple(tokens)).encode()


def stored(tokens: Sequence[int], since: int = 0) -> BlocksStored:
    """The blocks of ``tokens`` from block ``since`` on are in the cache."""
    ends = range((since + 1) * BLOCK, len(tokens) + 1, BLOCK)
    names = tuple(name(tokens[:end]) for end in ends)
    return BlocksStored(names, name(tokens[: since * BLOCK]) if since else None, tokens[since * BLOCK :], BLOCK)


class Cache:
    """An index and its publisher, changed as an engine's events change them."""

    def __init__(self) -> None:
        self.index = PrefixIndex(BLOCK)
        self.known = True
        self.publisher = KvFeedPublisher(self.index, instance="i1", block_size=BLOCK, known=lambda: self.known)

    @property
    def held(self) -> set[int]:
        return {block for runs in self.index.runs(1000) for run in runs for block in run.hashes}

    def change(self, *events: KvEvent) -> None:
        self.publisher.publish(self.index.apply(events))

    async def change_often(self) -> None:
        while True:
            self.change(stored([1, 2, 3, 4]))
            await asyncio.sleep(0.001)


class Subscriber:
    """Reads frames and keeps what they say, as a gateway would."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._reader = FrameReader()
        self.held: set[int] = set()
        self.snapshots = 0
        self.sequence = -1

    async def frame(self) -> wire.Frame:
        """The next frame, applied."""
        while (frame := self._reader.next()) is None:
            self._reader.push(await anext(self._pieces))
        match frame:
            case wire.Snapshot(sequence=sequence):
                self.held, self.snapshots, self.sequence = set(), self.snapshots + 1, sequence
            case wire.Blocks(runs=runs):
                for run in runs:
                    assert run.parent is None or run.parent in self.held, "a run comes after what it follows"
                    self.held |= set(unpack_hashes(run.hashes))
            case wire.Increment(sequence=sequence, changes=changes):
                assert sequence == self.sequence + 1
                self.sequence = sequence
                for change in changes:
                    match change:
                        case wire.Stored(hashes=hashes):
                            self.held |= set(unpack_hashes(hashes))
                        case wire.Removed(hashes=hashes):
                            self.held -= set(unpack_hashes(hashes))
                        case wire.Cleared():
                            self.held = set()
            case wire.Heartbeat(sequence=sequence):
                assert self.snapshots == 0 or sequence == self.sequence
        return frame

    async def snapshot(self) -> None:
        """Read one whole snapshot."""
        while not (isinstance(frame := await self.frame(), wire.Blocks) and frame.last):
            pass


@asynccontextmanager
async def subscribed(cache: Cache) -> AsyncIterator[Subscriber]:
    pieces: AsyncGenerator[bytes, None] = cache.publisher.stream()
    async with aclosing(pieces):
        yield Subscriber(pieces)


async def test_a_subscriber_gets_what_is_there_and_then_every_change() -> None:
    cache = Cache()
    cache.change(stored(range(16)))
    async with subscribed(cache) as subscriber:
        await subscriber.snapshot()
        assert subscriber.held == set(chained_block_hashes(range(16), BLOCK))
        cache.change(stored(range(24), since=4), BlocksRemoved((name(range(24)),)))
        await subscriber.frame()
        assert subscriber.held == set(chained_block_hashes(range(20), BLOCK))
        cache.change(AllBlocksCleared())
        await subscriber.frame()
        assert subscriber.held == set()


async def test_changes_during_a_snapshot_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_feed, "SNAPSHOT_SLICE_BLOCKS", 2)
    cache = Cache()
    cache.change(*(stored([number] * 40) for number in range(20)))
    async with subscribed(cache) as subscriber:
        await subscriber.frame()
        for number in range(20):
            cache.change(BlocksRemoved((name([number] * 40),)), stored([100 + number] * BLOCK))
            await subscriber.frame()
        while subscriber.sequence < 21:
            await subscriber.frame()
        assert subscriber.held == cache.held
        assert subscriber.snapshots == 1


async def test_a_subscriber_that_does_not_read_gets_a_new_snapshot_and_costs_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_feed, "MAX_PENDING_BYTES", 1000)
    cache = Cache()
    async with subscribed(cache) as subscriber:
        await subscriber.snapshot()
        for number in range(100):
            cache.change(stored([number] * 8))
        await subscriber.snapshot()
        assert (subscriber.snapshots, len(subscriber.held)) == (2, 200)
        cache.change(stored([7] * 12, since=2))
        await subscriber.frame()
        assert subscriber.held == cache.held


async def test_a_worker_that_does_not_know_its_cache_says_that_it_lives_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "HEARTBEAT_SECONDS", 0.01)
    cache = Cache()
    cache.known = False
    async with subscribed(cache) as subscriber:
        assert isinstance(await subscriber.frame(), wire.Heartbeat)
        publishing = asyncio.create_task(cache.change_often())
        async with asyncio.timeout(30):
            assert isinstance(await subscriber.frame(), wire.Heartbeat), "changes come that it may not tell"
        publishing.cancel()
        cache.known = True
        await subscriber.snapshot()
        assert isinstance(await subscriber.frame(), wire.Heartbeat)
    assert not cache.publisher._subscribers


@given(st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=24), max_size=12), st.lists(st.integers(0, 11)))
def test_a_snapshot_has_every_prefix_that_can_be_hit_and_nothing_else(
    prompts: list[list[int]], evicted: list[int]
) -> None:
    index = PrefixIndex(BLOCK)
    index.apply([stored(prompt) for prompt in prompts])
    index.apply([BlocksRemoved((name(prompts[n][:BLOCK]),)) for n in evicted if n < len(prompts)])
    held: list[int] = []
    for runs in index.runs(2):
        for run in runs:
            assert run.parent is None or run.parent in held
            held += run.hashes
    assert len(held) == len(set(held))
    usable = {
        block
        for prompt in prompts
        for block in chained_block_hashes(prompt, BLOCK)[: index.cached_tokens(prompt) // BLOCK]
    }
    assert set(held) == usable


@given(st.lists(st.lists(st.integers(0, 2**64 - 1))), st.integers(1, 50))
def test_frames_are_read_however_the_bytes_are_cut(runs: list[list[int]], piece: int) -> None:
    frames: list[wire.Frame] = [wire.Blocks([wire.Run(None, pack_hashes(run))], last=not run) for run in runs]
    data = b"".join(map(encode_frame, frames))
    reader, found = FrameReader(), []
    for start in range(0, len(data), piece):
        reader.push(data[start : start + piece])
        while (frame := reader.next()) is not None:
            found.append(frame)
    assert found == frames


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc0", b"\x00\x00\x00\x02\x91\x01"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    reader = FrameReader()
    reader.push(data)
    with pytest.raises(MalformedFeed):
        reader.next()
    with pytest.raises(MalformedFeed):
        unpack_hashes(b"123")


async def test_the_server_is_not_stalled_by_a_snapshot() -> None:
    cache = Cache()
    cache.change(*(stored([number] * 400) for number in range(200)))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with subscribed(cache) as subscriber:
        neighbour = asyncio.create_task(others())
        await subscriber.snapshot()
        neighbour.cancel()
    assert turns >= 20_000 // kv_feed.SNAPSHOT_SLICE_BLOCKS
