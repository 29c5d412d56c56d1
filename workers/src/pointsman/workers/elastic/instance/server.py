"""What an instance serves: the link for its manager, and /health for the kubelet."""

import asyncio
import logging
import time
from contextlib import suppress
from typing import Final
from uuid import uuid4

import msgspec
from aiohttp import WSMsgType, web

from pointsman.api.protocol.control import authorized
from pointsman.workers.elastic.instance.computer import Computer
from pointsman.workers.elastic.protocol import (
    HEARTBEAT_SECONDS,
    LINK_PATH,
    MANAGER_SINCE,
    Broken,
    Dismiss,
    Done,
    Hello,
    Leaving,
    decode_to_instance,
    encode,
)

log = logging.getLogger(__name__)

ALONE_S: Final = 5.0
"""A manager that was started again is back within so long; what is here is of no use without one."""
LOOK_S: Final = 0.5


class Server:
    """Serves ``computer`` to one manager: a new one takes over from one that may not know yet that it is old."""

    def __init__(self, name: str, store: str, slots: int, computer: Computer, token: str) -> None:
        self._name = name
        self._boot = uuid4().hex
        self._store = store
        self._slots = slots
        self._computer = computer
        self._token = token
        self._manager: web.WebSocketResponse | None = None
        self._manager_since_s = 0.0
        self._leaving = False
        self._dismissed = asyncio.Event()

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get(LINK_PATH, self._link)
        return app

    async def leave(self, timeout_s: float) -> None:
        """Have the manager take over what is here; returns when it has, at the latest after ``timeout_s``.

        Without a manager there is nobody who could, so this waits for one only as long as one takes to come back.
        """
        self._leaving = True
        if self._manager is not None:
            with suppress(ConnectionError):  # it is gone: another one is told when it comes
                await self._manager.send_bytes(encode(Leaving()))
        deadline_s = time.monotonic() + timeout_s
        alone_since_s = time.monotonic()
        while not self._dismissed.is_set():
            now_s = time.monotonic()
            if self._manager is not None:
                alone_since_s = now_s
            if now_s >= deadline_s:
                log.warning("stopping with KV that no other instance took over", extra={"after_seconds": timeout_s})
                return
            if now_s - alone_since_s > ALONE_S:
                log.info("stopping: no manager is connected")
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._dismissed.wait()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _link(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        if not authorized(headers.get("authorization", ""), self._token):
            return web.Response(status=401, text="the service's control token is missing or wrong\n")
        try:
            since_s = float(headers.get(MANAGER_SINCE.lower(), "0"))
        except ValueError:
            return web.Response(status=400, text=f"{MANAGER_SINCE} is no number of seconds\n")
        if self._manager is not None and since_s < self._manager_since_s:
            return web.Response(status=409, text="a newer manager has taken over\n")
        self._manager_since_s = since_s
        link = web.WebSocketResponse(heartbeat=HEARTBEAT_SECONDS, max_msg_size=0)
        await link.prepare(request)
        before, self._manager = self._manager, link
        if before is not None:
            await before.close(message=b"another manager has taken over")
        loop = asyncio.get_running_loop()
        held: asyncio.Future[dict[str, int]] = loop.create_future()

        def tell_held(tokens: dict[str, int]) -> None:
            loop.call_soon_threadsafe(held.set_result, tokens)

        answers: asyncio.Queue[Done | Broken] = asyncio.Queue()
        sending: asyncio.Task[None] | None = None

        def reply(what: Done | Broken) -> None:
            loop.call_soon_threadsafe(answers.put_nowait, what)

        try:
            self._computer.held(tell_held)
            await link.send_bytes(encode(Hello(self._name, self._boot, self._store, self._slots, await held)))
            if self._leaving:
                await link.send_bytes(encode(Leaving()))
            log.info("manager connected", extra={"from": request.remote})
            sending = asyncio.create_task(self._send(link, answers))
            async for message in link:
                if message.type is not WSMsgType.BINARY or self._manager is not link:
                    continue
                try:
                    told = decode_to_instance(message.data)
                except msgspec.DecodeError as error:
                    log.error("message of the manager not understood", extra={"why": str(error)})
                    break
                if isinstance(told, Dismiss):
                    self._dismissed.set()
                else:
                    self._computer.tell(told, reply)
        except ConnectionError as error:
            log.info("manager disconnected", extra={"why": str(error)})
        finally:
            if self._manager is link:
                self._manager = None
            if sending is not None:
                sending.cancel()
            await link.close()
        return link

    @staticmethod
    async def _send(link: web.WebSocketResponse, answers: "asyncio.Queue[Done | Broken]") -> None:
        while True:
            await link.send_bytes(encode(await answers.get()))
