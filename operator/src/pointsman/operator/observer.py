"""What is known of a service now: its objects, its workers' answers and what other objects want of it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Final

from pointsman.api.credentials import mask_credentials
from pointsman.api.protocol.control import WorkerState
from pointsman.api.protocol.names import COMPONENT_LABEL, COMPONENT_WORKER, ROLE_LABEL, ROUTABLE_LABEL, Role
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.kube import resources
from pointsman.kube.client import Kube, Object
from pointsman.kube.mirror import Mirror
from pointsman.kube.pods import Pod, ServiceKey, label_key
from pointsman.operator.announce import Announcer
from pointsman.operator.commands import Commands
from pointsman.operator.control import ControlClient
from pointsman.operator.core.adapters import EngineAdapter
from pointsman.operator.core.install import Install
from pointsman.operator.core.kv_groups import worker_image
from pointsman.operator.core.messages import status as texts
from pointsman.operator.core.naming import SWITCH_ANNOTATION, secret_name
from pointsman.operator.core.plans import pending_workers
from pointsman.operator.core.policies import contradiction
from pointsman.operator.core.problems import Problem, unreadable
from pointsman.operator.core.revision import kv_compatibility
from pointsman.operator.core.snapshot import (
    GatewayDeployment,
    Plan,
    Policy,
    Pool,
    Service,
    Snapshot,
    Switch,
    SwitchClaim,
    Worker,
)
from pointsman.operator.deployments import GatewayDeployments
from pointsman.operator.expectations import Expectations
from pointsman.operator.node_requests import NodeRequests
from pointsman.operator.observe import gateway_of, is_gateway, is_of_group, worker_of
from pointsman.operator.plan_inputs import PlanInputs
from pointsman.operator.state_queries import StateQueries
from pointsman.operator.work_queue import WorkQueue
from pointsman.operator.worker_polls import WorkerPolls
from pointsman.process.clock import SYSTEM_CLOCK, Clock
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET


@dataclass
class Memory:
    """What may be forgotten: a new process starts without it and only asks more."""

    uid: str
    acting_since_s: float  # since when this process has looked at it without finding it paused
    policy: str | None = None  # the PlannerPolicy the service referred to when it was looked at
    policy_said: tuple[int, bool] | None = None  # of which generation it was told, and whether it was being deleted
    rendered_from: tuple[LLMServiceSpec, Install] | None = None  # from these, worker pods of each role can be made
    token: str | None = None
    nats_problem: Problem | None = None  # what the survey found
    create_problems: list[Problem] = field(default_factory=list)
    # by uid: container, and the prefill token budget that it reported last
    budgets: dict[str, tuple[str | None, int | None]] = field(default_factory=dict)
    create_again_s: float = 0.0  # monotonic; until then nothing is created, because the last create was refused


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is wanted of a service beside its own spec."""

    switches: tuple[Switch, ...] = ()
    plans: tuple[Plan, ...] = ()
    policy: Policy | None = None
    routing_set_by: str | None = None
    routing_updated_at: datetime | None = None
    prefill_token_budget: int = DEFAULT_PREFILL_TOKEN_BUDGET
    worker_image: str | None = None
    kv_compatibility: str | None = None


