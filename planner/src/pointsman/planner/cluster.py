"""What the planner sees of services in the API server, by mirrors."""

import asyncio
from collections.abc import Collection, Hashable, Iterable, Iterator
from statistics import median_low
from typing import Final, NamedTuple

from pointsman.api.protocol.names import (
    COMPONENT_GATEWAY,
    COMPONENT_INSTANCE,
    COMPONENT_LABEL,
    COMPONENT_WORKER,
    DRAIN_STARTED_ANNOTATION,
    ELASTIC_GROUP_LABEL,
    ENGINE_PORT,
    GATEWAY_PORT,
    LANGUAGE_ROLES,
    ROLE_LABEL,
    ROUTABLE_LABEL,
    SERVICE_LABEL,
    Role,
    address_url,
)
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.mirror import Mirror
from pointsman.kube.pods import Pod, ServiceKey, service_key
from pointsman.planner.core.types import Worker, WorkerCondition

_GROUP: Final = "ElasticGroup"
LONGEST_START_S: Final = 3600.0  # a pod that became ready later was ready before


class Target(NamedTuple):
    """A pod whose /metrics is read. ``key`` is its uid: a new pod of the old name begins anew."""

    key: str
    url: str
    pod: Pod

    @property
    def is_ready(self) -> bool:
        """Whether Kubernetes sends it requests."""
        return self.pod.ready and not self.pod.terminating


class Cluster:
    """Mirrors of services, policies, pods, switches and plans."""

    def __init__(self, kube: Kube, namespace: str | None) -> None:
        self.services = Mirror(kube, resources.LLM_SERVICES, LLMService, namespace=namespace)
        self.groups = Mirror(kube, resources.ELASTIC_GROUPS, ElasticGroup, namespace=namespace)
        self.policies = Mirror(kube, resources.PLANNER_POLICIES, PlannerPolicy, namespace=namespace)
        self.pods = Mirror(
            kube, resources.PODS, Pod, namespace=namespace, label_selector=SERVICE_LABEL, index=service_key
        )
        self.switches = Mirror(kube, resources.ROLE_SWITCHES, RoleSwitch, namespace=namespace, index=_service_of_switch)
        self.plans = Mirror(kube, resources.PLANS, Plan, namespace=namespace, index=_service_of_plan)
        self._mirrors = (self.services, self.policies, self.pods, self.switches, self.plans)

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        await asyncio.gather(*(mirror.run() for mirror in (*self._mirrors, self.groups)))

    async def synced(self) -> None:
        """Wait until every mirror has its first list, but for elastic groups: a cluster may not have that kind yet."""
        for mirror in self._mirrors:
            await mirror.synced.wait()

    def planned(self) -> Iterator[tuple[ServiceKey, LLMService, PlannerPolicy]]:
        """Services with a policy that is there."""
        for service in self.services.objects():
            reference = service.spec.policy_ref
            policy = self.policies.get(reference.name, service.metadata.namespace) if reference else None
            if policy is not None and service.metadata.deletion_timestamp is None:
                yield (service.metadata.namespace, service.metadata.name), service, policy

    def planned_groups(self) -> Iterator[tuple[ServiceKey, ElasticGroup, PlannerPolicy]]:
        """Elastic groups with a policy that is there."""
        for group in self.groups.objects():
            reference = group.spec.policy_ref
            policy = self.policies.get(reference.name, group.metadata.namespace) if reference else None
            if policy is not None and group.metadata.deletion_timestamp is None:
                yield (group.metadata.namespace, group.metadata.name), group, policy

    def unplanned(self) -> Iterator[tuple[ServiceKey, LLMService]]:
        """Services without a policy, or with one that is not there."""
        planned = {key for key, _, _ in self.planned()}
        for service in self.services.objects():
            key = (service.metadata.namespace, service.metadata.name)
            if key not in planned and service.metadata.deletion_timestamp is None:
                yield key, service

    def targets(self, key: ServiceKey, component: str) -> list[Target]:
        """The pods of a service that have an address and run."""
        return [target for target in self._addressed(key, component) if not target.pod.terminating]

    def gateways(self, key: ServiceKey, known: Collection[str] = ()) -> list[Target]:
        """Gateway pods that accept requests: ready ones, and those that are ready no more, as clients and other nodes
        learn that later. One that starts has no requests yet: it is not among the ``known`` ones, by target key."""
        return [target for target in self._addressed(key, COMPONENT_GATEWAY) if target.is_ready or target.key in known]

    def _addressed(self, key: ServiceKey, component: str) -> Iterator[Target]:
        port = ENGINE_PORT if component == COMPONENT_WORKER else GATEWAY_PORT
        for pod in self.pods.by(key):
            if pod.metadata.labels.get(COMPONENT_LABEL) == component and pod.status.pod_ip and not pod.finished:
                yield Target(pod.metadata.uid, f"{address_url('http', pod.status.pod_ip, port)}/metrics", pod)

    def workers(self, key: ServiceKey, gpus: int, now_s: float) -> list[tuple[Target | None, Worker]]:
        """The worker pods of a service, with their target where they have an address; ``now_s`` is Unix time."""
        targets = {target.key: target for target in self.targets(key, COMPONENT_WORKER)}
        switching = {
            s.status.worker_uid: s for s in self.switches.by(key) if s.status.phase and not s.status.phase.ended
        }
        found: list[tuple[Target | None, Worker]] = []
        for pod, role in self._worker_pods(key, LANGUAGE_ROLES, now_s):
            condition = _condition(pod)
            if condition is not WorkerCondition.DRAINING and pod.metadata.uid in switching:
                condition = WorkerCondition.SWITCHING
                role = switching[pod.metadata.uid].spec.to_role
            found.append((targets.get(pod.metadata.uid), Worker(pod.metadata.name, role, condition, gpus=max(gpus, 1))))
        return found

    def encode_workers(self, key: ServiceKey, gpus: int, now_s: float) -> list[tuple[Target | None, Worker]]:
        """The same of encode workers."""
        targets = {target.key: target for target in self.targets(key, COMPONENT_WORKER)}
        return [
            (targets.get(pod.metadata.uid), Worker(pod.metadata.name, role, _condition(pod), gpus=max(gpus, 1)))
            for pod, role in self._worker_pods(key, (Role.ENCODE,), now_s)
        ]

    def _worker_pods(self, key: ServiceKey, roles: Collection[Role], now_s: float) -> Iterator[tuple[Pod, Role]]:
        """The worker pods of these roles that hold GPUs, each with its role."""
        for pod in self.pods.by(key):
            role = Role.from_label(pod.metadata.labels.get(ROLE_LABEL))
            if pod.metadata.labels.get(COMPONENT_LABEL) != COMPONENT_WORKER or pod.finished:
                continue
            if role is None or role not in roles:
                continue
            if pod.lost_at_s is not None and now_s >= pod.lost_at_s:
                continue  # the operator gives it up as well: its GPUs are on a node that is lost
            yield pod, role

    def start_s(self, key: ServiceKey, service: LLMService) -> float | None:
        """Seconds from the creation of the service's worker pods until their containers were ready; of the same model,
        image and GPUs in other services where none of its own shows it. None: no pod does."""
        if (own := _typical_start_s(pod for pod in self.pods.by(key) if _is_worker(pod))) is not None:
            return own
        others = (
            pod
            for other in self.services.objects()
            if _starts_alike(other, service)
            for pod in self.pods.by((other.metadata.namespace, other.metadata.name))
        )
        return _typical_start_s(pod for pod in others if _is_worker(pod))

    def group_start_s(self, key: ServiceKey) -> float | None:
        """The same of an elastic group's instances."""
        instances = (pod for pod in self.pods.by(key) if pod.metadata.labels.get(COMPONENT_LABEL) == COMPONENT_INSTANCE)
        return _typical_start_s(instances)

    def manager(self, key: ServiceKey) -> Target | None:
        """The pod of an elastic group's manager, once it is ready."""
        found = self.targets(key, COMPONENT_WORKER)
        return next((t for t in found if ELASTIC_GROUP_LABEL in t.pod.metadata.labels and t.pod.ready), None)

    def instances(self, key: ServiceKey, gpus: int) -> tuple[Worker, ...]:
        """The instances of an elastic group. They have no roles; all are shown as decode workers."""
        found = []
        for pod in self.pods.by(key):
            if pod.metadata.labels.get(COMPONENT_LABEL) != COMPONENT_INSTANCE or pod.finished:
                continue
            condition = WorkerCondition.ACTIVE if pod.ready else WorkerCondition.STARTING
            if pod.terminating:
                condition = WorkerCondition.DRAINING
            found.append(Worker(pod.metadata.name, Role.DECODE, condition, gpus=max(gpus, 1)))
        return tuple(sorted(found, key=lambda worker: worker.name))

    def plans_of_group(self, key: ServiceKey) -> tuple[Plan, ...]:
        """Of an elastic group."""
        return self.plans.by((_GROUP, *key))

    def is_switching(self, key: ServiceKey) -> bool:
        """A role switch of the service has not ended."""
        return any(not _ended(switch) for switch in self.switches.by(key))


