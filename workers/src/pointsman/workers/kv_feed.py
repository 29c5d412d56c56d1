"""Streams the worker's prefix index to gateways: a snapshot, then every change, see ``pointsman.api.protocol.kv_feed``.

The event loop is the engine's API server's. So a change is encoded once for all subscribers and not at all without any,
a snapshot is one copy of the hashes that is packed in slices, and a subscriber that does not read costs a bounded
amount of memory: it gets a new snapshot when it reads again.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

from pointsman.api.protocol import kv_feed as wire
from pointsman.workers.core.prefix_index import HashesRemoved, HashesStored, IndexChange, PrefixIndex

SNAPSHOT_SLICE_BLOCKS = 1024
MAX_PENDING_BYTES = 4 << 20  # of one subscriber: half a million blocks


class KvFeedPublisher:
    """Numbers the changes of ``index`` and hands them to every subscriber. ``known``: the index is to be trusted."""

    def __init__(self, index: PrefixIndex, *, instance: str, block_size: int, known: Callable[[], bool]) -> None:
        self._index = index
        self._instance = instance
        self._block_size = block_size
        self._known = known
        self._sequence = 0
        self._subscribers: set[_Subscriber] = set()

    def publish(self, changes: Sequence[IndexChange]) -> None:
        """The index has changed; called in order, right after the change."""
        self._sequence += 1
        if not self._subscribers:
            return
        frame = wire.encode_frame(wire.Increment(self._sequence, [_on_the_wire(change) for change in changes]))
        for subscriber in self._subscribers:
            subscriber.put(frame)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Pieces of one subscriber's stream, for as long as they are asked for."""
        subscriber = _Subscriber()
        self._subscribers.add(subscriber)
        try:
            while True:
                if subscriber.needs_snapshot and self._known():
                    subscriber.restart()
                    async for piece in self._snapshot(subscriber):
                        yield piece
                elif pending := subscriber.take():
                    yield pending
                elif not await subscriber.wait(wire.HEARTBEAT_SECONDS):
                    yield wire.encode_frame(wire.Heartbeat(self._sequence))
        finally:
            self._subscribers.discard(subscriber)

    async def _snapshot(self, subscriber: "_Subscriber") -> AsyncIterator[bytes]:
        """The index as of now. Changes from now on wait in ``subscriber``."""
        begin = wire.Snapshot(wire.FEED_VERSION, self._instance, self._block_size, self._sequence)
        slices = self._index.runs(SNAPSHOT_SLICE_BLOCKS)
        next(slices)  # copies the index
        yield wire.encode_frame(begin)
        for runs in slices:
            if subscriber.needs_snapshot:
                return  # it was too slow: another snapshot replaces this one
            if runs:
                yield wire.encode_frame(wire.Blocks([_run(run) for run in runs], last=False))
            await asyncio.sleep(0)
        yield wire.encode_frame(wire.Blocks([], last=True))


class _Subscriber:
    """What one subscriber has not been sent yet."""

    def __init__(self) -> None:
        self.needs_snapshot = True
        self._frames: list[bytes] = []
        self._bytes = 0
        self._filled = asyncio.Event()

    def put(self, frame: bytes) -> None:
        if self.needs_snapshot:
            return  # it is in the snapshot; and what is not known yet must not keep heartbeats back
        self._frames.append(frame)
        self._bytes += len(frame)
        self._filled.set()
        if self._bytes > MAX_PENDING_BYTES:
            self._empty()
            self.needs_snapshot = True

    def restart(self) -> None:
        self._empty()
        self.needs_snapshot = False

    def take(self) -> bytes:
        pending = b"".join(self._frames)
        self._empty()
        return pending

    async def wait(self, timeout_s: float) -> bool:
        """Whether something came within ``timeout_s``."""
        self._filled.clear()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._filled.wait()
        except TimeoutError:
            return False

    def _empty(self) -> None:
        self._frames = []
        self._bytes = 0


def _run(stored: HashesStored) -> wire.Run:
    return wire.Run(stored.parent, wire.pack_hashes(stored.hashes))


def _on_the_wire(change: IndexChange) -> wire.Change:
    match change:
        case HashesStored(parent=parent, hashes=hashes):
            return wire.Stored(parent, wire.pack_hashes(hashes))
        case HashesRemoved(hashes=hashes):
            return wire.Removed(wire.pack_hashes(hashes))
        case _:
            return wire.Cleared()
