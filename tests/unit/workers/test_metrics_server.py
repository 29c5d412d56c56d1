"""The metrics of a worker on a port of their own, over real HTTP."""

from typing import Any

import aiohttp

from fixtures.workers import settings, worker
from pointsman.workers.engine import Receive, Scope, Send
from pointsman.workers.metrics_server import MetricsServer

ADDRESS, PORT = "127.88.13.1", 8090


async def page(scope: Scope, receive: Receive, send: Send) -> None:
    """An engine's server that says what it was asked."""
    headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
    told = f"{scope['method']} {scope['path']}?{scope['query_string'].decode()} {headers.get('accept')}"
    answer = [(b"content-type", b"text/plain; version=0.0.4"), (b"content-length", b"7")]
    await send({"type": "http.response.start", "status": 200, "headers": answer})
    await send({"type": "http.response.body", "body": told.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b"\n"})


async def test_it_serves_the_engines_page_and_nothing_else() -> None:
    server = MetricsServer(page, None, ADDRESS, PORT)
    assert await server.start()
    try:
        async with aiohttp.ClientSession(f"http://{ADDRESS}:{PORT}") as session:
            async with session.get("/metrics?name[]=up", headers={"Accept": "text/plain"}) as answer:
                assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"
                assert await answer.text() == "GET /metrics?name[]=up text/plain\n"
            for method, path in (("POST", "/v1/completions"), ("POST", "/metrics"), ("GET", "/pointsman/v1/state")):
                async with session.request(method, path) as refused:
                    assert refused.status in (404, 405)
    finally:
        await server.stop()


async def test_a_worker_whose_port_is_taken_serves_without_it_and_says_so() -> None:
    own: dict[str, Any] = {"bind_host": ADDRESS, "metrics_port": PORT + 1}
    async with worker(settings("worker-0", **own)) as first, worker(settings("worker-1", **own)) as second:
        assert (first.state.metrics_port, second.state.metrics_port) == (PORT + 1, None)
