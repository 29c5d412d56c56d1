"""The worker's metrics on a port of their own, so that a NetworkPolicy can open them to more pods than the engine.

The page is the engine's ``/metrics``. It stays on the engine's port too: the planner reads it there.
"""

import logging
from typing import Any, Final

from aiohttp import web

from pointsman.workers.core.paths import METRICS_PATH
from pointsman.workers.engine import AsgiApp, Message, http_scope

log = logging.getLogger(__name__)

STOP_S: Final = 1.0


class MetricsServer:
    """Serves ``GET /metrics`` of ``app`` and nothing else; ``host``: see AsgiEngine."""

    def __init__(self, app: AsgiApp, host: Any, bind_host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._bind_host = bind_host
        self._port = port
        self._runner: web.AppRunner | None = None

    async def start(self) -> bool:
        """Begin to listen; False, with a log line, where the port is taken: the worker serves without it."""
        application = web.Application()
        application.router.add_get(METRICS_PATH, self._metrics)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_S)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._bind_host, self._port).start()
        except OSError as error:
            log.warning("metrics stay on the port of the engine", extra={"why": str(error)})
            await runner.cleanup()
            return False
        self._runner = runner
        return True

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        answer = web.Response()
        body = bytearray()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.set_status(message["status"])
                for name, value in message["headers"]:
                    if name.lower() != b"content-length":
                        answer.headers[name.decode("latin-1")] = value.decode("latin-1")
            elif message["type"] == "http.response.body":
                body.extend(message.get("body", b""))

        scope = http_scope("GET", METRICS_PATH, b"", "metrics", self._host)
        scope.update(headers=list(request.raw_headers), query_string=request.query_string.encode())
        await self._app(scope, receive, send)
        answer.body = bytes(body)
        return answer
