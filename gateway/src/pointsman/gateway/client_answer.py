"""An answer on its way to a client that may read slowly, stop reading, or leave."""

import asyncio
from typing import Final

from aiohttp import web

SURE_TO_FIT_BYTES: Final = 16 * 1024
"""So much is taken at once where nothing waits to be sent before it."""


class ClientGone(Exception):
    """The client left (``client-left``), or read nothing for too long (``client-stalled``): ``outcome``."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class ClientAnswer:
    """``begin``, then ``write`` and ``end``. Each raises ClientGone.

    ``stall_seconds``: how long one write may wait for the client to read.
    """

    def __init__(self, request: web.Request, response: web.StreamResponse, *, stall_seconds: float) -> None:
        self.response = response
        self._request = request
        self._stall_seconds = stall_seconds
        self._queued = request.transport.get_write_buffer_size if request.transport is not None else lambda: 0

    async def begin(self) -> None:
        """Send status and headers."""
        try:
            await self.response.prepare(self._request)
        except ConnectionError as error:
            raise ClientGone("client-left") from error

    async def write(self, data: bytes) -> None:
        """Send a piece of a stream."""
        try:
            if len(data) <= SURE_TO_FIT_BYTES and not self._queued():
                await self.response.write(data)
                return
            async with asyncio.timeout(self._stall_seconds):
                await self.response.write(data)
        except TimeoutError as error:
            raise ClientGone("client-stalled") from error
        except ConnectionError as error:
            raise ClientGone("client-left") from error

    async def end(self) -> None:
        """Send what is left."""
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self.response.write_eof()
        except TimeoutError as error:
            raise ClientGone("client-stalled") from error
        except ConnectionError as error:
            raise ClientGone("client-left") from error
