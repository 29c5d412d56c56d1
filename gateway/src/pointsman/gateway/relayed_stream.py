"""A stream of a worker that is passed on as it comes: the engine's endpoints beside chats and completions."""

import asyncio
from collections.abc import AsyncGenerator

import aiohttp

from pointsman.gateway.attempt import NO_DATA, provenance_of
from pointsman.gateway.core.relayed import RelayedEvents
from pointsman.gateway.departures import Departures
from pointsman.gateway.errors import StreamBroken
from pointsman.gateway.fleet import Pick


class RelayedStream:
    """Its head has arrived. ``pieces`` once; ``close`` in any case."""

    def __init__(
        self, pick: Pick, response: aiohttp.ClientResponse, departures: Departures, inactivity_seconds: float
    ) -> None:
        self.provenance = provenance_of(pick, response)
        self.events = RelayedEvents()
        self._pick = pick
        self._response = response
        self._departures = departures
        self._inactivity_seconds = inactivity_seconds
        self._whole = False
        departures.enter(pick.worker, response.close)

    async def pieces(self) -> AsyncGenerator[tuple[bytes, int], None]:
        """Bytes as they come, and the pieces of text in them. Raises StreamBroken: nobody can continue it."""
        while True:
            try:
                async with asyncio.timeout(self._inactivity_seconds):
                    received = await self._response.content.readany()
            except TimeoutError as error:
                raise StreamBroken(f"The answer broke off: {NO_DATA}.") from error
            except (aiohttp.ClientError, OSError) as error:
                raise StreamBroken("The answer broke off: the connection to the worker failed.") from error
            if not received:
                self._whole = True
                return
            yield received, self.events.feed(received)

    def close(self) -> None:
        """Give the worker up: the connection of a stream that is not at its end is closed, which aborts it there."""
        self._pick.entry.end()
        self._departures.leave(self._pick.worker, self._response.close)
        if self._whole:
            self._response.release()
        else:
            self._response.close()
