"""``python -m pointsman.gateway``: wires the parts together and serves until SIGTERM."""

import asyncio
import gc
import logging
import os
import random
import tempfile
import time
from functools import partial
from pathlib import Path

import aiohttp

from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.moves import MoveLimits
from pointsman.gateway.core.router import COST_FUNCTIONS
from pointsman.gateway.departures import Departures
from pointsman.gateway.discovery.kubernetes import follow_kubernetes
from pointsman.gateway.discovery.static import follow_file
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.flow_control import FlowControl, HoldLimits
from pointsman.gateway.forward import Forwarder, Limits
from pointsman.gateway.http_protocol import GatewayRunner
from pointsman.gateway.kv_events import KvEventFeed
from pointsman.gateway.kv_metrics import KvMetricsFeed
from pointsman.gateway.lazy_images import IsAllowed, LazyImages
from pointsman.gateway.lingering import linger
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.gateway.models import ModelCatalog
from pointsman.gateway.off_loop import OffLoop
from pointsman.gateway.processor import TextProcessor
from pointsman.gateway.router_inputs import RouterInputs
from pointsman.gateway.server import GatewayServer, ServerLimits
from pointsman.gateway.settings import Settings
from pointsman.gateway.worker_connections import worker_connector
from pointsman.process.entry import run_process
from pointsman.process.lifetime import ExitStatus, Lifetime
from pointsman.process.listening import listen

log = logging.getLogger("pointsman.gateway")

CONTROL_TIMEOUT_S = 10.0

CLIENT_IDLE_S = 620.0
"""An idle client connection is kept so long: longer than load balancers keep it, which then never meet a closed one."""


