"""The parts of aiohttp's server that the gateway changes."""

import asyncio

import aiohttp
from aiohttp import web

from pointsman.gateway.errors import GatewayError
from pointsman.gateway.http_protocol import GatewayRunner


async def test_open_requests_get_the_time_that_is_set_last() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return web.Response()

    def respond(_: GatewayError, __: web.BaseRequest) -> web.Response:
        raise AssertionError("no request is refused")

    app = web.Application()
    app.router.add_get("/", wait)
    runner = GatewayRunner(app, respond=respond, max_header_kib=64, shutdown_timeout=3600)
    assert hasattr(runner, "_shutdown_timeout"), "aiohttp has another name for it"
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession() as session:
        asked = asyncio.create_task(session.get(f"http://{host}:{port}/"))
        await begun.wait()
        runner.shutdown_within(0.05)
        async with asyncio.timeout(30):
            await runner.cleanup()
        assert ended.is_set()
        await asyncio.gather(asked, return_exceptions=True)
