"""The gateway's metrics on a port of their own, so that whoever may send requests does not read them."""

import ipaddress
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from aiohttp import web
from yarl import URL

from pointsman.process.errors import CannotListen
from pointsman.process.listening import listen

log = logging.getLogger(__name__)

METRICS_PATH: Final = "/metrics"
_STOP_S: Final = 1.0
_CONTENT_TYPE: Final = "text/plain; version=0.0.4"


class MetricsServer:
    """Serves ``GET /metrics`` and nothing else while entered. ``page``: what it answers."""

    def __init__(self, page: Callable[[], bytes], bind_host: str, port: int) -> None:
        """``port`` 0: any free one."""
        self.port: int | None = None
        """Where it listens; None: it does not, and metrics are on the port of clients."""
        self._page = page
        self._bind_host = bind_host
        self._wanted = port
        app = web.Application()
        app.router.add_get(METRICS_PATH, self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_S)

    async def __aenter__(self) -> Self:
        """Listen. If the port is taken, as on the network of a node, a log line says so and requests are served."""
        await self._runner.setup()
        try:
            _, self.port = await listen(self._runner, self._bind_host, self._wanted)
        except CannotListen as error:
            log.warning("metrics stay on the port of clients", extra={"why": str(error)})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def on_clients_port(self, request: web.Request) -> web.Response:
        """Answer ``GET /metrics`` on the port of clients: metrics are there only if they have no port of their own.

        Earlier versions had them there. A reader that addresses the pod itself, as Prometheus and the planner do, is
        redirected, or answered if there is no other port. Anybody else learns nothing. On the network of a node the
        pod's address is the node's, and so is the other port: whoever reaches the node reads metrics there anyway.
        Raises HTTPTemporaryRedirect and HTTPNotFound.
        """
        own = _own_address(request)
        if own is None or own != _address(_host(request)):
            raise web.HTTPNotFound
        if self.port is None:
            return await self._metrics(request)
        raise web.HTTPTemporaryRedirect(URL.build(scheme="http", host=str(own), port=self.port, path=METRICS_PATH))

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._page(), headers={"Content-Type": _CONTENT_TYPE})


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _own_address(request: web.Request) -> _Address | None:
    """The address of this pod that the request came to."""
    found = request.transport.get_extra_info("sockname") if request.transport else None
    return _address(found[0]) if found else None


def _host(request: web.Request) -> str:
    try:
        return URL.build(scheme="http", authority=request.host).host or ""
    except ValueError:  # no host and port
        return ""


def _address(text: str) -> _Address | None:
    """None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
