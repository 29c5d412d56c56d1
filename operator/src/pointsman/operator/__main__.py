"""The operator's process: wiring only.

Order: health server → mirror of the pods → Lease (waits here while another leads) → workers of the queue → kopf last.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.events import EventRecorder
from pointsman.kube.lease import RELEASED, Elector, candidate
from pointsman.operator import handlers
from pointsman.operator.announce import Announcer
from pointsman.operator.apply import Writer
from pointsman.operator.children import Children
from pointsman.operator.commands import Commands
from pointsman.operator.control import ControlClient
from pointsman.operator.elastic_groups import ElasticGroups
from pointsman.operator.execute import Executor
from pointsman.operator.expectations import Expectations
from pointsman.operator.metrics import OperatorMetrics
from pointsman.operator.observer import Observer
from pointsman.operator.plan_inputs import PlanInputs
from pointsman.operator.policies import PolicyReports
from pointsman.operator.reconcile import Reconciler
from pointsman.operator.settings import OperatorSettings
from pointsman.operator.streams import PrefillStreams
from pointsman.operator.watches import Queues, Watches
from pointsman.process.entry import run_process
from pointsman.process.health import HealthServer
from pointsman.process.lifetime import Lifetime

log = logging.getLogger("pointsman.operator")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What every process has, also while another leads."""

    settings: OperatorSettings
    kube: Kube
    control: ControlClient
    events: EventRecorder
    elector: Elector
    watches: Watches
    queues: Queues
    expectations: Expectations
    metrics: OperatorMetrics


async def run(settings: OperatorSettings) -> int:
    """Run until SIGTERM, SIGINT or the loss of the Lease; returns the exit status."""
    metrics, queues, expectations = OperatorMetrics(), Queues(), Expectations()
    namespace = settings.watch_namespace or None
    async with Lifetime() as life:
        kube = await life.enter_async_context(
            await Kube.connect(field_manager="pointsman-operator", on_request=metrics.count_request)
        )
        watches = Watches(kube, namespace, queues, expectations)
        stats = {str(mirror.resource): mirror.stats for mirror in watches.mirrors.values()}
        metrics.watch(stats, queues.services.stats)
        health = HealthServer(settings.bind_host, settings.bind_port, metrics.registry, watches.why_not_ready)
        await life.enter_async_context(health)
        elector = _elector(settings, kube, metrics, life)
        events = EventRecorder(kube, controller="pointsman.dev/operator", instance=settings.identity)
        control = await life.enter_async_context(ControlClient(elector.still_leader))
        life.start(elector.run(), "election")
        for name, mirror in watches.mirrors.items():
            life.start(mirror.run(), f"mirror of {name}")
        life.start(events.run(), "events")
        life.push_async_callback(events.flush)

        for event in (elector.elected, *(mirror.synced for mirror in watches.mirrors.values())):
            if not await life.reach(event.wait()):
                return life.status
        metrics.leader.set(1)
        parts = _Parts(settings, kube, control, events, elector, watches, queues, expectations, metrics)
        reconciler = _lead(life, parts)

        async def stop_work() -> None:
            """Before the Lease is given back, so that no two ever write."""
            life.stop()  # it was a signal, which kopf has taken over, if nothing else stopped us
            queues.close()
            await reconciler.stop()

        await handlers.watch(
            lambda found, name: queues.services.add((found, name)),
            lambda found, name: queues.groups.add((found, name)),
            stop_work,
            namespace=namespace,
            stop=life.stopping,
        )
    return life.status


def _elector(settings: OperatorSettings, kube: Kube, metrics: OperatorMetrics, life: Lifetime) -> Elector:
    def lease_lost(why: str) -> None:
        metrics.leader.set(0)
        if why != RELEASED:
            life.lease_lost()

    return Elector(
        kube,
        namespace=settings.namespace,
        name=settings.lease_name,
        identity=candidate(settings.identity),
        lease_duration_s=settings.lease_seconds,
        on_lost=lease_lost,
    )


def _lead(life: Lifetime, parts: _Parts) -> Reconciler:
    """Start what only a leader does: reconcilers, reports about policies, surveys, polls."""
    settings, watches, queues, metrics = parts.settings, parts.watches, parts.queues, parts.metrics
    nats = settings.nats_credentials()
    writer = Writer(parts.kube, parts.expectations, nats, parts.elector.still_leader)
    announcer = Announcer(parts.events, metrics)
    plan_inputs = PlanInputs(parts.kube, watches.switches, watches.plans, watches.policies)
    install, resync_s = settings.install(), settings.resync_seconds
    streams = PrefillStreams(settings.nats_url, nats.of_operator(), nats.ca_certificate)
    commands = Commands(parts.control, queues.services, announcer, metrics)
    observer = Observer(
        kube=parts.kube,
        pods=watches.pods,
        deployments=watches.deployments,
        plan_inputs=plan_inputs,
        expectations=parts.expectations,
        control=parts.control,
        commands=commands,
        announcer=announcer,
        queue=queues.services,
        install=install,
    )
    children = Children(writer, watches.pods, install, resync_s)
    reconciler = Reconciler(
        observer=observer,
        executor=Executor(writer, children, commands, queues.services, announcer, metrics, streams),
        commands=commands,
        queue=queues.services,
        policies=queues.policies,
        announcer=announcer,
        metrics=metrics,
        resync_s=resync_s,
    )
    groups = ElasticGroups(
        kube=parts.kube,
        pods=watches.pods,
        deployments=watches.deployments,
        writer=writer,
        control=parts.control,
        announcer=announcer,
        install=install,
        plan_inputs=plan_inputs,
        policies=queues.policies,
    )
    watches.begin_to_lead(announcer, reconciler)
    life.start(queues.services.run(reconciler, workers=settings.reconcile_workers), "reconcilers")
    reports = PolicyReports(parts.kube, watches.policies, writer)
    life.start(queues.policies.run(reports, workers=1), "reports about policies")
    life.start(_every(settings.survey_seconds, observer.survey), "survey")
    life.start(_every(settings.survey_seconds, streams.sweep), "prefill streams")
    life.start(observer.poll_workers(), "polls of workers")
    life.start(queues.groups.run(groups, workers=settings.reconcile_workers), "reconcilers of elastic groups")
    return reconciler


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work`` again and again. A failure is logged, and the work is tried again."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("periodic work failed")


def main() -> None:
    """Entry of ``python -m pointsman.operator``."""
    run_process(OperatorSettings, run, KubeError)


if __name__ == "__main__":
    main()
