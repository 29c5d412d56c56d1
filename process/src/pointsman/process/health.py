"""/healthz, /readyz and /metrics of a process that serves nothing else."""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from pointsman.process.listening import listen

log = logging.getLogger(__name__)


class HealthServer:
    """Serves while entered: from before the Lease is held, as a standby is healthy and ready too."""

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, why_not_ready: Callable[[], str | None]
    ) -> None:
        """``port`` 0: any free one. ``why_not_ready`` says in a sentence what is missing, None when nothing is."""
        self.port = port
        self._host = host
        self._registry = registry
        self._why_not_ready = why_not_ready
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)

    async def __aenter__(self) -> Self:
        """Raises CannotListen."""
        await self._runner.setup()
        try:
            host, self.port = await listen(self._runner, self._host, self.port)
        except BaseException:
            await self._runner.cleanup()
            raise
        log.info("listening for /healthz, /readyz and /metrics", extra={"address": f"http://{host}:{self.port}"})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        # That the event loop turns is what an answer proves. An unreachable API server is no reason to be restarted.
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        why = self._why_not_ready()
        return web.Response(text="ok\n") if why is None else web.Response(status=503, text=f"{why}\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