async def run(settings: Settings, *, is_allowed: IsAllowed | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    ``is_allowed``: a seam for tests, see `images.fetching.ImageFetcher`; None: public addresses only.
    """
    async with Lifetime() as life:
        if settings.model_cache is None:
            folder = Path(life.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-gateway-")))
        else:
            folder = settings.model_cache
        session = await life.enter_async_context(
            aiohttp.ClientSession(
                connector=worker_connector(),
                timeout=aiohttp.ClientTimeout(total=CONTROL_TIMEOUT_S),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=2**18,
            )
        )
        metrics = GatewayMetrics(settings.service)
        kv_metrics = KvMetricsFeed(settings, clock=time.monotonic)
        index = KvIndex(
            max_blocks=settings.kv_index_max_blocks,
            expiration_seconds=settings.kv_index_expiration_seconds or None,
            clock=time.monotonic,
        )
        fleet = Fleet(
            clock=time.monotonic,
            rng=random.Random(settings.router_seed),
            cost=COST_FUNCTIONS[settings.router],
            index=index,
            load_of=kv_metrics.load_of,
            suspect_seconds=settings.suspect_seconds,
        )
        metrics.registry.register(RouterInputs(settings.service, fleet, kv_metrics))
        token = settings.control_token.get_secret_value()
        catalog = ModelCatalog(fleet, session, folder=folder, control_token=token)
        kv_events = KvEventFeed(fleet, session, control_token=token)
        fleet.on_change(catalog.look)
        fleet.on_change(kv_events.look)
        life.push_async_callback(catalog.stop)
        life.push_async_callback(kv_events.stop)
        flow = FlowControl(fleet, metrics, _hold_limits(settings), time.monotonic)
        departures = Departures(fleet, connect_timeout_seconds=settings.connect_timeout_seconds)
        fleet.on_change(departures.look)
        fleet.on_change(lambda: metrics.set_objectives(fleet.objectives))
        life.push_async_callback(departures.stop)
        off_loop = OffLoop()
        life.callback(off_loop.close)
        images = LazyImages(fleet, session, departures, off_loop, metrics, settings, is_allowed)
        life.push_async_callback(images.close)
        server = GatewayServer(
            fleet=fleet,
            forwarder=Forwarder(fleet, flow, session, metrics, _limits(settings), time.monotonic, departures, off_loop),
            metrics=metrics,
            name=settings.gateway,
            control_token=token,
            limits=_server_limits(settings),
            off_loop=off_loop,
            images=images.service,
            metrics_port=settings.metrics_port,
            bind_host=settings.bind_host,
        )
        await life.enter_async_context(server.metrics_server)
        runner = GatewayRunner(
            server.application(),
            respond=server.respond,
            max_header_kib=settings.max_header_kib,
            keepalive_timeout=CLIENT_IDLE_S,
            handler_cancellation=True,  # a client that leaves cancels its request at the worker
            shutdown_timeout=settings.shutdown_seconds,
            access_log=None,  # the access line of server.py says more
        )
        await runner.setup()
        life.push_async_callback(runner.cleanup)
        host, port = await listen(runner, settings.bind_host, settings.port, backlog=1024)
        metrics_port = server.metrics_server.port
        log.info(
            "listening",
            extra={"address": f"http://{host}:{port}", "router": settings.router.value, "metrics_port": metrics_port},
        )
        preparing = asyncio.create_task(asyncio.to_thread(_prepare), name="prepare")
        life.callback(preparing.cancel)
        discovery = (
            follow_file(settings.endpoints_file, fleet.apply)
            if settings.endpoints_file is not None
            else follow_kubernetes(settings.namespace, settings.service, fleet.apply)
        )
        life.start(discovery, "discovery")
        if settings.nats_url is not None:
            life.start(kv_metrics.run(lambda: _service_uid(settings, fleet)), "kv metrics")
        await life.stopping.wait()
        # /ready answers 200 while requests are accepted: a Service without another gateway routes to a terminating one
        # only while it is ready.
        server.keeps_connections = False
        log.info("stopping", extra={"status": life.status.name})
        left_seconds = await linger(settings) if life.status is ExitStatus.STOPPED else settings.shutdown_seconds
        server.stopping = True
        flow.end_within(left_seconds / 2)  # the other half is for answering those that it sends
        runner.shutdown_within(left_seconds)  # open streams get their time in runner.cleanup
    return life.status


def _prepare() -> None:
    """Import what requests need, and keep all that is there now out of the garbage collector's sight.

    Each of its full collections looked at a hundred thousand objects of modules, for 70 ms and more on the loop.
    """
    TextProcessor.prepare()
    gc.collect()
    gc.freeze()


async def _service_uid(settings: Settings, fleet: Fleet) -> str:
    """The service's uid, once discovery has read it."""
    while (uid := settings.service_uid or fleet.service_uid) is None:
        await fleet.wait_change(CONTROL_TIMEOUT_S)
    return uid


def _hold_limits(settings: Settings) -> HoldLimits:
    return HoldLimits(
        max_held=settings.max_held,
        hold_seconds=settings.hold_seconds,
        patience_seconds=settings.patience_seconds,
    )


def _server_limits(settings: Settings) -> ServerLimits:
    return ServerLimits(
        patience_seconds=settings.patience_seconds,
        max_answers=settings.max_answers,
        max_body_bytes=settings.max_body_mib * 2**20,
        max_header_kib=settings.max_header_kib,
        body_timeout_seconds=settings.body_timeout_seconds,
        write_timeout_seconds=settings.write_timeout_seconds,
        max_in_flight_requests=settings.max_in_flight_requests,
        max_in_flight_bytes=settings.max_in_flight_mib * 2**20,
        first_token_seconds=settings.first_token_timeout_seconds,
        moves=MoveLimits(max_attempts=settings.max_attempts, max_moves=settings.max_moves),
        trusts_media_options=settings.trust_request_mm_kwargs,
    )


def _limits(settings: Settings) -> Limits:
    return Limits(
        patience_seconds=settings.patience_seconds,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        first_token_timeout_seconds=settings.first_token_timeout_seconds,
        inactivity_timeout_seconds=settings.inactivity_timeout_seconds,
        answer_timeout_seconds=settings.answer_timeout_seconds,
    )


def main(*, is_allowed: IsAllowed | None = None) -> None:
    """Entry of ``python -m pointsman.gateway``. ``is_allowed``: as in ``run``."""
    # transformers announces that torch is missing, which is meant.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    run_process(Settings, partial(run, is_allowed=is_allowed))


if __name__ == "__main__":
    main()
