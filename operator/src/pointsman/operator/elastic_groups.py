"""One look at one elastic group: live GET, its objects made so, its manager asked, status, in one sentence."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import ValidationError

from pointsman.api.protocol.elastic import ElasticState
from pointsman.api.protocol.names import (
    COMPONENT_INSTANCE,
    COMPONENT_LABEL,
    COMPONENT_WORKER,
    ELASTIC_GROUP_LABEL,
)
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup, InstanceCounts
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import Conflict, Forbidden, Invalid, NotFound
from pointsman.kube.mirror import Mirror
from pointsman.kube.pods import Pod, ServiceKey
from pointsman.operator.announce import Announcer
from pointsman.operator.apply import Writer
from pointsman.operator.children import make_all, make_network_policies
from pointsman.operator.control import ControlClient
from pointsman.operator.core.elastic.manifests import group_objects, service_of
from pointsman.operator.core.elastic.news import news
from pointsman.operator.core.elastic.plans import (
    Asked,
    SetInstances,
    group_plan_actions,
    objectives_of,
    pending_instances,
)
from pointsman.operator.core.elastic.status import GroupReport, GroupView, group_report, without_others
from pointsman.operator.core.gateway import endpoint
from pointsman.operator.core.install import Install
from pointsman.operator.core.kv_groups import worker_image
from pointsman.operator.core.messages import groups as group_texts
from pointsman.operator.core.messages import status as texts
from pointsman.operator.core.naming import SET_BY_ANNOTATION, manager_name, secret_name
from pointsman.operator.core.policies import contradiction
from pointsman.operator.core.problems import Problem
from pointsman.operator.core.snapshot import Plan, Policy, Service, Worker
from pointsman.operator.core.unknown_fields import dropped_fields
from pointsman.operator.core.worker_pod import uncounted_gpus
from pointsman.operator.deployments import GatewayDeployments
from pointsman.operator.errors import ControlFailed, NameConflict, NotLeading, Refused
from pointsman.operator.node_requests import NodeRequests
from pointsman.operator.observe import (
    before_plan_of,
    gateway_of,
    is_gateway,
    is_of_group,
    is_of_stateful_set,
    worker_of,
)
from pointsman.operator.plan_inputs import PlanInputs
from pointsman.operator.policies import PolicyKey
from pointsman.operator.work_queue import WorkQueue
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

SETTLING_S: Final = 1.0  # until the next look while something is on its way
LOOK_S: Final = 10.0  # else: what a group computes is seen at its manager only
MAKE_S: Final = 60.0  # its objects are looked at that often, changed or not
RETRY_S: Final = 10.0  # an object that the API server refused is tried again after this


@dataclass
class _Memory:
    """What may be forgotten: a new process only looks more often, and tells no news of before."""

    uid: str
    token: str | None = None
    state: ElasticState | None = None  # as the manager said it last
    said: tuple[Reason, str] | None = None
    problems: list[Problem] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)  # what a plan wanted and the API server did not take
    made_generation: int | None = None
    policy: str | None = None  # that was told that the group follows it, or does not any more
    make_again_s: float = 0.0  # monotonic


class ElasticGroups:
    """Called with a key by the work queue; the same key never twice at once."""

    def __init__(
        self,
        *,
        kube: Kube,
        pods: Mirror[Pod],
        deployments: GatewayDeployments,
        writer: Writer,
        control: ControlClient,
        announcer: Announcer,
        install: Install,
        plan_inputs: PlanInputs,
        policies: WorkQueue[PolicyKey],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._kube = kube
        self._plan_inputs = plan_inputs
        self._policies = policies
        self._pods = pods
        self._deployments = deployments
        self._writer = writer
        self._control = control
        self._announcer = announcer
        self._install = install
        self._clock = clock
        self._node_requests = NodeRequests(kube, clock)
        self._memory: dict[ServiceKey, _Memory] = {}

    async def __call__(self, key: ServiceKey) -> float | None:
        """Look at the group once; returns in how many seconds to look again."""
        try:
            return await self._look(key)
        except Conflict as error:  # somebody wrote meanwhile: what they wrote is looked at next
            log.debug("conflict", extra={"group": "/".join(key), "why": str(error)})
            return 0.1
        except NotLeading:
            return None

    async def _look(self, key: ServiceKey) -> float | None:
        namespace, name = key
        raw = await self._kube.find(resources.ELASTIC_GROUPS, name, namespace)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            # Garbage collection deletes what the group owns; gateway, manager and instances finish what they have.
            self._memory.pop(key, None)
            self._announcer.forget_group(*key)
            return None
        try:
            group = ElasticGroup.model_validate(raw)
        except ValidationError as error:
            self._announcer.invalid(resources.ELASTIC_GROUPS, raw, error)
            return LOOK_S
        memory = self._memory.get(key)
        if memory is None or memory.uid != group.metadata.uid:
            memory = self._memory[key] = _Memory(uid=group.metadata.uid)
        service = service_of(group)
        problems: list[Problem] = []
        if dropped := dropped_fields(ElasticGroup, raw):
            problems.append(Problem(reason=Reason.UNKNOWN_FIELD, message=dropped))
        template = group.spec.instance.template.as_written() if group.spec.instance.template else {}
        if uncounted := uncounted_gpus(template, group.spec.instance.gpus, "instance"):
            problems.append(Problem(reason=Reason.UNCOUNTED_GPUS, message=uncounted))
        if group.spec.paused:
            memory.token = memory.token or await self._writer.control_token(service)
        elif self._must_make(group, memory):
            memory.problems = await self._make(group, service, memory)
            memory.made_generation = group.metadata.generation
            memory.make_again_s = self._clock.monotonic_s() + (RETRY_S if memory.problems else MAKE_S)
        problems += [*memory.problems, *memory.refused]
        plans = await self._plan_inputs.plans((service.namespace, service.name), service.uid, group.kind)
        policy = await self._policy(group, service, memory, plans, problems)
        view = self._view(group, service, await self._state(service, memory, policy, problems))
        outcome = group_report(view, problems, endpoint=endpoint(service), now=self._clock.now())
        self._tell(service, memory, view, outcome)
        has_news = False
        if not group.spec.paused:  # before the status is written: that makes a new version of the group
            before, memory.refused = memory.refused, []
            try:
                await self._carry_out(group, service, view, outcome, policy, plans)
            except (Forbidden, Invalid) as error:  # said with the next status: the rest goes on
                memory.refused = [
                    Problem(reason=Reason.OBJECT_REFUSED, message=group_texts.plan_refused(service.name, str(error)))
                ]
            has_news = before != memory.refused
        if outcome.status != without_others(group.status):
            await self._write_status(service, outcome)
        return LOOK_S if outcome.settled and not has_news else SETTLING_S

    async def _policy(
        self, group: ElasticGroup, service: Service, memory: _Memory, plans: Sequence[Plan], problems: list[Problem]
    ) -> Policy | None:
        """The policy that the group follows; one that is not there, or that it cannot follow, is a problem."""
        name = group.spec.policy_ref.name if group.spec.policy_ref is not None else None
        if name != memory.policy:
            for told in (name, memory.policy):
                if told is not None:
                    self._policies.add((service.namespace, told))
            memory.policy = name
        if name is None:
            return None
        runs = any(not plan.ended for plan in plans)
        policy = await self._plan_inputs.policy(service.namespace, name, live=runs)
        if policy is None:
            problems.append(self._plan_inputs.no_policy(service.namespace, name))
        elif refused := contradiction(policy.spec, service.name, group.spec):
            problems.append(Problem(reason=refused[0], message=texts.of_policy(policy.name, refused[1])))
        return policy

    async def _carry_out(
        self,
        group: ElasticGroup,
        service: Service,
        view: GroupView,
        outcome: GroupReport,
        policy: Policy | None,
        plans: Sequence[Plan],
    ) -> None:
        """The next step of the group's plans."""
        asked = Asked(
            name=service.name,
            namespace=service.namespace,
            spec=group.spec,
            set_by=group.metadata.annotations.get(SET_BY_ANNOTATION),
            plans=plans,
            policy=policy,
            counts=outcome.status.instances or InstanceCounts(),
            instances=view.instances,
            now_s=self._clock.now().timestamp(),
            before_plan=before_plan_of(group.metadata.annotations),
        )
        pending = pending_instances(asked)
        if pending and policy is not None:
            known = await self._node_requests.complete(view.instances, pending, policy, service.namespace)
            asked = replace(asked, instances=known)
        for action in group_plan_actions(asked):
            if isinstance(action, SetInstances):
                await self._writer.set_instances(service, action, group.metadata.resource_version)
                self._announcer.event(service, "Scaled", action.outcome())
            else:
                await self._writer.plan_status(service.namespace, action)
                self._announcer.plan(service, action)

    def _must_make(self, group: ElasticGroup, memory: _Memory) -> bool:
        changed = memory.made_generation != group.metadata.generation
        return changed or self._clock.monotonic_s() >= memory.make_again_s

    async def _make(self, group: ElasticGroup, service: Service, memory: _Memory) -> list[Problem]:
        """All objects of the group. Returns what kept one from being made."""
        try:
            memory.token = await self._writer.ensure_secret(service, memory.token)
            manifests = group_objects(group, replace(self._install, worker_image=self._image(group, service)))
        except NameConflict as error:
            return [Problem(reason=Reason.NAME_CONFLICT, message=str(error))]
        except (Forbidden, Invalid) as error:
            name = secret_name(service.name)
            return [Problem(reason=Reason.OBJECT_REFUSED, message=texts.refused(f"Secret {name}", str(error)))]
        except Refused as error:
            return [Problem(reason=error.reason, message=str(error))]
        problems = await make_all(self._writer, service, manifests, Reason.POD_REFUSED)
        if not problems:
            await self._writer.delete_earlier_binding(service)
        return problems + await make_network_policies(self._writer, service, self._install)

    def _image(self, group: ElasticGroup, service: Service) -> str:
        """Of manager and instances that are created now: all members of a group should run one image."""
        pods = self._pods.by((service.namespace, service.name))
        return worker_image(
            service,
            default=self._install.worker_image,
            stored=group.status.worker_image,
            workers=map(worker_of, filter(_is_instance, pods)),
            compatibility_of=lambda _: "",
        )

    def _view(self, group: ElasticGroup, service: Service, state: ElasticState | None) -> GroupView:
        key = (group.metadata.namespace, group.metadata.name)
        pods = self._pods.by(key)
        return GroupView(
            group=group,
            instances=tuple(sorted(map(worker_of, filter(_is_instance, pods)), key=lambda each: each.name)),
            manager=self._manager(key),
            gateways=tuple(gateway_of(pod) for pod in pods if is_gateway(pod) and is_of_group(pod)),
            gateway_deployment=self._deployments.known(service),
            state=state,
            worker_image=self._image(group, service),
        )

    def _manager(self, key: ServiceKey) -> Worker | None:
        return next((worker_of(pod) for pod in self._pods.by(key) if _is_manager(pod) and not pod.terminating), None)

    async def _state(
        self, service: Service, memory: _Memory, policy: Policy | None, problems: list[Problem]
    ) -> ElasticState | None:
        """The manager's, with the policy's objectives; None: it does not answer. A refused label is a problem."""
        manager = self._manager((service.namespace, service.name))
        if memory.token is None:
            return None
        if manager is None or not manager.pod_ready or manager.control_url is None:
            return None
        try:
            state = await self._control.elastic_state(manager.control_url, memory.token)
            if state.metrics_port != manager.metrics_port:
                try:
                    await self._writer.label_metrics_port(service, manager, state.metrics_port)
                except (Forbidden, Invalid) as error:
                    message = group_texts.port_label_refused(manager.name, str(error))
                    problems.append(Problem(reason=Reason.OBJECT_REFUSED, message=message))
            wanted = objectives_of(policy)
            if state.objectives != wanted:
                state = await self._control.elastic_objectives(manager.control_url, memory.token, wanted)
            return state
        except ControlFailed as error:
            log.info(
                "manager does not answer", extra={"group": service.key, "reason": "ManagerSilent", "why": str(error)}
            )
            return None

    def _tell(self, service: Service, memory: _Memory, view: GroupView, outcome: GroupReport) -> None:
        if view.state is not None:
            if memory.state is not None:
                for item in news(memory.state, view.state):
                    self._announcer.record_group_event(service, item)
            memory.state = view.state
        self._announcer.report_group(service, outcome)
        said, before = (outcome.reason, outcome.sentence), memory.said
        if before is None or before[0] is not outcome.reason:
            log.info("group status", extra={"group": service.key, "reason": outcome.reason, "detail": outcome.sentence})
            degraded = any(each.type == "Degraded" and each.status == "True" for each in outcome.status.conditions)
            self._announcer.event(service, outcome.reason, outcome.sentence, degraded)
        memory.said = said

    async def _write_status(self, service: Service, outcome: GroupReport) -> None:
        manifest = outcome.status.manifest()
        try:
            await self._writer.status(
                resources.ELASTIC_GROUPS, service.name, service.namespace, manifest, uid=service.uid
            )
        except NotFound:  # it was deleted meanwhile
            log.info("group gone before its status was written", extra={"group": service.key})


def _is_instance(pod: Pod) -> bool:
    group = pod.metadata.labels.get(ELASTIC_GROUP_LABEL, "")
    return _has_component(pod, COMPONENT_INSTANCE) and is_of_stateful_set(pod, group)


def _is_manager(pod: Pod) -> bool:
    group = pod.metadata.labels.get(ELASTIC_GROUP_LABEL, "")
    return _has_component(pod, COMPONENT_WORKER) and is_of_stateful_set(pod, manager_name(group))


def _has_component(pod: Pod, component: str) -> bool:
    return is_of_group(pod) and pod.metadata.labels.get(COMPONENT_LABEL) == component
