"""The planner's process: wiring only. Order: health server → mirrors → Lease (waits while another leads) → planning."""

import asyncio
import gc

from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.events import EventRecorder
from pointsman.kube.lease import RELEASED, Elector, candidate
from pointsman.planner.cluster import Cluster
from pointsman.planner.group_loop import GroupPlanner
from pointsman.planner.loop import Planner
from pointsman.planner.metrics import PlannerMetrics
from pointsman.planner.scraper import Scraper
from pointsman.planner.settings import PlannerSettings
from pointsman.process.entry import run_process
from pointsman.process.health import HealthServer
from pointsman.process.lifetime import Lifetime


async def run(settings: PlannerSettings) -> int:
    """Run until SIGTERM, SIGINT or the loss of the Lease; returns the exit status."""
    metrics = PlannerMetrics()
    ready = asyncio.Event()

    def why_not_ready() -> str | None:
        return None if ready.is_set() else "services, policies, pods, role switches and plans are not all listed yet"

    async with Lifetime() as life:
        kube = await life.enter_async_context(await Kube.connect(field_manager="pointsman-planner"))
        await life.enter_async_context(
            HealthServer(settings.bind_host, settings.bind_port, metrics.registry, why_not_ready)
        )
        cluster = Cluster(kube, settings.watch_namespace or None)
        events = EventRecorder(kube, controller="pointsman.dev/planner", instance=settings.identity)
        scraper = await life.enter_async_context(Scraper(settings.scrape_timeout_seconds))

        def lease_lost(why: str) -> None:
            metrics.leader.set(0)
            if why != RELEASED:
                life.lease_lost()

        elector = Elector(
            kube,
            namespace=settings.namespace,
            name=settings.lease_name,
            identity=candidate(settings.identity),
            lease_duration_s=settings.lease_seconds,
            on_lost=lease_lost,
        )
        # The last that starts is the first that ends: planning, before the Lease is given back, so no two ever write.
        life.start(elector.run(), "election")
        life.start(cluster.run(), "mirrors")
        life.start(events.run(), "events")
        life.push_async_callback(events.flush)
        if not await life.reach(cluster.synced()):
            return life.status
        ready.set()
        if not await life.reach(elector.elected.wait()):
            return life.status
        metrics.leader.set(1)
        for make, what in ((Planner, "planning"), (GroupPlanner, "planning of elastic groups")):
            planner = make(
                kube=kube,
                cluster=cluster,
                scraper=scraper,
                events=events,
                metrics=metrics,
                leads=elector.still_leader,
                prometheus_timeout_s=settings.prometheus_timeout_seconds,
                prometheus_urls=settings.allowed_prometheus_urls(),
            )
            life.start(planner.run(), what)
        await life.stopping.wait()
    return life.status


def main() -> None:
    """Entry of ``python -m pointsman.planner``.

    The garbage collector skips the objects of modules from here on. Each of its full collections took 50 ms for them,
    with all threads stopped, several times while a thousand pods were read.
    """
    gc.collect()
    gc.freeze()
    run_process(PlannerSettings, run, KubeError)


if __name__ == "__main__":
    main()
