"""/healthz, /readyz and /metrics of the operator's process."""

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pointsman.operator.metrics import OperatorMetrics

STALE_MIRROR_S = 180.0  # bookmarks come about every minute


class HealthServer:
    """Serves from before the Lease is held: a standby is healthy and ready too, it only does not lead."""

    def __init__(self, metrics: OperatorMetrics, mirror_age_s: Callable[[], float | None]) -> None:
        self._metrics = metrics
        self._mirror_age_s = mirror_age_s
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError when the address is taken."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics_page)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        # That the event loop turns is what an answer proves. An unreachable API server is no reason to be restarted.
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        age_s = self._mirror_age_s()
        if age_s is None:
            return web.Response(status=503, text="pods, role switches, plans and policies are not all listed yet\n")
        if age_s > STALE_MIRROR_S:
            return web.Response(status=503, text=f"nothing heard of the pods for {age_s:.0f} s\n")
        return web.Response(text="ok\n")

    async def _metrics_page(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
