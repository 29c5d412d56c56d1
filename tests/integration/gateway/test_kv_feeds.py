"""The two feeds of the router over real transports: KV events from workers' streams, KV metrics over NATS."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiohttp
import nats
import pytest
from aiohttp import web
from pydantic import SecretStr

from fixtures.asgi_over_http import Server, served
from fixtures.kv_event_publisher import BLOCK, EventPublisher, busy_hours, prompt_tokens, removed, stored
from fixtures.kv_feed import kv_feed
from fixtures.nats_server import PASSWORD, USER, NatsServer, running_nats
from fixtures.workers import settings, worker
from pointsman.api.protocol import kv_feed as wire
from pointsman.api.protocol.control import KV_EVENTS_PATH
from pointsman.api.protocol.kv import KV_METRICS_STALE_SECONDS, KvMetrics, kv_events_topic
from pointsman.api.protocol.names import Role, kv_metrics_subject
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.kv_events import KvEventFeed
from pointsman.gateway.kv_metrics import KvMetricsFeed
from pointsman.gateway.settings import Settings
from pointsman.gateway.types import UNKNOWN_LOAD, Discovered, Load, Worker, WorkerKey
from pointsman.process.ending import end
from pointsman.serving.block_hashes import chained_block_hashes
from pointsman.workers.engine import Message, Receive, Scope, Send
from pointsman.workers.event_sockets import kv_event_endpoints
from pointsman.workers.sidecar import Sidecar
from waiting import eventually

W = WorkerKey("w")


class BusyWorker:
    """The code beside an engine, on a real port, with an engine's publisher of KV events beside it."""

    def __init__(self, publisher: EventPublisher, server: Server, sidecar: Sidecar) -> None:
        self.publisher = publisher
        self.server = server
        self.sidecar = sidecar
        self.refusing = False  # connections are accepted and closed
        self.begun = 0  # streams whose first frame, which announces a snapshot, was sent
        self.going_on = asyncio.Event()  # clear: of a stream only the first frame is sent
        self.going_on.set()

    def as_worker(self, role: Role = Role.DECODE) -> Worker:
        """As discovery finds it."""
        return Worker(W, "w", self.server.url, role)


@asynccontextmanager
async def busy_worker(*, buffer_batches: int = 100) -> AsyncIterator[BusyWorker]:
    own = settings("w", pod_uid=uuid4().hex, block_size=BLOCK)
    publisher = EventPublisher(*kv_event_endpoints(own), kv_events_topic("w"), buffer_batches=buffer_batches)
    try:
        async with worker(own) as running:

            async def door(scope: Scope, receive: Receive, send: Send) -> None:
                if busy.refusing:
                    raise ConnectionError
                pieces = 0

                async def send_slowly(message: Message) -> None:
                    nonlocal pieces
                    pieces += message["type"] == "http.response.body"
                    if pieces > 1:
                        await busy.going_on.wait()
                    await send(message)
                    busy.begun += pieces == 1

                await running.app(scope, receive, send_slowly)

            async with served(door) as server:
                busy = BusyWorker(publisher, server, running.sidecar)
                await eventually(publisher.subscribed.is_set, "the worker follows its engine")
                yield busy
    finally:
        publisher.close()


