"""The planner's process: wiring only. Order: health server → mirrors → Lease (waits while another leads) → planning."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import uuid

from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.events import EventRecorder
from pointsman.kube.lease import Elector
from pointsman.planner.cluster import Cluster
from pointsman.planner.errors import SettingsError
from pointsman.planner.health import HealthServer
from pointsman.planner.logs import configure_logs
from pointsman.planner.loop import Planner
from pointsman.planner.metrics import PlannerMetrics
from pointsman.planner.scraper import Scraper
from pointsman.planner.settings import PlannerSettings

log = logging.getLogger("pointsman.planner")

EXIT_LOST_LEASE = 3
_EXIT_PATIENCE_S = 5.0  # after the Lease is lost another may lead: this process must be gone by then


async def run(settings: PlannerSettings) -> int:
    """Run until SIGTERM, SIGINT or the loss of the Lease; returns the exit status."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    lost = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = PlannerMetrics()
    ready = asyncio.Event()

    def lease_lost(why: str) -> None:
        metrics.leader.set(0)
        stop.set()
        if why != "released":
            lost.set()
            loop.call_later(_EXIT_PATIENCE_S, os._exit, EXIT_LOST_LEASE)

    async with contextlib.AsyncExitStack() as stack:
        kube = await stack.enter_async_context(await Kube.connect(field_manager="pointsman-planner"))
        health = HealthServer(metrics.registry, ready.is_set)
        port = await health.start(settings.bind_host, settings.bind_port)
        stack.push_async_callback(health.stop)
        log.info("listening on http://%s:%s for /healthz, /readyz and /metrics", settings.bind_host, port)
        cluster = Cluster(kube, settings.watch_namespace or None)
        events = EventRecorder(kube, controller="pointsman.dev/planner", instance=settings.identity)
        scraper = await stack.enter_async_context(Scraper(settings.scrape_timeout_seconds))
        elector = Elector(
            kube,
            namespace=settings.namespace,
            name=settings.lease_name,
            identity=f"{settings.identity}_{uuid.uuid4().hex[:8]}",
            lease_duration_s=settings.lease_seconds,
            renew_deadline_s=settings.lease_seconds * 2 / 3,
            retry_period_s=settings.lease_seconds * 2 / 15,
            on_lost=lease_lost,
        )
        tasks = [
            asyncio.create_task(cluster.run(), name="mirrors"),
            asyncio.create_task(events.run(), name="events"),
            asyncio.create_task(elector.run(), name="election"),
        ]

        async def plan() -> None:
            await cluster.synced()
            ready.set()
            await elector.elected.wait()
            metrics.leader.set(1)
            planner = Planner(
                kube=kube,
                cluster=cluster,
                scraper=scraper,
                events=events,
                metrics=metrics,
                leads=elector.still_leader,
            )
            await planner.run()

        planning = asyncio.create_task(plan(), name="planning")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        done, _ = await asyncio.wait({planning, stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        # Planning stops before the Lease is given back, so that no two ever write.
        for task in (planning, stopped):
            task.cancel()
        await asyncio.gather(planning, stopped, return_exceptions=True)
        await events.flush()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        failed = next(
            (task for task in done if task is not stopped and not task.cancelled() and task.exception()), None
        )
        if failed is not None:
            log.error("%s ended", failed.get_name(), exc_info=failed.exception())
            return 1
        return EXIT_LOST_LEASE if lost.is_set() else 0


def main() -> None:
    """Entry of ``python -m pointsman.planner``."""
    try:
        settings = PlannerSettings.read(sys.argv[1:])
    except SettingsError as error:
        sys.exit(f"pointsman planner: {error}")
    configure_logs(settings.log_level, settings.log_format)
    try:
        status = asyncio.run(run(settings))
    except KubeError as error:
        sys.exit(f"pointsman planner: {error}")
    except OSError as error:
        sys.exit(f"pointsman planner: {settings.bind_host}:{settings.bind_port}: {error}")
    sys.exit(status)


if __name__ == "__main__":
    main()
