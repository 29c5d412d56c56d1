"""The operator's process: wiring only.

Order: health server → mirror of the pods → Lease (waits here while another leads) → workers of the queue → kopf last.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable

from pointsman.api.protocol.names import SERVICE_LABEL
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.events import EventRecorder
from pointsman.kube.lease import Elector
from pointsman.kube.mirror import Mirror
from pointsman.kube.pods import Pod
from pointsman.kube.queue import WorkQueue
from pointsman.operator import handlers
from pointsman.operator.announce import Announcer
from pointsman.operator.apply import NatsCredentials, Writer
from pointsman.operator.control import ControlClient
from pointsman.operator.decisions import Decisions
from pointsman.operator.errors import SettingsError
from pointsman.operator.health import HealthServer
from pointsman.operator.logs import configure_logs
from pointsman.operator.metrics import OperatorMetrics
from pointsman.operator.pods import Expectations, ServiceKey
from pointsman.operator.reconcile import Reconciler, plan_key, service_key, switch_key
from pointsman.operator.settings import OperatorSettings

log = logging.getLogger("pointsman.operator")

EXIT_LOST_LEASE = 3
_EXIT_PATIENCE_S = 5.0  # after the Lease is lost another may lead: this process must be gone by then


async def run(settings: OperatorSettings) -> int:
    """Run until SIGTERM, SIGINT or the loss of the Lease; returns the exit status."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics = OperatorMetrics()
    queue: WorkQueue[ServiceKey] = WorkQueue()
    expectations = Expectations()
    namespace = settings.watch_namespace or None

    def pod_changed(old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        if new is None:
            expectations.gone(pod.metadata.uid)
        key = service_key(pod)
        if key is not None:
            queue.add(key)

    def switch_changed(old: RoleSwitch | None, new: RoleSwitch | None) -> None:
        switch = new or old
        if switch is not None:
            queue.add(switch_key(switch))

    def plan_changed(old: Plan | None, new: Plan | None) -> None:
        plan = new or old
        if plan is not None:
            queue.add(plan_key(plan))

    reconcilers: list[Reconciler] = []  # one, once this process leads

    def policy_changed(old: PlannerPolicy | None, new: PlannerPolicy | None) -> None:
        policy = new or old
        for leading in reconcilers:
            if policy is not None:
                leading.policy_changed(policy.metadata.namespace, policy.metadata.name)

    async with contextlib.AsyncExitStack() as stack:
        kube = await stack.enter_async_context(
            await Kube.connect(field_manager="pointsman-operator", on_request=metrics.count_request)
        )
        pods: Mirror[Pod] = Mirror(
            kube,
            resources.PODS,
            Pod,
            namespace=namespace,
            label_selector=SERVICE_LABEL,
            index=service_key,
            on_change=pod_changed,
        )
        switches: Mirror[RoleSwitch] = Mirror(
            kube,
            resources.ROLE_SWITCHES,
            RoleSwitch,
            namespace=namespace,
            index=switch_key,
            on_change=switch_changed,
        )
        plans: Mirror[Plan] = Mirror(
            kube, resources.PLANS, Plan, namespace=namespace, index=plan_key, on_change=plan_changed
        )
        policies: Mirror[PlannerPolicy] = Mirror(
            kube, resources.PLANNER_POLICIES, PlannerPolicy, namespace=namespace, on_change=policy_changed
        )
        metrics.watch(pods.stats, queue.stats)

        def mirrors_age_s() -> float | None:
            """None until every mirror has its list: an operator that may not see something must not seem ready."""
            listed = all(synced.is_set() for synced in (pods.synced, switches.synced, plans.synced, policies.synced))
            return pods.age_s if listed else None

        health = HealthServer(metrics, mirrors_age_s)
        port = await health.start(settings.bind_host, settings.bind_port)
        stack.push_async_callback(health.stop)
        log.info("listening on http://%s:%s for /healthz, /readyz and /metrics", settings.bind_host, port)

        lost_at_exit = asyncio.Event()

        def lease_lost(why: str) -> None:
            metrics.leader.set(0)
            lost_at_exit.set()
            stop.set()
            if why != "released":
                loop.call_later(_EXIT_PATIENCE_S, os._exit, EXIT_LOST_LEASE)

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
        events = EventRecorder(kube, controller="pointsman.dev/operator", instance=settings.identity)
        control = await stack.enter_async_context(ControlClient())
        election = _start(stack, elector.run(), "election")
        _start(stack, pods.run(), "mirror of pods")
        _start(stack, switches.run(), "mirror of role switches")
        _start(stack, plans.run(), "mirror of plans")
        _start(stack, policies.run(), "mirror of policies")
        _start(stack, events.run(), "events")

        for event in (elector.elected, pods.synced, switches.synced, plans.synced, policies.synced):
            if not await _either(stop, event.wait()):
                return 0
        metrics.leader.set(1)
        writer = Writer(
            kube,
            expectations,
            NatsCredentials(settings.nats_user, settings.nats_password.get_secret_value()),
            elector.still_leader,
        )
        reconciler = Reconciler(
            kube=kube,
            pods=pods,
            decisions=Decisions(kube, switches, plans, policies),
            queue=queue,
            writer=writer,
            expectations=expectations,
            control=control,
            announcer=Announcer(events, metrics),
            metrics=metrics,
            install=settings.install(),
            resync_s=settings.resync_seconds,
        )
        reconcilers.append(reconciler)
        work = _start(stack, queue.run(reconciler, workers=settings.reconcile_workers), "reconcilers")
        _start(stack, _every(settings.survey_seconds, reconciler.survey), "survey")
        await handlers.watch(lambda found, name: queue.add((found, name)), namespace=namespace, stop=stop)
        # Work stops before the Lease is given back, so that no two ever write.
        queue.close()
        await reconciler.stop()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await events.flush()
        failed = lost_at_exit.is_set()
        election.cancel()
        await asyncio.gather(election, return_exceptions=True)
        return EXIT_LOST_LEASE if failed else 0


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work`` again and again; what goes wrong in it is logged and tried again."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:
            log.exception("the survey failed")


def _start(stack: contextlib.AsyncExitStack, work: object, name: str) -> "asyncio.Task[object]":
    task: asyncio.Task[object] = asyncio.create_task(work, name=name)  # type: ignore[arg-type]

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    return task


async def _either(stop: asyncio.Event, awaited: object) -> bool:
    """Wait for one of the two; True if it was ``awaited``."""
    other: asyncio.Task[object] = asyncio.create_task(awaited)  # type: ignore[arg-type]
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({other, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not other.done():
        other.cancel()
        return False
    return True


def main() -> None:
    """Entry of ``python -m pointsman.operator``."""
    try:
        settings = OperatorSettings.read(sys.argv[1:])
    except SettingsError as error:
        sys.exit(f"pointsman operator: {error}")
    configure_logs(settings.log_level, settings.log_format)
    try:
        status = asyncio.run(run(settings))
    except KubeError as error:
        sys.exit(f"pointsman operator: {error}")
    except OSError as error:
        sys.exit(f"pointsman operator: {settings.bind_host}:{settings.bind_port}: {error}")
    sys.exit(status)


if __name__ == "__main__":
    main()
