"""A server of images on loopback that also does what hostile and broken servers do."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import web

from fixtures.images import png, png_bomb, png_header

CAT = png(600, 600, seed=1)  # 484 tokens
BOMB = png_bomb(9000, 9000)  # made here: on a busy computer it takes longer than a gateway waits
PIECE = b"x" * 2**16


@dataclass(eq=False)
class ImageServer:
    """``requests`` counts by path, ``sent_bytes`` of endless answers; ``left`` is set when a client gives one up."""

    url: str = ""
    requests: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def application(self) -> web.Application:
        """Its HTTP application."""
        app = web.Application(middlewares=[self._counted])
        app.router.add_get("/cat.png", self._cat)
        app.router.add_get("/image/{seed}", self._image)
        app.router.add_get("/to", self._redirect)
        app.router.add_get("/again/{left}", self._again)
        app.router.add_get("/drip", self._drip)
        app.router.add_get("/endless", self._endless)
        app.router.add_get("/announced", self._announced)
        app.router.add_get("/bomb", self._bomb)
        app.router.add_get("/claim", self._claim)
        app.router.add_get("/page", self._page)
        app.router.add_get("/silent", self._silent)
        return app

    @web.middleware
    async def _counted(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.requests[request.path] += 1
        return await handler(request)

    async def _cat(self, _request: web.Request) -> web.Response:
        return web.Response(body=CAT, content_type="text/html")  # what the server calls it does not matter

    async def _image(self, request: web.Request) -> web.Response:
        return web.Response(body=png(600, 600, seed=int(request.match_info["seed"])), content_type="image/png")

    async def _redirect(self, request: web.Request) -> web.Response:
        return web.Response(status=int(request.query.get("status", 302)), headers={"Location": request.query["url"]})

    async def _again(self, request: web.Request) -> web.Response:
        left = int(request.match_info["left"])
        return web.Response(status=307, headers={"Location": f"/again/{left - 1}" if left else "/cat.png"})

    async def _drip(self, request: web.Request) -> web.StreamResponse:
        """A byte now and then: never silent, never done."""
        response = web.StreamResponse(headers={"Content-Type": "image/png"})
        await response.prepare(request)
        with suppress(ConnectionError):
            for byte in CAT:
                await response.write(bytes((byte,)))
                await asyncio.sleep(0.05)
        return response

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        """No length, and no end."""
        response = web.StreamResponse(headers={"Content-Type": "image/png"})
        await response.prepare(request)
        try:
            await response.write(CAT)
            while True:
                await response.write(PIECE)
                self.sent_bytes += len(PIECE)
        except ConnectionError:
            return response
        finally:
            self.left.set()

    async def _announced(self, request: web.Request) -> web.StreamResponse:
        """A length far beyond the limit, and nothing of it."""
        response = web.StreamResponse(headers={"Content-Length": str(2**40), "Content-Type": "image/png"})
        await response.prepare(request)
        await asyncio.sleep(60)
        return response

    async def _bomb(self, _request: web.Request) -> web.Response:
        return web.Response(body=BOMB, content_type="image/png")

    async def _claim(self, _request: web.Request) -> web.Response:
        return web.Response(body=png_header(2**31 - 1, 2**31 - 1), content_type="image/png")

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(
            text="<html>secret of the server</html>", content_type="image/png",
            status=int(request.query.get("status", 200)),
        )  # fmt: skip

    async def _silent(self, _request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()


@asynccontextmanager
async def image_server(host: str = "127.0.0.1") -> AsyncIterator[ImageServer]:
    """One on a free port of ``host``."""
    server = ImageServer()
    runner = web.AppRunner(server.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    server.url = f"http://{host}:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