class Observer:
    """All that is read, and :class:`Memory` of each service."""

    def __init__(
        self,
        *,
        kube: Kube,
        pods: Mirror[Pod],
        deployments: GatewayDeployments,
        plan_inputs: PlanInputs,
        expectations: Expectations,
        control: ControlClient,
        commands: Commands,
        announcer: Announcer,
        queue: WorkQueue[ServiceKey],
        install: Install,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.memories: Final[dict[ServiceKey, Memory]] = {}
        self._kube = kube
        self._pods = pods
        self._deployments = deployments
        self._plan_inputs = plan_inputs
        self._expectations = expectations
        self._control = control
        self._commands = commands
        self._queue = queue
        self._install = install
        self._clock = clock
        self._queries = StateQueries(control, announcer)
        self._node_requests = NodeRequests(kube, clock)
        self._polls = WorkerPolls(self._serving, self._state_of, queue.add, clock)

    async def find(self, key: ServiceKey) -> Object | None:
        """The service as it is now, None if it is deleted."""
        return await self._kube.find(resources.LLM_SERVICES, key[1], key[0])

    async def live_policy(self, namespace: str, name: str) -> Policy | None:
        """A policy as the API server has it now, None if there is none."""
        return await self._plan_inputs.policy(namespace, name, live=True)

    def pending_switches(self, key: ServiceKey) -> tuple[Switch, ...]:
        """Switches of the service that have not ended, by the mirror."""
        return self._plan_inputs.pending_switches(key)

    async def poll_workers(self) -> None:
        """Poll the workers that serve, until cancelled."""
        await self._polls.run()

    def _serving(self) -> Iterator[tuple[ServiceKey, Worker]]:
        """The routable workers of all services."""
        for key, memory in self.memories.items():
            for pod in self._pods.by(key):
                if memory.token is not None and _owned_pod(pod, memory.uid):
                    worker = worker_of(pod)
                    if worker.routable:
                        yield key, worker

    async def _state_of(self, key: ServiceKey, worker: Worker) -> WorkerState | None:
        memory = self.memories.get(key)
        if memory is None or memory.token is None:
            return None
        return await self._queries.state(worker, memory.token)

    async def inputs(self, key: ServiceKey, service: Service) -> tuple[Inputs, list[Object], list[Problem]]:
        """Switches, plans and policy of the service, live where something runs.

        Beside them the switches that are not owned yet, and what is wrong with the policy.
        """
        plans = await self._plan_inputs.plans(key, service.uid)
        named = {name for plan in plans if not plan.ended for name in plan.status.switches}
        claims = (SwitchClaim.parse(pod.metadata.annotations.get(SWITCH_ANNOTATION)) for pod in self._pods.by(key))
        claimed = {claim.uid for claim in claims if claim is not None}
        switches, objects = await self._plan_inputs.switches(key, service.uid, claimed=claimed, named=named)
        unowned = [raw for raw in objects if not _is_owned(raw)]
        problems: list[Problem] = []
        policy: Policy | None = None
        if service.spec.policy_ref is not None:
            runs = any(not plan.ended for plan in plans)
            policy = await self._plan_inputs.policy(service.namespace, service.spec.policy_ref.name, live=runs)
            if policy is None:
                problems.append(self._plan_inputs.no_policy(service.namespace, service.spec.policy_ref.name))
            elif refused := contradiction(policy.spec, service.name, service.spec):
                problems.append(Problem(reason=refused[0], message=texts.of_policy(policy.name, refused[1])))
        return Inputs(switches, plans, policy), unowned, problems

    def install_of(self, key: ServiceKey, service: Service, adapter: EngineAdapter, stored: str | None) -> Install:
        """What manifests of its workers are rendered with: the image in it is the one that they run."""

        @cache
        def compatibility_of(image: str) -> str:
            return kv_compatibility(adapter.kv_inputs(service.spec, replace(self._install, worker_image=image)))

        workers = (worker_of(pod) for pod in self._pods.by(key) if _owned_pod(pod, service.uid))
        image = worker_image(
            service,
            default=self._install.worker_image,
            stored=stored,
            workers=workers,
            compatibility_of=compatibility_of,
        )
        return replace(self._install, worker_image=image)

    def workers(self, key: ServiceKey, service: Service) -> tuple[Worker, ...]:
        """The service's workers as the mirror has them, and as our own latest writes left them."""
        workers: list[Worker] = []
        for pod, leaving in self._expectations.over(key, self._pods.by(key)):
            if not _owned_pod(pod, service.uid):
                continue
            uid = pod.metadata.uid
            unproved = self._commands.problem(uid)
            found = worker_of(pod, self._commands.doing(uid), unproved.message if unproved else None)
            container, budget = self.memories[key].budgets.get(uid, (None, None))
            confirmed = budget if container == found.container.id else None
            suspect = self._polls.suspects(uid)
            workers.append(replace(found, terminating=leaving, confirmed_budget=confirmed, suspect=suspect))
        return tuple(sorted(workers, key=lambda worker: worker.name))

    async def snapshot(
        self,
        key: ServiceKey,
        service: Service,
        pools: dict[Role, Pool],
        token: str | None,
        taken_names: frozenset[str],
        inputs: Inputs,
        known: Snapshot | None = None,
    ) -> Snapshot:
        """What is known now; no worker may get one of ``taken_names``.

        With ``known``, what workers and gateways said for it is kept, and nobody is asked.
        """
        workers = self.workers(key, service)
        gateway_pods = [pod for pod in self._pods.by(key) if is_gateway(pod) and not is_of_group(pod)]
        self._commands.keep(key, {worker.uid for worker in workers})
        snapshot = Snapshot(
            now_s=self._clock.now().timestamp(),
            service=service,
            pools=pools,
            workers=workers,
            gateways=tuple(gateway_of(pod) for pod in gateway_pods),
            switches=inputs.switches,
            plans=inputs.plans,
            policy=inputs.policy,
            routing_set_by=inputs.routing_set_by,
            routing_updated_at=inputs.routing_updated_at,
            prefill_token_budget=inputs.prefill_token_budget,
            acting_since_s=self.memories[key].acting_since_s,
            worker_image=inputs.worker_image,
            default_image=self._install.worker_image,
            kv_compatibility=inputs.kv_compatibility,
            taken_names=taken_names,
            gateway_deployment=known.gateway_deployment if known else await self._gateway_deployment(service),
        )
        if known is not None:
            states = {worker.uid: (worker.state, worker.asked) for worker in known.workers}
            said = {gateway.name: gateway for gateway in known.gateways}
            return replace(
                snapshot,
                workers=tuple(
                    replace(worker, state=states[worker.uid][0], asked=states[worker.uid][1])
                    if worker.uid in states
                    else worker
                    for worker in snapshot.workers
                ),
                gateways=tuple(said.get(gateway.name, gateway) for gateway in snapshot.gateways),
            )
        pending = pending_workers(snapshot)
        if pending and inputs.policy is not None:
            reported = await self._node_requests.complete(workers, pending, inputs.policy, service.namespace)
            snapshot = replace(snapshot, workers=reported)
        if token is None:
            return snapshot
        snapshot = await self._queries.fill_in(snapshot, gateway_pods, token)
        self._remember_budgets(key, snapshot)
        for worker in snapshot.workers:
            if worker.state is not None:
                self._polls.answered(worker, worker.state)
        return snapshot

    def unreadable_pods(self, key: ServiceKey) -> list[Problem]:
        """Pods of the service that cannot be read: they may be workers, so none is created in their place."""
        left_out = (found for found in self._pods.unreadable() if label_key(found.metadata) == key)
        return [unreadable("Pod", found.metadata.name, texts.nothing_created(found.why)) for found in left_out]

    def _remember_budgets(self, key: ServiceKey, snapshot: Snapshot) -> None:
        """What workers reported, so that they need not be asked again until the budget or the container changes."""
        memory = self.memories[key]
        reported = {
            worker.uid: (worker.container.id, worker.state.prefill_token_budget)
            for worker in snapshot.workers
            if worker.state is not None
        }
        there = {worker.uid for worker in snapshot.workers}
        memory.budgets = {uid: known for uid, known in (memory.budgets | reported).items() if uid in there}

    async def survey(self) -> None:
        """Ask one serving decode worker of each service whether it reaches NATS, and look where the answer changed.

        It is the one thing that goes wrong without any object saying so. No answer changes nothing: unknown is not bad.
        """
        for key, memory in list(self.memories.items()):
            serving = [pod for pod in self._pods.by(key) if _serves_as(pod, Role.DECODE)]
            if memory.token is None or not serving:
                continue
            asked = worker_of(random.choice(serving))
            state = await self._queries.state(asked, memory.token)
            if state is None or state.nats_connected is None:
                continue
            lost = Problem(
                reason=Reason.NATS_UNREACHABLE,
                message=mask_credentials(texts.nats_unreachable(asked.name, self._install.nats_url)),
            )
            found = None if state.nats_connected else lost
            if (found is None) != (memory.nats_problem is None):
                memory.nats_problem = found
                self._queue.add(key)

    async def _gateway_deployment(self, service: Service) -> GatewayDeployment | None:
        """Live while the service is deleted: nothing may go before the gateway was told to stop."""
        live = service.deleting_since_s is not None
        return await self._deployments.read(service) if live else self._deployments.known(service)

    def refusals(self, snapshot: Snapshot) -> list[Problem]:
        """Workers that started with another control token than the service's Secret has now."""
        refusing = [worker.name for worker in snapshot.workers if worker.control_url in self._control.refused]
        if not refusing:
            return []
        message = texts.token_refused(secret_name(snapshot.service.name), refusing)
        return [Problem(reason=Reason.CONTROL_TOKEN_REFUSED, message=message)]


def _is_owned(switch: Object) -> bool:
    """A service or a plan has it."""
    return any(owner["kind"] in ("LLMService", "Plan") for owner in switch["metadata"].get("ownerReferences") or ())


def _owned_pod(pod: Pod, uid: str) -> bool:
    """A worker of this service: by label and by owner, so that a foreign look-alike is left alone."""
    owner = pod.metadata.controller
    return pod.metadata.labels.get(COMPONENT_LABEL) == COMPONENT_WORKER and owner is not None and owner.uid == uid


def _has_role(pod: Pod, role: Role) -> bool:
    return pod.metadata.labels.get(ROLE_LABEL) == role.label


def _serves_as(pod: Pod, role: Role) -> bool:
    return pod.metadata.labels.get(ROUTABLE_LABEL) == "true" and _has_role(pod, role) and pod.ready
