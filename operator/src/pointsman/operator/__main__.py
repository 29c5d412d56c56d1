"""The operator's process: wiring only.

Order: health server → mirror of the pods → Lease (waits here while another leads) → workers of the queue → kopf last.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pointsman.api.protocol.names import SERVICE_LABEL
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.events import EventRecorder
from pointsman.kube.lease import RELEASED, Elector, candidate
from pointsman.kube.mirror import Mirror, Unreadable
from pointsman.kube.pods import Pod, ServiceKey, label_key, service_key
from pointsman.kube.resources import Resource
from pointsman.operator import handlers
from pointsman.operator.announce import Announcer
from pointsman.operator.apply import Writer
from pointsman.operator.children import Children
from pointsman.operator.commands import Commands
from pointsman.operator.control import ControlClient
from pointsman.operator.deployments import GatewayDeployments
from pointsman.operator.elastic_groups import ElasticGroups
from pointsman.operator.execute import Executor
from pointsman.operator.expectations import Expectations
from pointsman.operator.metrics import OperatorMetrics
from pointsman.operator.observe import is_of_group
from pointsman.operator.observer import Observer
from pointsman.operator.plan_inputs import PlanInputs
from pointsman.operator.policies import PolicyKey, PolicyReports
from pointsman.operator.reconcile import Reconciler, plan_key, switch_key
from pointsman.operator.settings import OperatorSettings
from pointsman.operator.streams import PrefillStreams
from pointsman.operator.work_queue import WorkQueue
from pointsman.process.entry import run_process
from pointsman.process.health import HealthServer
from pointsman.process.lifetime import Lifetime

log = logging.getLogger("pointsman.operator")

STALE_MIRROR_S = 180.0  # bookmarks come about every minute


async def run(settings: OperatorSettings) -> int:
    """Run until SIGTERM, SIGINT or the loss of the Lease; returns the exit status."""
    metrics = OperatorMetrics()
    queue: WorkQueue[ServiceKey] = WorkQueue()
    policy_queue: WorkQueue[PolicyKey] = WorkQueue()
    group_queue: WorkQueue[ServiceKey] = WorkQueue()
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
            (group_queue if is_of_group(pod) else queue).add(key)

    def switch_changed(old: RoleSwitch | None, new: RoleSwitch | None) -> None:
        switch = new or old
        if switch is not None:
            queue.add(switch_key(switch))

    def plan_changed(old: Plan | None, new: Plan | None) -> None:
        plan = new or old
        if plan is not None:
            (group_queue if plan.spec.service_ref.kind == "ElasticGroup" else queue).add(plan_key(plan))

    def deployment_changed(kind: str, of: str, name: str) -> None:
        (group_queue if kind == "ElasticGroup" else queue).add((of, name))

    reconcilers: list[Reconciler] = []  # one, once this process leads
    announcers: list[Announcer] = []  # likewise

    def tell_of_unreadable(resource: Resource) -> Callable[[Unreadable], None]:
        def tell(found: Unreadable) -> None:
            for leading in announcers:
                leading.unreadable(resource, found)

        return tell

    def pod_is_unreadable(found: Unreadable) -> None:
        tell_of_unreadable(resources.PODS)(found)
        key = label_key(found.metadata)
        if key is not None:
            queue.add(key)

    def policy_changed(old: PlannerPolicy | None, new: PlannerPolicy | None) -> None:
        policy = new or old
        if policy is None:
            return
        policy_queue.add((policy.metadata.namespace, policy.metadata.name))
        for leading in reconcilers:
            leading.policy_changed(policy.metadata.namespace, policy.metadata.name)

    async with Lifetime() as life:
        kube = await life.enter_async_context(
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
            on_unreadable=pod_is_unreadable,
        )
        switches: Mirror[RoleSwitch] = Mirror(
            kube,
            resources.ROLE_SWITCHES,
            RoleSwitch,
            namespace=namespace,
            index=switch_key,
            on_change=switch_changed,
            on_unreadable=tell_of_unreadable(resources.ROLE_SWITCHES),
        )
        plans: Mirror[Plan] = Mirror(
            kube,
            resources.PLANS,
            Plan,
            namespace=namespace,
            index=plan_key,
            on_change=plan_changed,
            on_unreadable=tell_of_unreadable(resources.PLANS),
        )
        policies: Mirror[PlannerPolicy] = Mirror(
            kube,
            resources.PLANNER_POLICIES,
            PlannerPolicy,
            namespace=namespace,
            on_change=policy_changed,
            on_unreadable=tell_of_unreadable(resources.PLANNER_POLICIES),
        )
        deployments = GatewayDeployments(kube, namespace, deployment_changed)
        mirrors: tuple[Mirror[Any], ...] = (pods, switches, plans, policies, deployments.mirror)
        metrics.watch({str(mirror.resource): mirror.stats for mirror in mirrors}, queue.stats)

        synced = tuple(mirror.synced for mirror in (pods, switches, plans, policies, deployments.mirror))

        def why_not_ready() -> str | None:
            """An operator that may not see something must not seem ready."""
            listed = all(event.is_set() for event in synced)
            age_s = pods.age_s
            if age_s is None or not listed:
                return "pods, role switches, plans, policies and gateways are not all listed yet"
            return f"the mirror of pods is {age_s:.0f} s old" if age_s > STALE_MIRROR_S else None

        health = HealthServer(settings.bind_host, settings.bind_port, metrics.registry, why_not_ready)
        await life.enter_async_context(health)

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
        events = EventRecorder(kube, controller="pointsman.dev/operator", instance=settings.identity)
        control = await life.enter_async_context(ControlClient(elector.still_leader))
        life.start(elector.run(), "election")
        life.start(pods.run(), "mirror of pods")
        life.start(switches.run(), "mirror of role switches")
        life.start(plans.run(), "mirror of plans")
        life.start(policies.run(), "mirror of policies")
        life.start(deployments.mirror.run(), "mirror of gateways")
        life.start(events.run(), "events")
        life.push_async_callback(events.flush)

        for event in (elector.elected, *synced):
            if not await life.reach(event.wait()):
                return life.status
        metrics.leader.set(1)
        nats = settings.nats_credentials()
        writer = Writer(kube, expectations, nats, elector.still_leader)
        announcer = Announcer(events, metrics)
        announcers.append(announcer)
        for mirror in mirrors:  # those that were found before this process led
            for found in mirror.unreadable():
                announcer.unreadable(mirror.resource, found)
        plan_inputs = PlanInputs(kube, switches, plans, policies)
        install, resync_s = settings.install(), settings.resync_seconds
        streams = PrefillStreams(settings.nats_url, nats.of_operator(), nats.ca_certificate)
        commands = Commands(control, queue, announcer, metrics)
        observer = Observer(
            kube=kube,
            pods=pods,
            deployments=deployments,
            plan_inputs=plan_inputs,
            expectations=expectations,
            control=control,
            commands=commands,
            announcer=announcer,
            queue=queue,
            install=install,
        )
        children = Children(writer, pods, install, resync_s)
        reconciler = Reconciler(
            observer=observer,
            executor=Executor(writer, children, commands, queue, announcer, metrics, streams),
            commands=commands,
            queue=queue,
            policies=policy_queue,
            announcer=announcer,
            metrics=metrics,
            install=install,
            resync_s=resync_s,
        )
        reconcilers.append(reconciler)
        life.start(queue.run(reconciler, workers=settings.reconcile_workers), "reconcilers")
        life.start(policy_queue.run(PolicyReports(kube, policies, writer), workers=1), "reports about policies")
        life.start(_every(settings.survey_seconds, observer.survey), "survey")
        life.start(_every(settings.survey_seconds, streams.sweep), "prefill streams")
        life.start(observer.poll_workers(), "polls of workers")
        groups = ElasticGroups(
            kube=kube,
            pods=pods,
            deployments=deployments,
            writer=writer,
            control=control,
            announcer=announcer,
            install=settings.install(),
            plan_inputs=plan_inputs,
            policies=policy_queue,
        )
        life.start(group_queue.run(groups, workers=settings.reconcile_workers), "reconcilers of elastic groups")

        async def stop_work() -> None:
            """Before the Lease is given back, so that no two ever write."""
            life.stop()  # it was a signal, which kopf has taken over, if nothing else stopped us
            for each in (queue, policy_queue, group_queue):
                each.close()
            await reconciler.stop()

        await handlers.watch(
            lambda found, name: queue.add((found, name)),
            lambda found, name: group_queue.add((found, name)),
            stop_work,
            namespace=namespace,
            stop=life.stopping,
        )
    return life.status


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
