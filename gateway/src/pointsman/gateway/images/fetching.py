"""Fetches images from URLs that clients send: bounded in time, size and redirects, and from public addresses only.

The address is checked where the socket is made, so it is the one that is connected to: a name that resolves to another
address the second time, an address written into the URL and every redirect pass the same check. Addresses that are not
public are left out before, so that a host that has public ones too is reached there.

Hosts are resolved before a fetch takes one of the connections, so name servers that are slow hold none.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final

import aiohttp
import yarl
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.helpers import is_ip_address

from pointsman.gateway.core import image_limits
from pointsman.gateway.core.image_limits import ImageLimits
from pointsman.gateway.core.public_addresses import is_allowed_host, is_public
from pointsman.gateway.images.host_addresses import HostAddresses, HostUnknown
from pointsman.gateway.large_body import ArrivingBody
from pointsman.gateway.off_loop import OffLoop

MAX_URL_CHARACTERS: Final = 8192
MAX_CONNECTIONS: Final = 256
"""Fetches at one time; the wait for a free one counts against the fetch's time."""

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {
    "Accept": "image/png, image/jpeg, image/webp, image/gif",
    "Accept-Encoding": "identity",
    "User-Agent": "pointsman-gateway",
}

IsAllowed = Callable[[str], bool]
"""Whether the gateway connects to an IP address."""

_ADDRESSES: ContextVar[list[ResolveResult]] = ContextVar("addresses")
"""Of the host that this task fetches from."""


class AddressRefused(OSError):
    """The connection would go to an address that is not public."""


class ImageFetcher:
    """One per process; ``close`` it in the end.

    ``is_allowed`` and ``name_servers`` are seams for tests, whose servers are on loopback.
    """

    def __init__(
        self,
        limits: ImageLimits,
        off_loop: OffLoop,
        *,
        is_allowed: IsAllowed = is_public,
        name_servers: Sequence[str] = (),
    ) -> None:
        self._limits = limits
        self._off_loop = off_loop
        self._is_allowed = is_allowed
        self._hosts = HostAddresses(name_servers)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=MAX_CONNECTIONS,
                force_close=True,
                use_dns_cache=False,
                resolver=_AddressesOfTask(),
                socket_factory=lambda address: _socket(address, is_allowed),
            ),
            timeout=aiohttp.ClientTimeout(total=None),  # `fetch` bounds the whole
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def close(self) -> None:
        """End all connections."""
        await self._session.close()
        self._hosts.close()

    async def fetch(self, url: str, param: str, arrived: Callable[[int], None]) -> bytes:
        """The content behind ``url``, which ``param`` of the request names. Raises ImageInvalid.

        ``arrived`` gets the bytes so far, piece by piece, and may raise to end it.
        """
        try:
            async with asyncio.timeout(self._limits.fetch_timeout_seconds):
                return await self._follow(url, param, arrived)
        except TimeoutError as error:
            raise image_limits.timed_out(param, self._limits) from error
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, AddressRefused):
                raise image_limits.address_not_public(param) from error
            raise image_limits.fetch_failed(param, "the connection failed") from error
        except (AddressRefused, HostUnknown) as error:
            raise image_limits.address_not_public(param) from error
        except aiohttp.InvalidURL as error:
            raise image_limits.bad_url(param, "is not a URL") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # Only the kind of error: its text may name addresses.
            raise image_limits.fetch_failed(param, f"the connection failed ({type(error).__name__})") from error

    async def _follow(self, url: str, param: str, arrived: Callable[[int], None]) -> bytes:
        target = self._checked(url, param, base=None)
        for _ in range(self._limits.max_redirects + 1):
            async with self._get(target) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    return await self._content(response, param, arrived)
            target = self._checked(location, param, base=target)
        raise image_limits.too_many_redirects(param, self._limits)

    @asynccontextmanager
    async def _get(self, url: yarl.URL) -> AsyncIterator[aiohttp.ClientResponse]:
        """Closed and not read to its end: what a redirect or an error has as content is nobody's concern."""
        _ADDRESSES.set(await self._addresses(url))
        response = await self._session.get(url, headers=_HEADERS, allow_redirects=False)
        try:
            yield response
        finally:
            response.close()

    async def _addresses(self, url: yarl.URL) -> list[ResolveResult]:
        """Where a connection may go. Raises HostUnknown and AddressRefused."""
        host = url.raw_host or ""
        if is_ip_address(host):
            return []  # no name is asked for; the socket's address is checked
        found = await self._hosts.of(host)
        allowed = [
            ResolveResult(
                hostname=host,
                host=address,
                port=url.port or 0,
                family=family,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for family, address in found
            if self._is_allowed(address)
        ]
        if not allowed:
            raise AddressRefused("no address of the host is public")
        return allowed

    def _checked(self, text: str, param: str, *, base: yarl.URL | None) -> yarl.URL:
        """The URL that is requested: checked on the same object, so no other parser can read it differently."""
        if len(text) > MAX_URL_CHARACTERS:
            raise image_limits.bad_url(param, f"has more than {MAX_URL_CHARACTERS} characters")
        try:
            url = yarl.URL(text) if base is None else base.join(yarl.URL(text))
            host, scheme, user = url.raw_host, url.scheme, url.raw_user
            _ = url.port
        except ValueError as error:
            raise image_limits.bad_url(param, "is not a URL") from error
        if scheme not in ("http", "https") or not host:
            raise image_limits.bad_url(param, "must begin with http:// or https:// and have a host")
        if user is not None or url.raw_password is not None:
            raise image_limits.bad_url(param, "has a user name or password")
        if not is_allowed_host(host, self._limits.domains):
            raise image_limits.domain_not_allowed(param)
        return url

    async def _content(self, response: aiohttp.ClientResponse, param: str, arrived: Callable[[int], None]) -> bytes:
        if response.status != 200:
            raise image_limits.fetch_failed(param, f"its server answered {response.status}")
        if (response.content_length or 0) > self._limits.max_bytes:
            raise image_limits.too_large(param, self._limits)
        body = ArrivingBody()
        async for piece in response.content.iter_any():
            if body.size_bytes + len(piece) > self._limits.max_bytes:
                raise image_limits.too_large(param, self._limits)
            body.add(piece)
            arrived(body.size_bytes)
        return await body.whole(self._off_loop)


class _AddressesOfTask(AbstractResolver):
    """Gives a connection the addresses that its fetch has found."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return _ADDRESSES.get()

    async def close(self) -> None:
        pass


def _socket(address: Any, is_allowed: IsAllowed) -> socket.socket:
    """The socket of a connection to ``address``, an entry of getaddrinfo. Raises AddressRefused."""
    family, kind, protocol, _name, target = address
    if not is_allowed(str(target[0])):
        raise AddressRefused("the address is not public")
    return socket.socket(family=family, type=kind, proto=protocol)
