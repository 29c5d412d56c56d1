"""One look at one service: live GET → snapshot → core → bounded actions → apply → status, ending in one sentence."""

import logging
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any, Final

from pydantic import ValidationError

from pointsman.api.credentials import mask_credentials
from pointsman.api.protocol.control import WorkerState
from pointsman.api.protocol.names import (
    COMPONENT_LABEL,
    COMPONENT_WORKER,
    ROLE_LABEL,
    ROUTABLE_LABEL,
    Role,
)
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.llmservice import LLMService, LLMServiceStatus, Routing
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import Conflict, NotFound
from pointsman.kube.mirror import Mirror
from pointsman.kube.pods import Pod, ServiceKey, label_key
from pointsman.kube.queue import WorkQueue
from pointsman.operator.announce import Announcer
from pointsman.operator.apply import Writer
from pointsman.operator.children import Children
from pointsman.operator.commands import Commands
from pointsman.operator.control import ControlClient
from pointsman.operator.core import actions as act
from pointsman.operator.core.adapters import EngineAdapter, adapter_for
from pointsman.operator.core.decide import decide, next_look_s
from pointsman.operator.core.desired import first_replicas
from pointsman.operator.core.gateway import endpoint
from pointsman.operator.core.install import Install
from pointsman.operator.core.kv_groups import worker_image
from pointsman.operator.core.messages import status as texts
from pointsman.operator.core.naming import SWITCH_ANNOTATION, pool_name, secret_name
from pointsman.operator.core.plans import pending_workers
from pointsman.operator.core.policies import contradiction, objectives_of, with_objectives
from pointsman.operator.core.problems import Problem, unreadable
from pointsman.operator.core.revision import kv_compatibility, revision
from pointsman.operator.core.snapshot import GatewayDeployment, Hold, Policy, Pool, Service, Snapshot, Switch, Worker
from pointsman.operator.core.snapshot import Plan as PlanView
from pointsman.operator.core.status import Report, report
from pointsman.operator.core.switching import no_service
from pointsman.operator.core.unknown_fields import dropped_fields
from pointsman.operator.core.worker_pod import uncounted_gpus
from pointsman.operator.deployments import GatewayDeployments
from pointsman.operator.errors import NotLeading, Refused
from pointsman.operator.execute import Executed, Executor
from pointsman.operator.expectations import Expectations
from pointsman.operator.metrics import OperatorMetrics
from pointsman.operator.node_requests import NodeRequests
from pointsman.operator.observe import gateway_of, is_gateway, is_of_group, service_of, worker_of
from pointsman.operator.plan_inputs import PlanInputs
from pointsman.operator.policies import PolicyKey
from pointsman.operator.refusals import RETRY_S
from pointsman.operator.state_queries import StateQueries
from pointsman.operator.streams import PrefillStreams
from pointsman.operator.worker_polls import WorkerPolls
from pointsman.process.clock import SYSTEM_CLOCK, Clock
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET

log = logging.getLogger(__name__)

RETRY_CREATE_S: Final = 10.0  # a pod the API server refused is tried again after this


