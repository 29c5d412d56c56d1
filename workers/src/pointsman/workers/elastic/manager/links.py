"""Connections to a group's instances, each kept as long as its URL is known."""

import asyncio
import logging
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, Protocol

import aiohttp
import msgspec

from pointsman.api.protocol.control import accepted_tokens
from pointsman.workers.elastic.protocol import (
    HEARTBEAT_SECONDS,
    LINK_PATH,
    MANAGER_SINCE,
    Broken,
    Done,
    Hello,
    Leaving,
    Release,
    ToInstance,
    decode_from_instance,
    encode,
)

log = logging.getLogger(__name__)

CONNECT_S: Final = 3.0
RETRY_S: Final = 0.2


class Listener(Protocol):
    """Hears what happens on the links, in the event loop."""

    def joined(self, hello: Hello) -> None:
        """An instance is there, and holds nothing any more."""

    def left(self, name: str) -> None:
        """It is gone."""

    def answered(self, name: str, answer: Done | Broken) -> None:
        """It has done what it was told, or could not."""

    def leaves(self, name: str) -> None:
        """It is to stop, and waits until others have what it holds."""


class Links:
    """Connects to instances and tells ``listener`` of them; runs in the event loop that makes it."""

    def __init__(self, session: aiohttp.ClientSession, token: str, listener: Listener) -> None:
        self._session = session
        self._tokens = accepted_tokens(token)
        # Of two managers, one of which does not know yet that it is replaced, an instance obeys the newer.
        self._since = repr(time.time())
        self._listener = listener
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._outgoing: dict[str, asyncio.Queue[ToInstance]] = {}
        self._urls: dict[str, str] = {}  # of linked instances

    @property
    def linked(self) -> set[str]:
        """URLs of the instances that are linked now."""
        return set(self._urls.values())

    def look(self, urls: Iterable[str]) -> None:
        """Keep links to the instances at these (http://host:port) and to no others."""
        wanted = set(urls)
        for gone in self._tasks.keys() - wanted:
            self._tasks.pop(gone).cancel()
        for new in [url for url in wanted if url not in self._tasks or self._tasks[url].done()]:
            self._tasks[new] = asyncio.create_task(self._keep(new), name=f"link to {new}")

    def tell(self, name: str, what: ToInstance) -> None:
        """Have an instance do it after all that it was told before; one that is gone is not told."""
        if name in self._outgoing:
            self._outgoing[name].put_nowait(what)

    async def close(self) -> None:
        """End all links."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    async def _keep(self, url: str) -> None:
        said = ""
        while True:
            try:
                await self._follow(url)
                why = "the instance has closed the connection"
            except (aiohttp.ClientError, TimeoutError, OSError, TypeError, msgspec.DecodeError) as error:
                # TypeError: aiohttp's for a message of another type than binary, as the one that ends a link.
                why = str(error) or type(error).__name__
            if why != said:
                log.warning("no link to an instance", extra={"url": url, "why": why})
                said = why
            await asyncio.sleep(RETRY_S)

    async def _follow(self, url: str) -> None:
        async with asyncio.timeout(CONNECT_S) as connecting, await self._connect(url) as link:
            hello = decode_from_instance(await link.receive_bytes())
            if not isinstance(hello, Hello):
                raise aiohttp.ClientError(f"the first message is {type(hello).__name__}, not Hello")
            if hello.name in self._outgoing:
                raise aiohttp.ClientError(f"an instance named {hello.name} is linked already")
            connecting.reschedule(None)
            outgoing: asyncio.Queue[ToInstance] = asyncio.Queue()
            if hello.held:
                outgoing.put_nowait(Release(tuple(hello.held)))
            sending = asyncio.create_task(self._send(link, outgoing))
            self._outgoing[hello.name] = outgoing
            self._urls[hello.name] = url
            log.info("instance joined", extra={"instance": hello.name, "url": url})
            self._listener.joined(hello)
            try:
                async for message in link:
                    if message.type is aiohttp.WSMsgType.BINARY:
                        answer = decode_from_instance(message.data)
                        if isinstance(answer, Leaving):
                            log.info("instance leaves", extra={"instance": hello.name})
                            self._listener.leaves(hello.name)
                        elif not isinstance(answer, Hello):
                            self._listener.answered(hello.name, answer)
            finally:
                sending.cancel()
                del self._outgoing[hello.name]
                del self._urls[hello.name]
                log.info("instance left", extra={"instance": hello.name, "url": url})
                self._listener.left(hello.name)

    async def _connect(self, url: str) -> aiohttp.ClientWebSocketResponse:
        """Connect with the first token that the instance accepts: one started before a rotation has only the old one.

        Raises WSServerHandshakeError if it accepts none, or another error of aiohttp.
        """
        *others, last = self._tokens
        for token in others:
            try:
                return await self._connect_with(url, token)
            except aiohttp.WSServerHandshakeError as error:
                if error.status != HTTPStatus.UNAUTHORIZED:
                    raise
        return await self._connect_with(url, last)

    async def _connect_with(self, url: str, token: str) -> aiohttp.ClientWebSocketResponse:
        return await self._session.ws_connect(
            f"{url}{LINK_PATH}",
            headers={"Authorization": f"Bearer {token}", MANAGER_SINCE: self._since},
            heartbeat=HEARTBEAT_SECONDS,
            max_msg_size=0,
        )

    @staticmethod
    async def _send(link: aiohttp.ClientWebSocketResponse, outgoing: "asyncio.Queue[ToInstance]") -> None:
        while True:
            await link.send_bytes(encode(await outgoing.get()))