def _is_worker(pod: Pod) -> bool:
    """Whether it is a prefill or decode worker that serves. A group's manager is no worker of a role."""
    role = Role.from_label(pod.metadata.labels.get(ROLE_LABEL))
    return role in LANGUAGE_ROLES and pod.metadata.labels.get(COMPONENT_LABEL) == COMPONENT_WORKER


def _starts_alike(other: LLMService, service: LLMService) -> bool:
    ours, theirs = service.spec, other.spec
    return (ours.model.source, ours.worker.gpus, ours.engine) == (
        theirs.model.source,
        theirs.worker.gpus,
        theirs.engine,
    )


def _typical_start_s(pods: Iterable[Pod]) -> float | None:
    """Of pods that are ready, the lower median from creation until their containers were: one that was not ready later
    shows too much. (``Ready`` has a readiness gate too, that a role switch closes for a moment.)"""
    took_s = [
        (ready.last_transition_time - created).total_seconds()
        for pod in pods
        if (ready := pod.condition("ContainersReady")) is not None
        and ready.status == "True"
        and ready.last_transition_time is not None
        and (created := pod.metadata.creation_timestamp) is not None
        and not any(container.restart_count for container in pod.status.container_statuses)
    ]
    return median_low(known) if (known := [s for s in took_s if 0 < s <= LONGEST_START_S]) else None


def _ended(made: RoleSwitch) -> bool:
    return made.status.phase is not None and made.status.phase.ended


def _condition(pod: Pod) -> WorkerCondition:
    """Of a worker that no switch has."""
    if pod.terminating or DRAIN_STARTED_ANNOTATION in pod.metadata.annotations:
        return WorkerCondition.DRAINING
    is_routable = pod.ready and pod.metadata.labels.get(ROUTABLE_LABEL) == "true"
    return WorkerCondition.ACTIVE if is_routable else WorkerCondition.STARTING


def _service_of_switch(switch: RoleSwitch) -> ServiceKey:
    return switch.metadata.namespace, switch.spec.service_ref.name


def _service_of_plan(plan: Plan) -> Hashable:
    key = plan.metadata.namespace, plan.spec.service_ref.name
    return (_GROUP, *key) if plan.spec.service_ref.kind == _GROUP else key
