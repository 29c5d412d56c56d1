"""Where a gateway's metrics are read, over real HTTP: not by whoever sends requests to its port of clients."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from pointsman.gateway.metrics_server import MetricsServer

ADDRESS, PORT, OWN_PORT = "127.88.14.1", 8000, 8090
PAGE = b"pointsman_gateway_in_flight 3.0\n"


@asynccontextmanager
async def clients_port(server: MetricsServer) -> AsyncIterator[str]:
    """The address of a pod's port of clients."""
    app = web.Application()
    app.router.add_get("/metrics", server.on_clients_port)
    runner = web.AppRunner(app)
    async with server:
        await runner.setup()
        try:
            await web.TCPSite(runner, ADDRESS, PORT).start()
            yield f"http://{ADDRESS}:{PORT}"
        finally:
            await runner.cleanup()


def own_port() -> MetricsServer:
    return MetricsServer(lambda: PAGE, ADDRESS, OWN_PORT)


@pytest.mark.parametrize(
    "host", ["chat-gateway.models.svc:8000", "llm.example.com", "127.0.0.1:8000", "[::1]", "%", ""]
)
async def test_a_client_of_the_service_reads_no_metrics_and_is_sent_nowhere(host: str) -> None:
    async with (
        clients_port(own_port()) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/metrics", headers={"Host": host}, allow_redirects=False) as answer,
    ):
        assert answer.status == 404
        assert b"pointsman" not in await answer.read()
        assert ADDRESS not in str(answer.headers), "the address of a pod is nobody's business"


async def test_metrics_have_a_port_that_serves_nothing_else() -> None:
    async with clients_port(own_port()), aiohttp.ClientSession(f"http://{ADDRESS}:{OWN_PORT}") as session:
        async with session.get("/metrics") as answer:
            assert (answer.status, await answer.read()) == (200, PAGE)
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"
        for method, path in (("POST", "/metrics"), ("POST", "/v1/completions"), ("GET", "/pointsman/v1/endpoints")):
            async with session.request(method, path) as refused:
                assert refused.status in (404, 405)


async def test_a_reader_of_the_pod_itself_is_redirected_as_prometheus_and_an_earlier_planner_read_it() -> None:
    async with clients_port(own_port()) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/metrics", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (307, f"http://{ADDRESS}:{OWN_PORT}/metrics")
        async with session.get(f"{url}/metrics") as answer:
            assert await answer.read() == PAGE


async def test_if_their_port_is_taken_readers_of_the_pod_find_metrics_where_earlier_gateways_have_them() -> None:
    """On the network of a node somebody else may have the port: then requests are served all the same."""
    async with (
        MetricsServer(lambda: b"", ADDRESS, OWN_PORT),
        clients_port(own_port()) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"{url}/metrics") as answer:
            assert await answer.read() == PAGE
        async with session.get(f"{url}/metrics", headers={"Host": "llm.example.com"}) as answer:
            assert answer.status == 404, "a client of the Service"
            assert b"pointsman" not in await answer.read()
