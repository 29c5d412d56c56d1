"""The manager's links to instances that end them at any moment, refuse them, or leave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from pointsman.workers.elastic.manager.links import Links
from pointsman.workers.elastic.protocol import (
    LINK_PATH,
    MANAGER_SINCE,
    Broken,
    Dismiss,
    Done,
    Hello,
    Leaving,
    Release,
    decode_to_instance,
    encode,
)
from waiting import eventually

TOKEN = "a-token-of-the-tests"
HELLO = Hello("g-0", "boot", "127.0.0.1:1", 100, {"left over": 3})


class Heard:
    """What the links tell."""

    def __init__(self) -> None:
        self.joins: list[str] = []
        self.losses: list[str] = []
        self.leaving: list[str] = []

    def joined(self, hello: Hello) -> None:
        self.joins.append(hello.name)

    def left(self, name: str) -> None:
        self.losses.append(name)

    def answered(self, name: str, answer: Done | Broken) -> None:
        raise AssertionError("nothing was asked")

    def leaves(self, name: str) -> None:
        self.leaving.append(name)


@asynccontextmanager
async def instance(
    serve: Callable[[web.WebSocketResponse, int], object], token: str = TOKEN
) -> AsyncIterator[tuple[str, list[str]]]:
    """A server; ``serve`` gets the number of the link. Yields its URL and the header of each link."""
    sinces: list[str] = []

    async def link(request: web.Request) -> web.StreamResponse:
        if request.headers["Authorization"] != f"Bearer {token}":
            return web.Response(status=401)
        sinces.append(request.headers[MANAGER_SINCE])
        response = web.WebSocketResponse()
        await response.prepare(request)
        found = serve(response, len(sinces))
        assert asyncio.iscoroutine(found)
        await found
        return response

    app = web.Application()
    app.router.add_get(LINK_PATH, link)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}", sinces
    finally:
        await runner.cleanup()


@pytest.fixture
async def linked() -> AsyncIterator[tuple[Links, Heard]]:
    """Links that tell what they hear."""
    heard = Heard()
    async with aiohttp.ClientSession() as session:
        links = Links(session, TOKEN, heard)
        yield links, heard
        await links.close()


@pytest.mark.parametrize(
    "first", [b"", b"\xc1 is no MessagePack", encode(Release(("r",)))], ids=["close", "junk", "odd"]
)
async def test_a_link_that_ends_before_hello_is_made_again(linked: tuple[Links, Heard], first: bytes) -> None:
    links, heard = linked
    told: list[object] = []

    async def serve(link: web.WebSocketResponse, number: int) -> None:
        if number == 1:
            if first:
                await link.send_bytes(first)
            await link.close()
            return
        await link.send_bytes(encode(HELLO))
        async for message in link:
            told.append(decode_to_instance(message.data))

    async with instance(serve) as (url, sinces):
        links.look([url])
        await eventually(lambda: heard.joins == ["g-0"], "the instance has joined")
        await eventually(lambda: told == [Release(("left over",))], "what another manager left there is freed")
        assert links.linked == {url}
        assert sinces[0] == sinces[1], "it is the same manager"


async def test_an_instance_that_leaves_is_heard_of_and_dismissed_and_then_it_is_gone(
    linked: tuple[Links, Heard],
) -> None:
    links, heard = linked

    async def serve(link: web.WebSocketResponse, number: int) -> None:
        await link.send_bytes(encode(HELLO))
        await link.send_bytes(encode(Leaving()))
        async for message in link:
            if decode_to_instance(message.data) == Dismiss():
                await link.close()

    async with instance(serve) as (url, _):
        links.look([url])
        await eventually(lambda: heard.leaving == ["g-0"], "it leaves")
        links.tell("g-0", Dismiss())
        await eventually(lambda: heard.losses == ["g-0"], "it is gone")
        links.look([])


async def test_an_instance_that_is_not_wanted_any_more_is_let_go(linked: tuple[Links, Heard]) -> None:
    links, heard = linked

    async def serve(link: web.WebSocketResponse, _: int) -> None:
        await link.send_bytes(encode(HELLO))
        async for _message in link:
            pass

    async with instance(serve) as (url, _sinces):
        links.look([url])
        await eventually(lambda: heard.joins == ["g-0"], "it has joined")
        links.look([])
        await eventually(lambda: heard.losses == ["g-0"] and not links.linked, "it is let go")


@pytest.mark.parametrize("token", ["new", "old", "new,old"])
async def test_a_manager_that_has_both_tokens_links_an_instance_that_has_one_of_them(token: str) -> None:
    """While the control token is rotated, and with a process of a version that knows of no rotation."""
    heard = Heard()

    async def serve(link: web.WebSocketResponse, _: int) -> None:
        await link.send_bytes(encode(HELLO))
        async for _message in link:
            pass

    async with aiohttp.ClientSession() as session, instance(serve, token) as (url, _):
        links = Links(session, "new,old", heard)
        links.look([url])
        await eventually(lambda: links.linked == {url}, "the instance is linked")
        await links.close()
    assert heard.joins == ["g-0"]