@dataclass
class _Memory:
    """What may be forgotten: a new process starts without it and only asks more."""

    uid: str
    acting_since_s: float  # since when this process has looked at it without finding it paused
    policy: str | None = None  # the PlannerPolicy the service referred to when it was looked at
    policy_said: tuple[int, bool] | None = None  # of which generation it was told, and whether it was being deleted
    token: str | None = None
    nats_problem: Problem | None = None  # what the survey found
    create_problems: list[Problem] = field(default_factory=list)
    # by uid: container, and the prefill token budget that it reported last
    budgets: dict[str, tuple[str | None, int | None]] = field(default_factory=dict)
    create_again_s: float = 0.0  # monotonic; until then nothing is created, because the last create was refused


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What is wanted of a service beside its own spec."""

    switches: tuple[Switch, ...] = ()
    plans: tuple[PlanView, ...] = ()
    policy: Policy | None = None
    routing_set_by: str | None = None
    routing_updated_at: datetime | None = None
    prefill_token_budget: int = DEFAULT_PREFILL_TOKEN_BUDGET
    worker_image: str | None = None
    kv_compatibility: str | None = None


@dataclass(frozen=True, slots=True)
class _Renderer:
    """An engine adapter bound to one service."""

    adapter: EngineAdapter
    service: Service
    install: Install

    def revision(self, role: Role) -> str:
        """Of workers of a role."""
        return revision(self.service.spec, role)

    @property
    def kv_compatibility(self) -> str:
        """Of prefill and decode workers."""
        return kv_compatibility(self.adapter.kv_inputs(self.service.spec, self.install))

    def __call__(self, name: str, role: Role) -> dict[str, Any]:
        return self.adapter.pod(self.service, self.install, name, role)


class Reconciler:
    """Called with a key by the work queue; the same key never twice at once."""

    def __init__(
        self,
        *,
        kube: Kube,
        pods: Mirror[Pod],
        deployments: GatewayDeployments,
        plan_inputs: PlanInputs,
        queue: WorkQueue[ServiceKey],
        policies: WorkQueue[PolicyKey],
        writer: Writer,
        expectations: Expectations,
        control: ControlClient,
        announcer: Announcer,
        metrics: OperatorMetrics,
        streams: PrefillStreams,
        install: Install,
        resync_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._kube = kube
        self._pods = pods
        self._deployments = deployments
        self._plan_inputs = plan_inputs
        self._queue = queue
        self._policies = policies
        self._writer = writer
        self._expectations = expectations
        self._announcer = announcer
        self._control = control
        self._queries = StateQueries(control, announcer)
        self._commands = Commands(control, queue, announcer, metrics, clock)
        self._executor = Executor(writer, self._commands, queue, announcer, metrics, streams, clock)
        self._children = Children(writer, pods, install, resync_s, clock)
        self._node_requests = NodeRequests(kube, clock)
        self._streams = streams
        self._metrics = metrics
        self._install = install
        self._resync_s = resync_s
        self._clock = clock
        self._memory: dict[ServiceKey, _Memory] = {}
        self._polls = WorkerPolls(self._serving, self._state_of, queue.add, clock)

    async def poll_workers(self) -> None:
        """Poll the workers that serve, until cancelled."""
        await self._polls.run()

    def _serving(self) -> Iterator[tuple[ServiceKey, Worker]]:
        """The routable workers of all services."""
        for key, memory in self._memory.items():
            for pod in self._pods.by(key):
                if memory.token is not None and _owned_pod(pod, memory.uid):
                    worker = worker_of(pod)
                    if worker.routable:
                        yield key, worker

    async def _state_of(self, key: ServiceKey, worker: Worker) -> WorkerState | None:
        memory = self._memory.get(key)
        if memory is None or memory.token is None:
            return None
        return await self._queries.state(worker, memory.token)

    async def stop(self) -> None:
        """Cancel what is being asked of workers; all of it may be asked again by the next leader."""
        await self._commands.stop()

    async def __call__(self, key: ServiceKey) -> float | None:
        """Look at the service once; returns in how many seconds to look again."""
        began_s = self._clock.monotonic_s()
        outcome = "error"
        try:
            wait_s, outcome = await self._look(key)
            return wait_s
        except Conflict as error:
            # Somebody wrote meanwhile: what they wrote is looked at next.
            outcome = "conflict"
            log.debug("service=%s/%s conflict: %s", *key, error)
            return 0.1
        except NotLeading:
            outcome = "not-leading"
            return None
        finally:
            self._metrics.reconciles.labels(outcome).inc()
            self._metrics.reconcile_seconds.observe(self._clock.monotonic_s() - began_s)

    # --- one look, step by step ---

    async def _look(self, key: ServiceKey) -> tuple[float | None, str]:
        namespace, name = key
        raw = await self._kube.find(resources.LLM_SERVICES, name, namespace)
        if raw is None:
            await self._refuse_switches(key)
            self._forget(key)
            self._queue.forget(key)
            return None, "gone"
        try:
            found = LLMService.model_validate(raw)
        except ValidationError as error:
            self._announcer.invalid(resources.LLM_SERVICES, raw, error)
            return self._resync(), "invalid"
        memory = self._remember(key, found.metadata.uid)
        service = service_of(found)
        problems: list[Problem] = []
        if dropped := dropped_fields(LLMService, raw):
            problems.append(Problem(reason=Reason.UNKNOWN_FIELD, message=dropped))
        for role, of in ((Role.DECODE, "worker"), (Role.ENCODE, "encode")):
            template = service.spec.template_of(role) if role in service.spec.roles else {}
            if uncounted := uncounted_gpus(template, service.spec.gpus_of(role), of):
                problems.append(Problem(reason=Reason.UNCOUNTED_GPUS, message=uncounted))

        render = self._renderer(key, service, found.status.worker_image, problems)
        deleting = service.deleting_since_s is not None
        touch = not service.spec.paused and not deleting
        if service.spec.paused:
            memory.acting_since_s = self._clock.now().timestamp()
        self._follow(key, memory, service)
        wishes = await self._wishes(key, service, problems)
        pools, unmade = await self._find_pools(key, service, found.status, wishes, make=touch and service.has_finalizer)
        problems += unmade
        if wishes.policy and any(pool.owned_replicas not in (None, pool.replicas) for pool in pools.values()):
            # Others wrote replicas. The policy may have handed the pools over to them just before.
            policy = await self._plan_inputs.policy(service.namespace, wishes.policy.name, live=True)
            wishes = replace(wishes, policy=policy)
        if touch and service.has_finalizer and render is not None:
            await self._children.ensure(service, pools)
        token = memory.token = await self._children.token(service)

        if routed := found.status.routing:
            budget = routed.prefill_token_budget or DEFAULT_PREFILL_TOKEN_BUDGET
            set_by, at = routed.set_by, routed.updated_at
            wishes = replace(wishes, routing_set_by=set_by, routing_updated_at=at, prefill_token_budget=budget)
        wishes = replace(
            wishes,
            worker_image=render.install.worker_image if render else found.status.worker_image,
            kv_compatibility=render.kv_compatibility if render else None,
        )
        snapshot = await self._snapshot(key, service, pools, token, wishes)
        unread = self._unreadable_pods(key)
        problems += unread
        # Not before the Secret is its own: workers that took a predecessor's token would be strangers.
        may_create = token is not None and not unread and self._clock.monotonic_s() >= memory.create_again_s
        decision = decide(snapshot, render if may_create else None)
        executed = await self._executor.execute(raw, snapshot, decision.actions, token)
        if may_create:
            memory.create_problems = executed.not_created
            again_s = self._clock.monotonic_s() + RETRY_CREATE_S
            memory.create_again_s = again_s if executed.not_created else 0.0
        problems += [*self._children.problems(service), *memory.create_problems, *executed.refused]
        unproved = (self._commands.problem(worker.uid) for worker in snapshot.workers)
        problems += [problem for problem in (*unproved, memory.nats_problem) if problem is not None]
        problems += self._refusals(snapshot)

        removed = any(isinstance(action, act.RemoveFinalizer) for action in decision.actions)
        if removed and not executed.refused:
            log.info("service=%s/%s reason=Deleted %s", namespace, name, decision.actions[-1].why)
            return self._resync(), "deleted"
        after = await self._snapshot(key, service, pools, token, wishes, known=snapshot)
        routing = next((a for a in reversed(decision.actions) if isinstance(a, act.SetRouting)), None)
        outcome = report(
            after,
            problems,
            endpoint=endpoint(service, self._install),
            revision=render.revision(Role.DECODE) if render else None,
            before=_routed(found.status, routing, wishes.policy),
            now=self._clock.now(),
        )
        await self._write_status(service, found, snapshot.pools, outcome)
        self._announcer.outcome(service, outcome)
        return self._next(after, decision.truncated, executed, memory), "done"

    def _refusals(self, snapshot: Snapshot) -> list[Problem]:
        """Workers that started with another control token than the service's Secret has now."""
        refusing = [worker.name for worker in snapshot.workers if worker.control_url in self._control.refused]
        if not refusing:
            return []
        message = texts.token_refused(secret_name(snapshot.service.name), refusing)
        return [Problem(reason=Reason.CONTROL_TOKEN_REFUSED, message=message)]

    def _remember(self, key: ServiceKey, uid: str) -> _Memory:
        memory = self._memory.get(key)
        if memory is None or memory.uid != uid:  # a service of that name was deleted and made anew
            self._forget(key)
            memory = self._memory[key] = _Memory(uid=uid, acting_since_s=self._clock.now().timestamp())
        return memory

    def _follow(self, key: ServiceKey, memory: _Memory, service: Service) -> None:
        """Remember the policy the service refers to, and have policies say anew who follows them, and how well."""
        policy = service.spec.policy_ref.name if service.spec.policy_ref else None
        said = (service.generation, service.deleting_since_s is not None)
        if (memory.policy, memory.policy_said) != (policy, said):
            for name in {memory.policy, policy}:
                if name is not None:
                    self._policies.add((key[0], name))
        memory.policy, memory.policy_said = policy, said

    def _forget(self, key: ServiceKey) -> None:
        memory = self._memory.pop(key, None)
        if memory is not None:
            if memory.policy is not None:
                self._policies.add((key[0], memory.policy))
            self._announcer.forget(*key, memory.uid)
            self._children.forget(memory.uid)
            self._executor.forget(memory.uid)
            self._commands.keep(key, ())

    def _install_of(self, key: ServiceKey, service: Service, adapter: EngineAdapter, stored: str | None) -> Install:
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

    def _renderer(
        self, key: ServiceKey, service: Service, stored_image: str | None, problems: list[Problem]
    ) -> _Renderer | None:
        try:
            adapter = adapter_for(service.spec)
            adapter.check(service.spec)
            renderer = _Renderer(adapter, service, self._install_of(key, service, adapter, stored_image))
            for role in service.spec.roles:
                renderer("probe", role)  # a template that cannot be merged is refused as a whole
        except Refused as error:
            problems.append(Problem(reason=error.reason, message=str(error)))
            return None
        return renderer

    async def _find_pools(
        self, key: ServiceKey, service: Service, status: LLMServiceStatus, wishes: _Wishes, *, make: bool
    ) -> tuple[dict[Role, Pool], list[Problem]]:
        """The service's pools. One that somebody deleted is made anew with the number of its workers."""
        workers = self._workers(key, service)
        before = Snapshot(now_s=0.0, service=service, pools={}, workers=workers, switches=wishes.switches)

        def replicas(role: Role) -> int:
            counts = status.pools.of(role) if status.pools is not None else None
            return first_replicas(before, role, (counts.desired if counts is not None else None) or 0)

        had_encode = status.pools is not None and status.pools.encode is not None
        had_encode = had_encode or any(worker.role is Role.ENCODE for worker in workers)
        return await self._children.pools(service, replicas, make=make, had_encode=had_encode)

    def _workers(self, key: ServiceKey, service: Service) -> tuple[Worker, ...]:
        """The service's workers as the mirror has them, and as our own latest writes left them."""
        workers: list[Worker] = []
        for pod, leaving in self._expectations.over(key, self._pods.by(key)):
            if not _owned_pod(pod, service.uid):
                continue
            uid = pod.metadata.uid
            unproved = self._commands.problem(uid)
            found = worker_of(pod, self._commands.doing(uid), unproved.message if unproved else None)
            container, budget = self._memory[key].budgets.get(uid, (None, None))
            confirmed = budget if container == found.container.id else None
            suspect = self._polls.suspects(uid)
            workers.append(replace(found, terminating=leaving, confirmed_budget=confirmed, suspect=suspect))
        return tuple(sorted(workers, key=lambda worker: worker.name))

    async def _snapshot(
        self,
        key: ServiceKey,
        service: Service,
        pools: dict[Role, Pool],
        token: str | None,
        wishes: _Wishes,
        known: Snapshot | None = None,
    ) -> Snapshot:
        """What is known now. With ``known``, what workers and gateways said for it is kept, and nobody is asked."""
        workers = self._workers(key, service)
        gateway_pods = [pod for pod in self._pods.by(key) if is_gateway(pod) and not is_of_group(pod)]
        self._commands.keep(key, {worker.uid for worker in workers})
        snapshot = Snapshot(
            now_s=self._clock.now().timestamp(),
            service=service,
            pools=pools,
            workers=workers,
            gateways=tuple(gateway_of(pod) for pod in gateway_pods),
            switches=wishes.switches,
            plans=wishes.plans,
            policy=wishes.policy,
            routing_set_by=wishes.routing_set_by,
            routing_updated_at=wishes.routing_updated_at,
            prefill_token_budget=wishes.prefill_token_budget,
            acting_since_s=self._memory[key].acting_since_s,
            worker_image=wishes.worker_image,
            default_image=self._install.worker_image,
            kv_compatibility=wishes.kv_compatibility,
            taken_names=frozenset(self._executor.strangers.get(service.uid, ())),
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
        if pending and wishes.policy is not None:
            reported = await self._node_requests.complete(workers, pending, wishes.policy, service.namespace)
            snapshot = replace(snapshot, workers=reported)
        if token is None:
            return snapshot
        snapshot = await self._queries.fill_in(snapshot, gateway_pods, token)
        self._remember_budgets(key, snapshot)
        for worker in snapshot.workers:
            if worker.state is not None:
                self._polls.answered(worker, worker.state)
        return snapshot

    def _unreadable_pods(self, key: ServiceKey) -> list[Problem]:
        """Pods of the service that cannot be read: they may be workers, so none is created in their place."""
        left_out = (found for found in self._pods.unreadable() if label_key(found.metadata) == key)
        return [unreadable("Pod", found.metadata.name, texts.nothing_created(found.why)) for found in left_out]

    def _remember_budgets(self, key: ServiceKey, snapshot: Snapshot) -> None:
        """What workers reported, so that they need not be asked again until the budget or the container changes."""
        memory = self._memory[key]
        reported = {
            worker.uid: (worker.container.id, worker.state.prefill_token_budget)
            for worker in snapshot.workers
            if worker.state is not None
        }
        there = {worker.uid for worker in snapshot.workers}
        memory.budgets = {uid: known for uid, known in (memory.budgets | reported).items() if uid in there}

    async def _wishes(self, key: ServiceKey, service: Service, problems: list[Problem]) -> _Wishes:
        """Switches, plans and policy of the service, live where something runs."""
        plans = await self._plan_inputs.plans(key, service.uid)
        named = {name for plan in plans if not plan.ended for name in plan.status.switches}
        holds = (Hold.parse(pod.metadata.annotations.get(SWITCH_ANNOTATION)) for pod in self._pods.by(key))
        held = {hold.uid for hold in holds if hold is not None}
        switches, objects = await self._plan_inputs.switches(key, service.uid, held=held, named=named)
        for raw in objects:
            if not any(
                owner["kind"] in ("LLMService", "Plan") for owner in raw["metadata"].get("ownerReferences") or ()
            ):
                problem = await self._executor.own_switch(service, raw)
                problems += [problem] if problem is not None else []
        policy: Policy | None = None
        if service.spec.policy_ref is not None:
            runs = any(not plan.ended for plan in plans)
            policy = await self._plan_inputs.policy(service.namespace, service.spec.policy_ref.name, live=runs)
            if policy is None:
                problems.append(self._plan_inputs.no_policy(service.namespace, service.spec.policy_ref.name))
            elif refused := contradiction(policy.spec, service.name, service.spec):
                problems.append(Problem(reason=refused[0], message=texts.of_policy(policy.name, refused[1])))
        return _Wishes(switches, plans, policy)

    async def _refuse_switches(self, key: ServiceKey) -> None:
        """There is no such service: whoever made a switch for it is told so."""
        namespace, name = key
        for switch in self._plan_inputs.pending_switches(key):
            await self._writer.switch_status(namespace, no_service(switch, name, self._clock.now()))

    def policy_changed(self, namespace: str, name: str) -> None:
        """Look again at the services that refer to that policy."""
        for key, memory in self._memory.items():
            if key[0] == namespace and memory.policy == name:
                self._queue.add(key)

    async def survey(self) -> None:
        """Ask one serving decode worker of each service whether it reaches NATS, and look where the answer changed.

        It is the one thing that goes wrong without any object saying so. No answer changes nothing: unknown is not bad.
        Streams that could not be deleted while NATS was down are tried again.
        """
        for key, memory in list(self._memory.items()):
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
        await self._streams.sweep()

    async def _gateway_deployment(self, service: Service) -> GatewayDeployment | None:
        """Live while the service is deleted: nothing may go before the gateway was told to stop."""
        live = service.deleting_since_s is not None
        return await self._deployments.read(service) if live else self._deployments.known(service)

    async def _write_status(
        self, service: Service, found: LLMService, pools: Mapping[Role, Pool], outcome: Report
    ) -> None:
        for role, status in outcome.pools.items():
            if pools[role].status != status:
                name = pool_name(service.name, role)
                manifest = status.manifest()
                try:
                    await self._writer.status(
                        resources.WORKER_POOLS, name, service.namespace, manifest, uid=pools[role].uid
                    )
                except NotFound:  # its namespace is going, or somebody deleted it: the next look makes it anew
                    log.info("pool gone before its status was written", extra={"service": service.name, "pool": name})
        # The service last: whoever sees it ready finds its pools as it says.
        said = {item.type for item in outcome.status.conditions}
        ours = tuple(item for item in found.status.conditions if item.type in said)
        if found.status.model_copy(update={"conditions": ours}) != outcome.status:
            # Of the routing numbers the operator applies the objectives alone: all others have owners of their own.
            manifest = outcome.status.model_copy(update={"routing": objectives_of(outcome.status.routing)}).manifest()
            await self._writer.status(
                resources.LLM_SERVICES, service.name, service.namespace, manifest, uid=service.uid
            )

    def _next(self, after: Snapshot, truncated: bool, executed: Executed, memory: _Memory) -> float:
        if truncated and executed.done:
            return 0.0
        waits = [self._resync()]
        if executed.refused:
            waits.append(RETRY_S)
        look_s = next_look_s(after)
        if look_s is not None:
            waits.append(look_s)
        if executed.done:
            waits.append(0.05)  # the mirror will say so too; this is for the change it merges or misses
        now_s = self._clock.monotonic_s()
        due_s = (memory.create_again_s, self._children.due_s(after.service))
        waits += [at_s - now_s for at_s in due_s if at_s > now_s]
        return min(waits)

    def _resync(self) -> float:
        return self._resync_s * random.uniform(0.9, 1.1)


def _owned_pod(pod: Pod, uid: str) -> bool:
    """A worker of this service: by label and by owner, so that a stranger's look-alike is left alone."""
    owner = pod.metadata.controller
    return pod.metadata.labels.get(COMPONENT_LABEL) == COMPONENT_WORKER and owner is not None and owner.uid == uid


def _has_role(pod: Pod, role: Role) -> bool:
    return pod.metadata.labels.get(ROLE_LABEL) == role.label


def _serves_as(pod: Pod, role: Role) -> bool:
    return pod.metadata.labels.get(ROUTABLE_LABEL) == "true" and _has_role(pod, role) and pod.ready


def _routed(status: LLMServiceStatus, action: act.SetRouting | None, policy: Policy | None) -> LLMServiceStatus:
    """The status with the routing numbers of a plan and the objectives of the policy."""
    routing = status.routing
    if action is not None:
        routing = Routing(**action.routing.model_dump(), set_by=action.set_by)
    return status.model_copy(update={"routing": with_objectives(routing, policy)})


def plan_key(plan: Plan) -> ServiceKey:
    """The service a plan is about."""
    return plan.metadata.namespace, plan.spec.service_ref.name


def switch_key(switch: RoleSwitch) -> ServiceKey:
    """The service a role switch is about."""
    return switch.metadata.namespace, switch.spec.service_ref.name
