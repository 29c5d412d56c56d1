"""A NATS server whose certificate is of a private authority, which workers, gateways and operator are given."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import SecretStr

from fixtures.asgi_engine import Fabric
from fixtures.nats_server import PASSWORD, USER, NatsServer
from fixtures.workers import settings, worker
from pointsman.api.protocol.names import Role
from pointsman.gateway.kv_metrics import KvMetricsFeed
from pointsman.gateway.settings import Settings
from pointsman.gateway.types import Worker, WorkerKey
from pointsman.local.certificates import Authority
from pointsman.operator.core.nats_logins import Login
from pointsman.operator.errors import StreamNotDeleted
from pointsman.operator.streams import PrefillStreams
from pointsman.process.ending import end
from waiting import eventually

NAMESPACE: Final = "tests"
WORKER: Final = Worker(WorkerKey("decode-0"), "decode-0", "http://w", Role.DECODE)


class TlsServer(NatsServer):
    """One that asks for TLS."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder / "authority")
        super().__init__(folder)

    @property
    def url(self) -> str:
        return super().url.replace("nats://", "tls://")

    @property
    def ca_certificate(self) -> str:
        """PEM."""
        return self._authority.files.certificate.read_text()

    def _configure(self, password: str) -> None:
        super()._configure(password)
        own = self._authority.server("nats", (self._host,))
        with self._configuration.open("a") as file:
            file.write(f'tls {{ cert_file: "{own.certificate}", key_file: "{own.key}" }}\n')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    running = TlsServer(tmp_path_factory.mktemp("nats-tls"))
    running.start()
    yield running
    running.kill()


def of_service(server: TlsServer, **changes: Any) -> dict[str, Any]:
    login = {"nats_url": server.url, "nats_user": USER, "nats_password": PASSWORD}
    return {"namespace": NAMESPACE, "service_uid": "tls", **login, **changes}


async def test_a_worker_that_is_given_the_authority_connects(server: TlsServer) -> None:
    own = of_service(server, nats_ca_certificate=server.ca_certificate)
    async with worker(settings("decode-0", **own), Fabric(), Role.DECODE) as connected:
        assert connected.state.nats_connected


async def test_a_worker_that_is_not_given_it_does_not_connect_and_serves_alone(server: TlsServer) -> None:
    own = settings("decode-0", **of_service(server))
    async with worker(own, Fabric(), Role.DECODE, wait_for_nats=False) as alone:
        answer = await alone.call({"prompt": list(range(1, 40))}).whole()
        assert answer.headers["x-pointsman-prefill-reason"] == "queue-unknown"
        assert not alone.state.nats_connected


@pytest.mark.parametrize("certificate", ["no certificate", "Prüfstelle"])
async def test_a_worker_whose_authority_cannot_be_read_logs_it_and_serves_alone(
    server: TlsServer, caplog: pytest.LogCaptureFixture, certificate: str
) -> None:
    own = settings("decode-0", **of_service(server, nats_ca_certificate=certificate))
    async with worker(own, Fabric(), Role.DECODE, wait_for_nats=False) as alone:
        await eventually(lambda: "certificate of the authority of nats not readable" in caplog.text, "the log has it")
        answer = await alone.call({"prompt": list(range(1, 40))}).whole()
        assert answer.headers["x-pointsman-prefill-reason"] == "queue-unknown"


async def test_a_gateway_that_is_given_the_authority_hears_the_workers(server: TlsServer) -> None:
    own = Settings(
        namespace=NAMESPACE,
        service="chat",
        nats_url=server.url,
        nats_user=USER,
        nats_password=SecretStr(PASSWORD),
        nats_ca_certificate=server.ca_certificate,
    )
    feed = KvMetricsFeed(own, clock=time.monotonic)

    async def uid() -> str:
        return "tls-gateway"

    following = asyncio.create_task(feed.run(uid))
    published = of_service(server, nats_ca_certificate=server.ca_certificate, service_uid="tls-gateway")
    try:
        async with worker(settings("decode-0", **published), Fabric(), Role.DECODE):
            await eventually(lambda: feed.newest_of(WORKER), "the gateway has the worker's metrics")
    finally:
        await end([following])


@pytest.mark.parametrize("certificate", ["no certificate", "Prüfstelle"])
async def test_a_gateway_whose_authority_cannot_be_read_logs_it_and_tries_again(
    caplog: pytest.LogCaptureFixture, certificate: str
) -> None:
    own = Settings(namespace=NAMESPACE, service="chat", nats_url="tls://127.0.0.1:1", nats_ca_certificate=certificate)

    async def uid() -> str:
        return "tls-gateway"

    following = asyncio.create_task(KvMetricsFeed(own, clock=time.monotonic).run(uid))
    try:
        await eventually(lambda: "nats not reachable" in caplog.messages, "the log has it")
        assert not following.done()
    finally:
        await end([following])
    assert any("cadata" in record.__dict__.get("why", "") for record in caplog.records)


async def test_the_operator_that_is_given_the_authority_deletes_streams(server: TlsServer) -> None:
    login = Login(USER, PASSWORD)
    own = of_service(server, nats_ca_certificate=server.ca_certificate, service_uid="gone")
    async with worker(settings("decode-0", **own), Fabric(), Role.DECODE):
        pass
    with pytest.raises(StreamNotDeleted):
        await PrefillStreams(server.url, login).delete(NAMESPACE, "gone")
    await PrefillStreams(server.url, login, server.ca_certificate).delete(NAMESPACE, "gone")
