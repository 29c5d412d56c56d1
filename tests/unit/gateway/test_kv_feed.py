"""What the frames of a worker's KV feed do to the index: whole snapshots, increments in order, nothing half."""

import pytest

from pointsman.api.protocol import kv_feed as wire
from pointsman.api.protocol.kv_feed import MalformedFeed, pack_hashes
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.kv_feed import FeedGap, FeedNotSupported, FeedState
from pointsman.gateway.types import WorkerKey
from pointsman.serving.block_hashes import chained_block_hashes

W = WorkerKey("w")
CHAIN = chained_block_hashes(range(64), 16)
OTHER = chained_block_hashes(range(1000, 1064), 16)


def begin(sequence: int = 7, version: int = wire.FEED_VERSION) -> wire.Snapshot:
    return wire.Snapshot(version, "i1", 16, sequence)


def blocks(chain: list[int], *, last: bool = True, parent: int | None = None) -> wire.Blocks:
    return wire.Blocks([wire.Run(parent, pack_hashes(chain))], last)


def hits(index: KvIndex, chain: list[int] = CHAIN) -> int:
    return index.matches(chain).get(W, 0)


def known(index: KvIndex) -> FeedState:
    """A stream whose snapshot, as of increment 7, held CHAIN."""
    state = FeedState(index, W)
    state.apply(begin())
    assert state.apply(blocks(CHAIN))
    return state


def test_a_snapshot_counts_when_it_is_complete() -> None:
    index = KvIndex()
    state = FeedState(index, W)
    assert not state.apply(begin())
    assert not state.apply(blocks(CHAIN[:2], last=False))
    assert hits(index) == 0
    assert state.apply(blocks(CHAIN[2:], parent=CHAIN[1]))
    assert hits(index) == 4


def test_increments_follow_it() -> None:
    index = KvIndex()
    state = known(index)
    state.apply(wire.Increment(8, [wire.Removed(pack_hashes(CHAIN[3:])), wire.Stored(None, pack_hashes(OTHER))]))
    assert (hits(index), hits(index, OTHER)) == (3, 4)
    state.apply(wire.Heartbeat(8))
    state.apply(wire.Increment(9, [wire.Cleared(), wire.Stored(None, pack_hashes(CHAIN[:1]))]))
    assert (hits(index), hits(index, OTHER)) == (1, 0)


@pytest.mark.parametrize("frame", [wire.Increment(9, []), wire.Increment(7, []), wire.Heartbeat(8)])
def test_a_gap_is_noticed(frame: wire.Frame) -> None:
    with pytest.raises(FeedGap):
        known(KvIndex()).apply(frame)


def test_the_old_content_stays_until_a_new_snapshot_is_complete() -> None:
    index = KvIndex()
    known(index)
    state = FeedState(index, W)
    state.apply(wire.Heartbeat(0))
    state.apply(begin(sequence=0))
    state.apply(blocks(OTHER[:2], last=False))
    assert (hits(index), hits(index, OTHER)) == (4, 0)
    state.abandon()
    assert (hits(index), hits(index, OTHER)) == (4, 0)
    state = FeedState(index, W)
    state.apply(begin(sequence=0))
    state.apply(blocks(OTHER))
    assert (hits(index), hits(index, OTHER)) == (0, 4)


def test_a_feed_of_another_version_is_not_guessed_at() -> None:
    with pytest.raises(FeedNotSupported, match="version 2"):
        FeedState(KvIndex(), W).apply(begin(version=2))


@pytest.mark.parametrize("frame", [blocks(CHAIN), wire.Increment(1, [])])
def test_frames_without_a_snapshot_are_malformed(frame: wire.Frame) -> None:
    with pytest.raises(MalformedFeed):
        FeedState(KvIndex(), W).apply(frame)
