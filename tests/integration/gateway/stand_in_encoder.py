"""A stand-in for an encode worker: answers a chat with images by where their embeddings are. It has no encoder."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from integration.gateway.stand_in_worker import SERVED_NAME, Behaviour, Seen
from pointsman.api.protocol import headers


@dataclass(eq=False)
class StandInEncoder:
    """See the module. ``behaviours`` are used up one per request, in order.

    Of them ``status`` and its ``body``, ``gate`` and ``cut``.
    """

    name: str
    url: str = ""
    behaviours: deque[Behaviour] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Any = None  # in place of the right one

    @property
    def images(self) -> list[str]:
        """Ids of the images that were sent here."""
        return [image for seen in self.seen for image in _images(seen.body)]

    def application(self) -> web.Application:
        """Its HTTP application."""
        app = web.Application(client_max_size=2**27)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
            images = _images(body)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            images = {}
        if not images or body.get("model") != SERVED_NAME:
            return web.json_response({"error": {"message": "no image", "type": "BadRequest", "code": 400}}, status=400)
        self.seen.append(Seen(request.path, request.headers.copy(), body))
        behaviour = self.behaviours.popleft() if self.behaviours else Behaviour()
        self.begun.set()
        try:
            if behaviour.gate is not None:
                await behaviour.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if behaviour.cut and request.transport is not None:
            request.transport.abort()
        if behaviour.status is not None:
            found = {headers.RETRY: behaviour.retry} if behaviour.retry else {}
            body = behaviour.body or {"error": {"message": "not now"}}
            return web.json_response(body, status=behaviour.status, headers=found)
        if self.answer is not None:
            return web.json_response(self.answer)
        params = {image: {"address": self.name, "key": image, "num_tokens": 64} for image in images}
        return web.json_response({"choices": [], "usage": {}, "ec_transfer_params": params})


def _images(body: dict[str, Any]) -> dict[str, str]:
    """Data URLs of the images by id."""
    parts = [part for message in body["messages"] for part in message["content"] if isinstance(part, dict)]
    return {part["uuid"]: part["image_url"]["url"] for part in parts if part["type"] == "image_url"}


@asynccontextmanager
async def encoding(encoder: StandInEncoder, *, host: str = "127.0.0.1") -> AsyncIterator[StandInEncoder]:
    """Serve ``encoder`` on a free port of ``host``."""
    runner = web.AppRunner(encoder.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, host, 0).start()
    encoder.url = f"http://{host}:{runner.addresses[0][1]}"
    try:
        yield encoder
    finally:
        await runner.cleanup()
