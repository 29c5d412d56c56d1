"""KV metrics over a real NATS: that they always come back, and what two gateways make of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import nats
from pydantic import SecretStr

from fixtures.nats_server import PASSWORD, USER, NatsServer, running_nats
from pointsman.api.protocol.kv import KvMetrics
from pointsman.api.protocol.names import Role, kv_metrics_subject
from pointsman.gateway.kv_metrics import KvMetricsFeed
from pointsman.gateway.settings import Settings
from pointsman.gateway.types import Worker, WorkerKey
from pointsman.process.ending import end
from waiting import eventually

WORKER = Worker(WorkerKey("w"), "w", "http://w", Role.DECODE)


@asynccontextmanager
async def metrics_feed(url: str) -> AsyncIterator[KvMetricsFeed]:
    """A running feed of service ``uid-1`` in namespace ``ns``."""
    settings = Settings(namespace="ns", service="chat", nats_url=url, nats_user=USER, nats_password=SecretStr(PASSWORD))
    feed = KvMetricsFeed(settings, clock=lambda: 0.0)

    async def uid() -> str:
        return "uid-1"

    running = asyncio.create_task(feed.run(uid))
    try:
        yield feed
    finally:
        await end((running,))


def message(worker: str = "w", **values: Any) -> bytes:
    return KvMetrics(**({"worker": worker, "instance": "i1", "sequence": 1} | values)).wire().encode()


async def test_the_metrics_come_back_after_nats_took_another_password_for_a_while() -> None:
    with running_nats() as server:
        async with metrics_feed(server.url) as feed:
            await eventually(known(feed, server, 1), "metrics arrive")
            server.change_password("another")
            await eventually(known(feed, server, 2, password="another", arrives=False), "the server took it")
            server.change_password(PASSWORD)
            await eventually(known(feed, server, 3), "metrics arrive again")


async def test_the_metrics_come_back_after_an_error_on_which_the_client_closes_for_good() -> None:
    """nats-py closes without reconnecting on most errors that the server sends, e.g. credentials that expired."""
    with running_nats() as server:
        async with relay_to(server) as relay, metrics_feed(relay.url) as feed:
            await eventually(known(feed, server, 1), "metrics arrive")
            relay.send_to_clients(b"-ERR 'User Authentication Expired'\r\n")
            await eventually(known(feed, server, 2), "metrics arrive again")


def known(
    feed: KvMetricsFeed, server: NatsServer, waiting: int, *, password: str = PASSWORD,
    arrives: bool = True,
) -> Callable[[], Awaitable[bool]]:  # fmt: skip
    """A condition: another client can publish a load, and (``arrives``) the feed has it."""

    async def publish() -> bool:
        try:  # a server that reads its file again closes connections, also one that was just let in
            client = await nats.connect(server.url, user=USER, password=password, allow_reconnect=False)
            try:
                data = message(instance=f"i{waiting}", num_requests_waiting=waiting)
                await client.publish(kv_metrics_subject("ns", "uid-1", "w"), data)
                await client.flush(timeout=2)
            finally:
                await client.close()
        except (nats.errors.Error, OSError):
            return False
        return not arrives or feed.load_of(WORKER).waiting == waiting

    return publish


class Relay:
    """Passes bytes between clients and a server, and can say something to the clients in the server's name."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._clients: set[asyncio.StreamWriter] = set()
        self.url = ""

    def send_to_clients(self, data: bytes) -> None:
        """To those connected now."""
        for client in self._clients:
            client.write(data)

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._server.url.removeprefix("nats://").split(":")
        server_reader, server_writer = await asyncio.open_connection(host, int(port))
        self._clients.add(writer)
        await asyncio.gather(self._pass(reader, server_writer), self._pass(server_reader, writer))
        self._clients.discard(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


@asynccontextmanager
async def relay_to(server: NatsServer) -> AsyncIterator[Relay]:
    """A relay that listens, until all its clients have left."""
    relay = Relay(server)
    listening = await asyncio.start_server(relay.relay, "127.0.0.1", 0)
    relay.url = f"nats://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield relay
        await eventually(lambda: not relay._clients, "the clients have left")
