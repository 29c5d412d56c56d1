"""Following an engine's KV events over real ZMQ sockets: replay, order, gaps."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from pointsman.api.protocol.kv import kv_events_topic
from pointsman.workers.core.prefix_index import PrefixIndex
from pointsman.workers.kv_events import KvEventFeed
from waiting import eventually

BLOCK = 4
WORKER = "worker-0"


class Publisher:
    """What vLLM's ZmqEventPublisher does: publishes, and replays what its buffer still holds."""

    def __init__(self, address: str = "tcp://127.0.0.1") -> None:
        self._context = zmq.asyncio.Context()
        self._context.setsockopt(zmq.IPV6, 1)
        self._events = self._context.socket(zmq.XPUB)
        self._replay = self._context.socket(zmq.ROUTER)
        self.endpoint = f"{address}:{self._events.bind_to_random_port(address)}"
        self.replay_endpoint = f"{address}:{self._replay.bind_to_random_port(address)}"
        self.buffer: dict[int, bytes] = {}
        self._next = 0
        self._server = asyncio.create_task(self._serve_replay())

    async def subscribed(self) -> None:
        """Wait for a subscriber: what is published before is not heard."""
        async with asyncio.timeout(30):
            assert await self._events.recv() == b"\x01" + kv_events_topic(WORKER).encode()

    async def publish(self, *events: dict[str, Any], lost: bool = False) -> None:
        """Publish one message; ``lost``: it is in the buffer, but the subscriber does not hear it."""
        payload = msgspec.msgpack.encode([0.0, list(events), 0])
        self.buffer[self._next] = payload
        if not lost:
            topic = kv_events_topic(WORKER).encode()
            await self._events.send_multipart([topic, self._next.to_bytes(8, "big"), payload])
        self._next += 1

    async def _serve_replay(self) -> None:
        while True:
            asker, _, start = await self._replay.recv_multipart()
            for sequence, payload in self.buffer.items():
                if sequence >= int.from_bytes(start, "big"):
                    await self._replay.send_multipart([asker, b"", b"", sequence.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([asker, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])

    async def close(self) -> None:
        self._server.cancel()
        await asyncio.gather(self._server, return_exceptions=True)
        self._context.destroy(linger=0)


@pytest.fixture
async def publisher(request: pytest.FixtureRequest) -> AsyncIterator[Publisher]:
    """At 127.0.0.1, or at the address a test asks for."""
    made = Publisher(getattr(request, "param", "tcp://127.0.0.1"))
    yield made
    await made.close()


@pytest.fixture
async def index(publisher: Publisher) -> AsyncIterator[PrefixIndex]:
    """An index fed by the publisher. Events 0 was published before the feed began."""
    await publisher.publish(stored(0))
    index = PrefixIndex(BLOCK)
    feed = KvEventFeed(index, WORKER, publisher.endpoint, publisher.replay_endpoint)
    task = asyncio.create_task(feed.run())
    await publisher.subscribed()
    await eventually(lambda: feed.live, "the feed has caught up")
    yield index
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def tokens(number: int) -> list[int]:
    return [number] * BLOCK


def stored(number: int) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [number],
        "parent_block_hash": None,
        "token_ids": tokens(number),
        "block_size": BLOCK,
    }


@pytest.mark.parametrize("publisher", ["tcp://127.0.0.1", "tcp://[::1]"], indirect=True)
async def test_what_was_stored_before_is_replayed_and_what_follows_is_followed(
    publisher: Publisher, index: PrefixIndex
) -> None:
    assert index.cached_tokens(tokens(0)) == BLOCK
    await publisher.publish(stored(1), stored(2))
    await publisher.publish({"type": "BlockRemoved", "block_hashes": [1]})
    await publisher.publish(stored(3))
    await eventually(lambda: index.cached_tokens(tokens(3)) == BLOCK, "the last event is applied")
    assert [index.cached_tokens(tokens(number)) for number in range(4)] == [BLOCK, 0, BLOCK, BLOCK]


async def test_a_gap_is_filled_from_the_replay(publisher: Publisher, index: PrefixIndex) -> None:
    await publisher.publish(stored(1), lost=True)
    await publisher.publish(stored(2))
    await eventually(lambda: index.cached_tokens(tokens(2)) == BLOCK, "the event after the gap is applied")
    assert index.cached_tokens(tokens(1)) == BLOCK


async def test_after_a_gap_that_nobody_can_fill_the_index_starts_anew(publisher: Publisher, index: PrefixIndex) -> None:
    await publisher.publish(stored(1), lost=True)
    publisher.buffer.clear()
    await publisher.publish(stored(2))
    await eventually(lambda: index.cached_tokens(tokens(2)) == BLOCK, "the event after the gap is applied")
    assert index.cached_tokens(tokens(0)) == 0, "what was lost may have removed it"
