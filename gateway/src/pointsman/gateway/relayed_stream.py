"""A stream of a worker that is passed on as it comes: the engine's endpoints beside chats and completions."""

from collections.abc import AsyncGenerator, Callable

import aiohttp

from pointsman.gateway.attempt import (
    ENGINE_ERROR,
    NO_DATA,
    Unsuitable,
    connection_failed,
    limit_silence,
    no_first_token,
    provenance_of,
)
from pointsman.gateway.core.relayed import RelayedEvents
from pointsman.gateway.departures import Departures
from pointsman.gateway.errors import StreamBroken
from pointsman.gateway.fleet import Pick


class RelayedStream:
    """Its head has arrived. ``pieces`` once; ``close`` in any case.

    ``answered`` is called at the end of a whole stream, ``failed`` when the worker breaks the stream.
    """

    def __init__(
        self,
        pick: Pick,
        response: aiohttp.ClientResponse,
        departures: Departures,
        inactivity_seconds: float,
        *,
        answered: Callable[[], None],
        failed: Callable[[Unsuitable], None],
    ) -> None:
        self.provenance = provenance_of(pick, response)
        self.events = RelayedEvents()
        self._pick = pick
        self._response = response
        self._departures = departures
        self._inactivity_seconds = inactivity_seconds
        self._answered = answered
        self._failed = failed
        self._begun = False  # the first token was read
        self._whole = False
        departures.enter(pick.worker, response.close)

    async def pieces(self) -> AsyncGenerator[tuple[bytes, int], None]:
        """Bytes as they come, and the pieces of text in them.

        Raises TimedOut, or StreamBroken: nobody can continue it.
        """
        try:
            while received := await self._read():
                tokens = self.events.feed(received)
                if tokens and not self._begun:
                    self._begun = True
                    limit_silence(self._response, self._inactivity_seconds)
                self._pick.entry.produced(tokens)
                yield received, tokens
        except Unsuitable as error:
            self._failed(error)
            raise StreamBroken(f"The answer broke off: {error} (worker {self.provenance.worker}).") from error
        self._whole = True
        if self.events.failed:
            self._failed(Unsuitable(ENGINE_ERROR, failing=True))
        else:
            self._answered()

    async def _read(self) -> bytes:
        """What comes next; empty at the end. Events that come before the first token do not end the wait for it."""
        try:
            return await self._response.content.readany()
        except TimeoutError as error:
            if not self._begun:
                raise no_first_token() from error
            raise Unsuitable("inactive", NO_DATA, unreachable=True) from error
        except (aiohttp.ClientError, OSError) as error:
            raise connection_failed(error) from error

    def close(self) -> None:
        """Give the worker up: the connection of a stream that is not at its end is closed, which aborts it there."""
        self._pick.entry.end()
        self._departures.leave(self._pick.worker, self._response.close)
        if self._whole:
            self._response.release()
        else:
            self._response.close()