@asynccontextmanager
async def feed_served(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """The address of a worker that has only this stream of KV events."""
    application = web.Application()
    application.router.add_get(KV_EVENTS_PATH, answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


class Gateway:
    """Of a gateway, what knows the workers' caches."""

    def __init__(self, fleet: Fleet, feed: KvEventFeed) -> None:
        self.fleet = fleet
        self.feed = feed

    def hits(self, prompt: int, blocks: int, *, salt: str | None = None, adapter: str | None = None) -> int:
        """Blocks of a prompt that the worker is known to hold."""
        chain = chained_block_hashes(prompt_tokens(prompt, blocks), BLOCK, salt=salt, adapter=adapter)
        return self.fleet.index.matches(chain).get(W, 0)

    @property
    def blocks(self) -> int:
        return self.fleet.index.blocks_held(W)

    async def has(self, blocks: int) -> None:
        await eventually(lambda: self.blocks == blocks, f"{blocks} blocks are known")

    async def knows(self, prompt: int, blocks: int) -> None:
        await eventually(lambda: self.hits(prompt, blocks) == blocks, f"{blocks} blocks of prompt {prompt} are known")


@asynccontextmanager
async def gateway(*workers: Worker, **changes: Any) -> AsyncIterator[Gateway]:
    async with kv_feed(*workers, **{"forget_seconds": 60.0} | changes) as (fleet, feed):
        yield Gateway(fleet, feed)


async def test_a_gateway_that_comes_late_knows_blocks_older_than_any_buffer() -> None:
    """Shared system prompts are stored once, hours ago: no replay has them."""
    async with busy_worker() as busy:
        for events in busy_hours(blocks=2_000, batches=1_000):
            busy.publisher.publish(*events)
        busy.publisher.flush()
        async with gateway(busy.as_worker()) as first, gateway(busy.as_worker()) as second:
            for each in (first, second):
                await each.knows(0, 100)
                await each.has(2_000)


async def test_what_happens_from_then_on_is_followed() -> None:
    async with busy_worker() as busy, gateway(busy.as_worker()) as each:
        busy.publisher.publish(stored(1, 0, 4))
        await each.knows(1, 4)
        busy.publisher.publish(removed(1, 2, 2), stored(2, 0, 1))
        await each.knows(2, 1)
        assert each.hits(1, 4) == 2
        busy.publisher.publish({"type": "AllBlocksCleared"}, stored(3, 0, 1))
        await each.knows(3, 1)
        assert each.hits(1, 4) == 0


async def test_tenants_and_adapters_are_routed_by_their_own_prefixes() -> None:
    async with busy_worker() as busy, gateway(busy.as_worker()) as each:
        busy.publisher.publish(stored(1, 0, 4, extra_keys=[["tenant"], None, None, None]))
        busy.publisher.publish(stored(2, 0, 1, lora_id=1, lora_name="french", extra_keys=[["french"]]))
        busy.publisher.publish(stored(3, 0, 1))
        await each.knows(3, 1)
        assert (each.hits(1, 4, salt="tenant"), each.hits(1, 4, salt="other"), each.hits(1, 4)) == (4, 0, 0)
        assert (each.hits(2, 1, adapter="french"), each.hits(2, 1, salt="french"), each.hits(2, 1)) == (1, 0, 0)


async def test_a_cut_stream_is_answered_by_a_new_snapshot_and_the_old_content_stays_meanwhile() -> None:
    async with busy_worker() as busy, gateway(busy.as_worker()) as each:
        for number in range(3):
            busy.publisher.publish(stored(number, 0, 2))
            await each.knows(number, 2)
            busy.server.cut()
            assert each.hits(number, 2) == 2
        busy.publisher.publish(removed(0, 0, 2), stored(9, 0, 1))
        await each.knows(9, 1)
        assert each.hits(0, 2) == 0
        assert busy.server.paths.count(KV_EVENTS_PATH) >= 2


async def test_a_worker_whose_feed_is_gone_for_a_while_is_unknown_and_known_when_it_is_back() -> None:
    async with busy_worker() as busy, gateway(busy.as_worker(), forget_seconds=0.05) as each:
        busy.publisher.publish(stored(1, 0, 2))
        await each.knows(1, 2)
        busy.refusing = True
        busy.server.cut()
        await eventually(lambda: each.hits(1, 2) == 0, "the worker is unknown")
        busy.refusing = False
        await each.knows(1, 2)


async def test_a_snapshot_may_take_longer_than_a_worker_may_be_without_a_stream() -> None:
    forget_s = 2.0  # the next stream begins long before, also on a busy computer
    async with busy_worker() as busy, gateway(busy.as_worker(), forget_seconds=forget_s) as each:
        busy.publisher.publish(stored(1, 0, 2))
        await each.knows(1, 2)
        busy.going_on.clear()
        begun = busy.begun
        cut_s = asyncio.get_running_loop().time()
        busy.server.cut()
        await eventually(lambda: busy.begun > begun, "a snapshot is on its way")
        await eventually(lambda: asyncio.get_running_loop().time() > cut_s + 1.5 * forget_s, "it takes long")
        assert each.hits(1, 2) == 2
        busy.publisher.publish(stored(2, 0, 1))
        busy.going_on.set()
        await each.knows(2, 1)


@pytest.mark.parametrize("streams", ["one", "many"])
async def test_a_worker_that_announces_snapshots_for_ever_is_unknown(streams: str) -> None:
    async def announce(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        snapshot = wire.encode_frame(wire.Snapshot(1, "instance", BLOCK, 0))
        await response.write(snapshot)
        if not announced:
            await response.write(wire.encode_frame(wire.Blocks([wire.Run(None, wire.pack_hashes([1, 2]))], True)))
            await known.wait()
        announced.append(request)
        while streams == "one":
            await asyncio.sleep(0.02)
            await response.write(snapshot)
        return response

    announced: list[web.Request] = []
    known = asyncio.Event()
    async with feed_served(announce) as url:
        one = Worker(W, "w", url, Role.DECODE)
        async with gateway(one, forget_seconds=0.1, snapshot_seconds=0.5) as each:
            await each.has(2)
            known.set()
            await eventually(lambda: each.blocks == 0, "what it had is unknown")
            assert W not in each.feed.known


async def test_a_worker_that_becomes_a_decode_worker_is_known_and_one_that_no_longer_is_is_not() -> None:
    async with busy_worker() as busy, gateway(busy.as_worker(Role.PREFILL)) as each:
        busy.publisher.publish(stored(1, 0, 2))
        busy.publisher.flush()
        assert KV_EVENTS_PATH not in busy.server.paths
        each.fleet.apply(Discovered((busy.as_worker(),)))
        await each.knows(1, 2)
        each.fleet.apply(Discovered((busy.as_worker(Role.PREFILL),)))
        assert each.hits(1, 2) == 0
        each.fleet.apply(Discovered((busy.as_worker(),)))
        await each.knows(1, 2)
        each.fleet.apply(Discovered(()))
        assert (each.hits(1, 2), each.blocks) == (0, 0)


async def test_without_the_services_token_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with busy_worker() as busy, gateway(busy.as_worker(), token="another-token-of-the-tests") as each:
        busy.publisher.publish(stored(1, 0, 2))
        await eventually(lambda: "kv events interrupted" in caplog.messages, "the refusal is logged")
        assert each.hits(1, 2) == 0
        async with aiohttp.ClientSession() as stranger, stranger.get(busy.server.url + KV_EVENTS_PATH) as answer:
            assert answer.status == 401


async def test_the_stream_of_a_client_that_left_is_not_kept() -> None:
    async with busy_worker() as busy:
        async with gateway(busy.as_worker()) as each:
            busy.publisher.publish(stored(1, 0, 2))
            await each.knows(1, 2)
            assert len(busy.sidecar.kv_feed._subscribers) == 1
        await eventually(lambda: not busy.sidecar.kv_feed._subscribers, "the worker has noticed")


async def test_a_worker_of_an_older_version_is_used_without_its_cache(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def old(request: web.Request) -> web.Response:
        return web.json_response({"reason": "NoSuchPath", "message": request.path}, status=404)

    async with feed_served(old) as url, gateway(Worker(W, "w", url, Role.DECODE)):
        await eventually(lambda: "kv events not supported" in caplog.messages, "it is said once")
        assert caplog.messages.count("kv events not supported") == 1


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
