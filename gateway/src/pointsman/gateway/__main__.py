"""``python -m pointsman.gateway``: wires the parts together and serves until SIGTERM."""

import asyncio
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from pydantic import ValidationError

from pointsman.gateway import logs
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.router import COST_FUNCTIONS
from pointsman.gateway.discovery.kubernetes import follow_kubernetes
from pointsman.gateway.discovery.static import follow_file
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.forward import Forwarder, Limits
from pointsman.gateway.kv_events import KvEventFeed
from pointsman.gateway.kv_metrics import KvMetricsFeed
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.gateway.models import ModelCatalog
from pointsman.gateway.processor import TextProcessor
from pointsman.gateway.server import GatewayServer
from pointsman.gateway.settings import Settings

log = logging.getLogger("pointsman.gateway")

CONTROL_TIMEOUT_SECONDS = 10.0


def main() -> int:
    """Exit status: 0 after SIGTERM or SIGINT, 1 when a part died, 2 for wrong settings."""
    try:
        settings = Settings()
    except ValidationError as error:
        for problem in error.errors():
            field = ".".join(str(part) for part in problem["loc"]) or "settings"
            sys.stderr.write(f"POINTSMAN_{field.upper()}: {problem['msg']} (got {problem.get('input')!r})\n")
        return 2
    logs.configure(settings.log_level, service=f"{settings.namespace}/{settings.service}")
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        if settings.model_cache is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-gateway-")))
        else:
            folder = settings.model_cache
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                timeout=aiohttp.ClientTimeout(total=CONTROL_TIMEOUT_SECONDS),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=2**18,
            )
        )
        metrics = GatewayMetrics(settings.service)
        kv_metrics = KvMetricsFeed(settings, clock=time.monotonic)
        fleet = Fleet(
            clock=time.monotonic,
            rng=random.Random(settings.router_seed),
            cost=COST_FUNCTIONS[settings.router],
            index=KvIndex(),
            load_of=kv_metrics.load_of,
            suspect_seconds=settings.suspect_seconds,
        )
        token = settings.control_token.get_secret_value()
        catalog = ModelCatalog(fleet, session, folder=folder, control_token=token)
        kv_events = KvEventFeed(fleet)
        fleet.on_change(catalog.look)
        fleet.on_change(kv_events.look)
        stack.push_async_callback(catalog.stop)
        stack.push_async_callback(kv_events.stop)
        server = GatewayServer(
            fleet=fleet,
            forwarder=Forwarder(fleet, session, metrics, _limits(settings), time.monotonic),
            metrics=metrics,
            name=settings.gateway,
            control_token=token,
            patience_seconds=settings.patience_seconds,
            max_body_bytes=settings.max_body_mib * 2**20,
        )
        runner = web.AppRunner(
            server.application(),
            handler_cancellation=True,  # a client that leaves cancels its request at the worker
            shutdown_timeout=settings.shutdown_seconds,
            access_log=None,  # the access line of server.py says more
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, settings.bind_host, settings.port, backlog=1024)
        await site.start()
        host, port = runner.addresses[0][:2]
        log.info("listening", extra={"address": f"http://{host}:{port}", "router": settings.router.value})
        preparing = asyncio.create_task(asyncio.to_thread(TextProcessor.prepare), name="prepare")
        stack.callback(preparing.cancel)
        discovery = (
            follow_file(settings.endpoints_file, fleet.apply)
            if settings.endpoints_file is not None
            else follow_kubernetes(settings.namespace, settings.service, fleet.apply)
        )
        parts: dict[str, Coroutine[Any, Any, None]] = {"discovery": discovery}
        if settings.nats_url is not None:
            parts["kv metrics"] = kv_metrics.run(lambda: _service_uid(settings, fleet))
        died = await _until(stop, parts)
        server.stopping = True  # /ready says no; open streams get their time in runner.cleanup
        log.info("stopping", extra={"died": died})
    return 1 if died else 0


async def _until(stop: asyncio.Event, parts: dict[str, Coroutine[Any, Any, None]]) -> str | None:
    """Run ``parts`` until ``stop``; the name of the part that ended by itself, which none should."""
    tasks: set[asyncio.Task[Any]] = {asyncio.create_task(work, name=name) for name, work in parts.items()}
    stopped: asyncio.Task[Any] = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                log.error("part died", exc_info=task.exception(), extra={"part": task.get_name()})
                return task.get_name()
        return None
    finally:
        for task in (stopped, *tasks):
            task.cancel()
        await asyncio.gather(stopped, *tasks, return_exceptions=True)


async def _service_uid(settings: Settings, fleet: Fleet) -> str:
    """The service's uid, once discovery has read it."""
    while (uid := settings.service_uid or fleet.service_uid) is None:
        await fleet.wait_change(CONTROL_TIMEOUT_SECONDS)
    return uid


def _limits(settings: Settings) -> Limits:
    return Limits(
        patience_seconds=settings.patience_seconds,
        max_attempts=settings.max_attempts,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        inactivity_timeout_seconds=settings.inactivity_timeout_seconds,
        answer_timeout_seconds=settings.answer_timeout_seconds,
    )


if __name__ == "__main__":
    # transformers announces that torch is missing, which is meant.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    sys.exit(main())
