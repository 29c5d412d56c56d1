"""The two feeds of the router over real transports: KV events over ZMQ, KV metrics over NATS."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import msgspec
import nats
import pytest
import zmq
import zmq.asyncio
from pydantic import SecretStr

from fixtures.nats_server import PASSWORD, USER, NatsServer, running_nats
from pointsman.api.protocol.kv import KV_METRICS_STALE_SECONDS, KvMetrics
from pointsman.api.protocol.names import Role, kv_metrics_subject
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.router import token_load
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.kv_events import KvEventFeed
from pointsman.gateway.kv_metrics import KvMetricsFeed
from pointsman.gateway.settings import Settings
from pointsman.gateway.types import UNKNOWN_LOAD, Discovered, Load, Worker, WorkerKey
from pointsman.process.ending import end
from pointsman.serving.block_hashes import chained_block_hashes
from waiting import eventually

BLOCK = 4
W = WorkerKey("w")


class Publisher:
    """Publishes as vLLM's ZmqEventPublisher does: PUB, and a ROUTER that replays what its buffer still holds.

    (An XPUB: to subscribers it is a PUB, and it says when one has come, so that a test need not guess.)
    """

    def __init__(self, context: zmq.asyncio.Context, buffer: int = 100) -> None:
        self._pub = context.socket(zmq.XPUB)
        self._router = context.socket(zmq.ROUTER)
        self.events = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replays = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self.number = 0
        self.asked: list[int] = []
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self._replaying = asyncio.create_task(self._replay())

    async def stored(self, block: int, *, lost: bool = False) -> None:
        """Block number ``block`` of the one prompt is now in the cache; ``lost``: nobody hears of it."""
        event = {
            "type": "BlockStored",
            "block_hashes": [block + 1],
            "parent_block_hash": block or None,
            "token_ids": [block] * BLOCK,
            "block_size": BLOCK,
        }
        payload = msgspec.msgpack.encode([0.0, [event], 0])
        self._buffer.append((self.number, payload))
        if not lost:
            await self._pub.send_multipart([b"kv@w", self.number.to_bytes(8, "big"), payload])
        self.number += 1

    def restart(self) -> None:
        """Count from the beginning with an empty cache, as a restarted engine does."""
        self.number = 0
        self._buffer.clear()

    async def _replay(self) -> None:
        while True:
            client, _empty, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for number, payload in list(self._buffer):
                if number >= self.asked[-1]:
                    await self._router.send_multipart([client, b"", b"kv@w", number.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", b"kv@w", (-1).to_bytes(8, "big", signed=True), b""])

    async def subscribed(self) -> None:
        """Wait for a subscriber."""
        while await self._pub.recv() != b"\x01":
            pass

    async def close(self) -> None:
        self._replaying.cancel()
        await asyncio.gather(self._replaying, return_exceptions=True)
        self._pub.close(linger=0)
        self._router.close(linger=0)


def prompt(blocks: int) -> list[int]:
    """Hashes of the first ``blocks`` of the one prompt."""
    return chained_block_hashes([n for n in range(blocks) for _ in range(BLOCK)], BLOCK)


@asynccontextmanager
async def following(publisher: Publisher) -> AsyncIterator[KvIndex]:
    """A feed that follows ``publisher`` and has had its first replay."""
    index = KvIndex()
    fleet = Fleet(
        clock=lambda: 0.0,
        rng=Random(1),
        cost=token_load,
        index=index,
        load_of=lambda _worker: UNKNOWN_LOAD,
        suspect_seconds=1.0,
    )
    feed = KvEventFeed(fleet)
    fleet.on_change(feed.look)
    worker = Worker(W, "w", "http://w", Role.DECODE, publisher.events, publisher.replays)
    fleet.apply(Discovered((worker,)))
    async with asyncio.timeout(60):
        await publisher.subscribed()
    await eventually(lambda: bool(publisher.asked), "the first replay is asked for")
    try:
        yield index
    finally:
        fleet.apply(Discovered(()))
        await feed.stop()


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    context = zmq.asyncio.Context()
    made = Publisher(context)
    yield made
    await made.close()
    context.destroy(linger=0)


def held(index: KvIndex) -> int:
    return index.matches(prompt(32)).get(W, 0)


async def heard(publisher: Publisher, index: KvIndex, blocks: int) -> None:
    """Store one block after the other until the subscription has carried one over."""
    await publisher.stored(blocks)
    await eventually(lambda: held(index) == blocks + 1, f"block {blocks} is known")


async def test_what_was_stored_before_the_gateway_came_is_learnt_by_replay(publisher: Publisher) -> None:
    for block in range(5):
        await publisher.stored(block)
    async with following(publisher) as index:
        await eventually(lambda: held(index) == 5, "the replayed blocks are known")
        assert publisher.asked == [0]


async def test_a_gap_is_asked_for_and_filled(publisher: Publisher) -> None:
    async with following(publisher) as index:
        await heard(publisher, index, 0)
        await publisher.stored(1, lost=True)
        await publisher.stored(2, lost=True)
        await publisher.stored(3)
        await eventually(lambda: held(index) == 4, "lost blocks are known too")
        assert publisher.asked[-1] == 1


async def test_a_restarted_engines_old_blocks_are_forgotten(publisher: Publisher) -> None:
    async with following(publisher) as index:
        for block in range(4):
            await heard(publisher, index, block)
        publisher.restart()
        await publisher.stored(0)
        await eventually(lambda: held(index) == 1, "only what the new engine stored is known")


async def test_when_the_replay_does_not_reach_back_the_index_is_built_anew(publisher: Publisher) -> None:
    async with following(publisher) as index:
        await heard(publisher, index, 0)
        await heard(publisher, index, 1)
        await publisher.stored(2, lost=True)
        publisher._buffer.clear()
        await publisher.stored(3)
        await eventually(lambda: held(index) == 0, "what cannot be trusted is dropped")


async def test_a_worker_that_left_takes_its_blocks_along(publisher: Publisher) -> None:
    async with following(publisher) as index:
        await heard(publisher, index, 0)
    assert len(index) == 0


# --- KV metrics ---


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with running_nats() as server:
        yield server


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def metrics_feed(server: NatsServer, clock: Clock) -> AsyncIterator[KvMetricsFeed]:
    """A running feed of service ``uid-1`` in namespace ``ns``."""
    settings = Settings(
        namespace="ns", service="chat", nats_url=server.url, nats_user=USER, nats_password=SecretStr(PASSWORD)
    )
    feed = KvMetricsFeed(settings, clock=clock)

    async def uid() -> str:
        return "uid-1"

    running = asyncio.create_task(feed.run(uid))
    try:
        yield feed
    finally:
        await end((running,))


def message(worker: str = "w", **values: Any) -> bytes:
    return KvMetrics(**({"worker": worker, "instance": "i1", "sequence": 1} | values)).wire().encode()


async def test_metrics_of_this_service_are_known_until_they_are_old(nats_server: NatsServer) -> None:
    worker = Worker(W, "w", "http://w", Role.DECODE)
    clock = Clock()
    async with metrics_feed(nats_server, clock) as feed:
        client = await nats.connect(nats_server.url, user=USER, password=PASSWORD)
        sequence = 0

        async def says(usage: float, *, namespace: str = "ns", uid: str = "uid-1") -> None:
            nonlocal sequence
            sequence += 1
            data = message(sequence=sequence, gpu_cache_usage_perc=usage, num_requests_waiting=3)
            await client.publish(kv_metrics_subject(namespace, uid, "w"), data)
            await client.flush()

        async def known() -> bool:
            await says(0.25)
            return feed.load_of(worker) == Load(0.25, 3)

        await eventually(known, "the load is known")
        await says(0.9, namespace="other")
        await says(0.9, uid="uid-2")

        async def newer() -> bool:
            await says(0.5)
            return feed.load_of(worker) == Load(0.5, 3)

        await eventually(newer, "a newer load replaces it, those of other services do not")
        clock.now_s += KV_METRICS_STALE_SECONDS + 0.1
        assert feed.load_of(worker) == UNKNOWN_LOAD
        await client.close()


async def test_an_older_message_of_the_same_instance_changes_nothing_a_new_instance_does() -> None:
    clock = Clock()
    feed = KvMetricsFeed(Settings(service="chat"), clock=clock)
    worker = Worker(W, "w", "http://w", Role.DECODE)
    feed.take(message(sequence=5, num_requests_waiting=5))
    feed.take(message(sequence=4, num_requests_waiting=4))
    feed.take(b"nonsense")
    assert feed.load_of(worker).waiting == 5
    feed.take(message(instance="i2", sequence=1, num_requests_waiting=1))
    assert feed.load_of(worker).waiting == 1


async def test_nats_may_come_late_die_and_come_back() -> None:
    worker = Worker(W, "w", "http://w", Role.DECODE)
    with running_nats() as server:
        server.kill()
        async with metrics_feed(server, Clock()) as feed:
            for round_number in range(2):
                await asyncio.to_thread(server.start)
                client = await nats.connect(server.url, user=USER, password=PASSWORD)

                async def known(client: Any = client, waiting: int = round_number + 1) -> bool:
                    data = message(instance=f"i{waiting}", sequence=waiting, num_requests_waiting=waiting)
                    await client.publish(kv_metrics_subject("ns", "uid-1", "w"), data)
                    await client.flush()
                    return feed.load_of(worker).waiting == waiting

                await eventually(known, f"metrics arrive in round {round_number}")
                await client.close()
                server.kill()
