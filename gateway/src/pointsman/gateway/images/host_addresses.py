"""The addresses of hosts, from the name servers of the pod's resolv.conf, by c-ares.

The system's resolver needs a thread for each name, for as long as the name servers take. A client can send URLs whose
name servers never answer, and so hold all threads. c-ares has one thread for any number of names.
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pycares

TIMEOUT_S: Final = 1.0
"""Of the first try; each one waits twice as long. c-ares waits less for servers that answered fast."""

TRIES: Final = 5
MAX_LOOKUPS: Final = 4096
"""Names that fetches wait for at one time; a fetch that is given up frees its place before c-ares ends its query."""


class HostUnknown(OSError):
    """The host has no address, or its name servers do not answer."""


class HostAddresses:
    """Used on one event loop; ``close`` it in the end.

    ``name_servers``: ``host:port`` of those that are asked in place of those of the resolv.conf.
    """

    def __init__(self, name_servers: Sequence[str] = ()) -> None:
        self._channel = pycares.Channel(timeout=TIMEOUT_S, tries=TRIES, servers=list(name_servers) or None)
        self._places = asyncio.Semaphore(MAX_LOOKUPS)

    async def of(self, host: str) -> list[tuple[socket.AddressFamily, str]]:
        """Family and address of each. Raises HostUnknown."""
        async with self._places:
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[Any] = loop.create_future()

            def arrived(result: Any, error: int | None) -> None:
                with suppress(RuntimeError):  # the loop has ended, and with it who waits
                    loop.call_soon_threadsafe(_settle, answer, result, error)

            self._channel.getaddrinfo(host, None, family=socket.AF_UNSPEC, type=socket.SOCK_STREAM, callback=arrived)
            result = await answer
        return [(socket.AddressFamily(node.family), _text(node.addr[0])) for node in result.nodes]

    def close(self) -> None:
        """Ask for nothing more."""
        self._channel.close()


def _settle(answer: asyncio.Future[Any], result: Any, error: int | None) -> None:
    if answer.done():  # the fetch was given up
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(HostUnknown(pycares.errno.strerror(error)))


def _text(address: str | bytes) -> str:
    return address.decode() if isinstance(address, bytes) else address
