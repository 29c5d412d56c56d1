"""Hosts of images: found by real DNS, from a real image server, beside name servers and image servers that hang."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from integration.gateway.image_server import CAT, ImageServer, image_server
from integration.gateway.name_server import NameServer, name_server
from pointsman.gateway.core.image_limits import ImageInvalid, ImageLimits, ImageRefusal
from pointsman.gateway.images.fetching import MAX_CONNECTIONS, ImageFetcher
from pointsman.gateway.off_loop import OffLoop
from waiting import eventually

LIMITS = ImageLimits(
    max_images=3,
    max_bytes=2**20,
    max_pixels=10**6,
    domains=(),
    fetch_timeout_seconds=60,
    max_redirects=1,
    max_body_bytes=2**21,
)
LOOPBACK = "127.0.0.1"


class Hosts:
    """A fetcher that asks ``names`` and connects to 127.0.0.1 only, where ``images`` is."""

    def __init__(self, names: NameServer, images: ImageServer, fetcher: ImageFetcher) -> None:
        self.names, self.images, self._fetcher = names, images, fetcher

    def fetch(self, host: str) -> asyncio.Task[bytes]:
        """Begin to fetch the cat from ``host``."""
        port = self.images.url.rpartition(":")[2]
        return asyncio.create_task(self._fetcher.fetch(f"http://{host}:{port}/cat.png", "param", lambda _bytes: None))


@asynccontextmanager
async def hosts(limits: ImageLimits = LIMITS, **known: tuple[str, ...]) -> AsyncIterator[Hosts]:
    async with AsyncExitStack() as stack:
        names = await stack.enter_async_context(name_server(**known))
        images = await stack.enter_async_context(image_server())
        off_loop = OffLoop()
        stack.callback(off_loop.close)
        fetcher = ImageFetcher(
            limits, off_loop, is_allowed=lambda address: address == LOOPBACK, name_servers=names.servers
        )
        stack.push_async_callback(fetcher.close)
        yield Hosts(names, images, fetcher)


async def refusal(fetching: asyncio.Task[bytes]) -> ImageRefusal:
    with pytest.raises(ImageInvalid) as refused:
        await fetching
    return refused.value.refusal


async def test_name_servers_that_never_answer_delay_no_other_image() -> None:
    """One client, and fewer requests than a gateway takes: 16 images of each would be enough."""
    async with hosts(cats=(LOOPBACK,)) as found:
        hanging = [found.fetch(f"a{number}{found.names.silent}") for number in range(2 * MAX_CONNECTIONS)]
        await eventually(lambda: len(set(found.names.asked)) == len(hanging), "all names are asked for")
        async with asyncio.timeout(LIMITS.fetch_timeout_seconds / 2):
            assert await found.fetch("cats.test") == CAT
        for fetching in hanging:
            fetching.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_host_is_reached_at_its_allowed_addresses_only() -> None:
    async with hosts(some=("10.0.0.1", LOOPBACK, "fd00::1"), none=("10.0.0.1", "fd00::1")) as found:
        assert await found.fetch("some.test") == CAT
        assert await refusal(found.fetch("none.test")) is ImageRefusal.ADDRESS
        assert found.images.requests["/cat.png"] == 1


async def test_a_host_that_does_not_exist_reads_like_one_inside() -> None:
    async with hosts() as found:
        assert await refusal(found.fetch("nobody.test")) is ImageRefusal.ADDRESS


async def test_a_name_that_is_not_answered_ends_with_the_time_of_the_fetch() -> None:
    async with hosts(replace(LIMITS, fetch_timeout_seconds=0.2)) as found:
        assert await refusal(found.fetch("a" + found.names.silent)) is ImageRefusal.TIMED_OUT


async def test_a_name_is_asked_again_for_the_next_fetch_and_its_new_address_is_checked() -> None:
    async with hosts(moves=(LOOPBACK,)) as found:
        assert await found.fetch("moves.test") == CAT
        found.names.hosts["moves.test"] = ("10.0.0.1",)
        assert await refusal(found.fetch("moves.test")) is ImageRefusal.ADDRESS
