"""One look at one service: live GET → snapshot → core → bounded actions → apply → status, ending in one sentence."""

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pydantic import ValidationError

from pointsman.api.protocol.control import WorkerState
from pointsman.api.protocol.names import (
    COMPONENT_GATEWAY,
    COMPONENT_LABEL,
    COMPONENT_WORKER,
    SERVICE_LABEL,
    Role,
)
from pointsman.api.v1alpha1.conditions import ConditionType, Reason
from pointsman.api.v1alpha1.llmservice import LLMService, LLMServiceSpec, LLMServiceStatus, Routing
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.api.v1alpha1.roleswitch import RoleSwitch, SwitchPhase
from pointsman.api.v1alpha1.workerpool import WorkerPool
from pointsman.kube import resources
from pointsman.kube.client import Kube, Object
from pointsman.kube.clock import SYSTEM_CLOCK, Clock
from pointsman.kube.errors import AlreadyExists, Conflict, Forbidden, Invalid
from pointsman.kube.events import EventRecorder, Reference
from pointsman.kube.mirror import Mirror
from pointsman.kube.pods import Pod
from pointsman.kube.queue import WorkQueue
from pointsman.operator.apply import Writer
from pointsman.operator.control import ControlClient
from pointsman.operator.core import actions as act
from pointsman.operator.core.adapters import EngineAdapter, adapter_for
from pointsman.operator.core.children import disruption_budget
from pointsman.operator.core.desired import pool_target
from pointsman.operator.core.diff import decide, gateways_must_report, next_look_s, workers_to_ask
from pointsman.operator.core.gateway import endpoint, gateway_objects
from pointsman.operator.core.install import Install
from pointsman.operator.core.naming import SWITCH_ANNOTATION, gateway_name, pool_name
from pointsman.operator.core.revision import kv_compatibility, revision
from pointsman.operator.core.snapshot import GatewayPod, Policy, Pool, Service, Snapshot, Switch, Worker
from pointsman.operator.core.snapshot import Plan as PlanView
from pointsman.operator.core.status import Problem, Report, report
from pointsman.operator.core.switching import no_service
from pointsman.operator.decisions import Decisions
from pointsman.operator.errors import ControlFailed, NameConflict, NotLeading, Refused
from pointsman.operator.metrics import OperatorMetrics
from pointsman.operator.observe import gateway_of, owner_in_words, pool_of, service_of, worker_of
from pointsman.operator.pods import Expectations, ServiceKey

log = logging.getLogger(__name__)

CONCURRENT_ACTIONS: Final = 16  # of one pass
CONCURRENT_QUESTIONS: Final = 64  # of this process
RETRY_PROBLEM_S: Final = 10.0  # an object the API server refused is tried again after this
RETRY_COMMAND_S: Final = (1.0, 30.0)  # a worker that could not take its role or prove it: doubling between these


@dataclass
class _Command:
    """What the operator does to one worker at the moment, or why it waits before it tries again."""

    doing: str
    until_s: float | None = None  # monotonic; None: it runs
    failures: int = 0
    problem: Problem | None = None
    last: str = ""


@dataclass
class _Memory:
    """What may be forgotten: a new process starts without it and only asks more."""

    uid: str = ""
    policy: str | None = None  # the PlannerPolicy the service referred to when it was looked at
    token: str | None = None
    children_of: tuple[Any, ...] | None = None  # what the objects beside the workers were last made of
    children_until_s: float = 0.0
    reported: tuple[Reason, str] | None = None
    commands: dict[str, _Command] = field(default_factory=dict)
    strangers: set[str] = field(default_factory=set)  # pod names that belong to somebody else
    children_problems: list[Problem] = field(default_factory=list)
    create_problems: list[Problem] = field(default_factory=list)
    create_again_s: float = 0.0  # monotonic; until then nothing is created, because the last create was refused


@dataclass(frozen=True, slots=True)
class _Wishes:
    """What is wanted of a service beside its own spec."""

    switches: tuple[Switch, ...] = ()
    plans: tuple[PlanView, ...] = ()
    policy: Policy | None = None
    routing_set_by: str | None = None


@dataclass(frozen=True, slots=True)
class _Renderer:
    """An engine adapter bound to one service."""

    adapter: EngineAdapter
    service: Service
    install: Install
    revision: str

    def __call__(self, name: str, role: Role) -> dict[str, Any]:
        return self.adapter.pod(self.service, self.install, name, role)


class Reconciler:
    """Called with a key by the work queue; the same key never twice at once."""

    def __init__(
        self,
        *,
        kube: Kube,
        pods: Mirror[Pod],
        decisions: Decisions,
        queue: WorkQueue[ServiceKey],
        writer: Writer,
        expectations: Expectations,
        control: ControlClient,
        events: EventRecorder,
        metrics: OperatorMetrics,
        install: Install,
        resync_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._kube = kube
        self._pods = pods
        self._decisions = decisions
        self._queue = queue
        self._writer = writer
        self._expectations = expectations
        self._control = control
        self._events = events
        self._metrics = metrics
        self._install = install
        self._resync_s = resync_s
        self._clock = clock
        self._memory: dict[ServiceKey, _Memory] = {}
        self._questions = asyncio.Semaphore(CONCURRENT_QUESTIONS)
        self._running: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """Cancel what is being asked of workers; all of it may be asked again by the next leader."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

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
            self._memory.pop(key, None)
            self._queue.forget(key)
            return None, "gone"
        try:
            found = LLMService.model_validate(raw)
        except ValidationError as error:
            self._say_invalid(raw, error)
            return self._resync(), "invalid"
        memory = self._remember(key, found.metadata.uid)
        service = service_of(found)
        problems: list[Problem] = []

        render = self._renderer(service, problems)
        deleting = service.deleting_since_s is not None
        touch = not service.spec.paused and not deleting
        pools = await self._pools(service, problems, create=touch and service.has_finalizer)
        if touch and service.has_finalizer and render is not None:
            await self._children(service, memory, pools)
        token = await self._token(service, memory)

        memory.policy = service.spec.policy_ref.name if service.spec.policy_ref else None
        wishes = await self._wishes(key, service, problems)
        routing_set_by = found.status.routing.set_by if found.status.routing else None
        wishes = replace(wishes, routing_set_by=routing_set_by)
        snapshot = await self._snapshot(key, service, memory, pools, token, wishes)
        may_create = self._clock.monotonic_s() >= memory.create_again_s
        decision = decide(snapshot, render if may_create else None)
        refused = await self._execute(raw, snapshot, decision.actions, memory, token)
        if may_create:
            memory.create_problems = refused
            memory.create_again_s = self._clock.monotonic_s() + RETRY_PROBLEM_S if refused else 0.0
        problems += [*memory.children_problems, *memory.create_problems]
        problems += [command.problem for command in memory.commands.values() if command.problem is not None]

        if any(isinstance(action, act.RemoveFinalizer) for action in decision.actions):
            log.info("service=%s/%s reason=Deleted %s", namespace, name, decision.actions[-1].why)
            return self._resync(), "deleted"
        after = await self._snapshot(key, service, memory, pools, token, wishes, known=snapshot)
        routing = next((a for a in reversed(decision.actions) if isinstance(a, act.SetRouting)), None)
        outcome = report(
            after,
            problems,
            endpoint=endpoint(service, self._install),
            revision=render.revision if render else None,
            kv_compatibility=self._kv(service.spec) if render else None,
            before=_routed(found.status, routing),
            now=self._clock.now(),
        )
        await self._write_status(service, found, snapshot.pools, outcome)
        self._say(raw, service, memory, outcome)
        return self._next(after, decision.truncated, bool(decision.actions), memory), "done"

    def _remember(self, key: ServiceKey, uid: str) -> _Memory:
        memory = self._memory.get(key)
        if memory is None or memory.uid != uid:  # a service of that name was deleted and made anew
            memory = self._memory[key] = _Memory(uid=uid)
        return memory

    def _renderer(self, service: Service, problems: list[Problem]) -> _Renderer | None:
        try:
            adapter = adapter_for(service.spec)
            adapter.check(service.spec)
            renderer = _Renderer(adapter, service, self._install, revision(service.spec))
            renderer("probe", Role.DECODE)  # a template that cannot be merged is refused as a whole
        except Refused as error:
            problems.append(Problem(reason=error.reason, message=str(error)))
            return None
        return renderer

    def _kv(self, spec: LLMServiceSpec) -> str:
        return kv_compatibility(adapter_for(spec).kv_inputs(spec, self._install))

    async def _pools(self, service: Service, problems: list[Problem], *, create: bool) -> dict[Role, Pool]:
        found = await asyncio.gather(
            *(
                self._kube.find(resources.WORKER_POOLS, pool_name(service.name, role), service.namespace)
                for role in Role
            )
        )
        pools: dict[Role, Pool] = {}
        for role, raw in zip(Role, found, strict=True):
            try:
                if raw is None and create:
                    raw = await self._writer.create_pool(service, role)
                if raw is None:
                    continue
                pool = WorkerPool.model_validate(raw)
                if pool.metadata.uid and not _owned(raw, service.uid):
                    raise NameConflict("WorkerPool", pool.metadata.name, owner_in_words(raw))
                if raw["metadata"].get("deletionTimestamp") is None:
                    pools[role] = pool_of(pool)
            except NameConflict as error:
                problems.append(Problem(reason=Reason.NAME_CONFLICT, message=str(error)))
            except AlreadyExists:
                continue  # made between our look and our write: the next look sees whose it is
            except (Forbidden, Invalid) as error:
                problems.append(Problem(reason=Reason.POD_REFUSED, message=f"WorkerPool of {role.label}: {error}"))
        return pools

    async def _children(self, service: Service, memory: _Memory, pools: dict[Role, Pool]) -> None:
        """Secret, gateway, PodDisruptionBudgets: looked at when what they are made of changed, and at each resync."""
        bare = Snapshot(now_s=0.0, service=service, pools=pools)
        budgets = [disruption_budget(service, role, pool_target(bare, role).replicas) for role in Role]
        made_of = (service.generation, *(budget["spec"]["minAvailable"] for budget in budgets))
        now_s = self._clock.monotonic_s()
        if memory.children_of == made_of and now_s < memory.children_until_s:
            return
        problems: list[Problem] = []
        try:
            memory.token = await self._writer.ensure_secret(service)
        except NameConflict as error:
            problems.append(Problem(reason=Reason.NAME_CONFLICT, message=str(error)))
        for manifest in (*gateway_objects(service, self._install), *budgets):
            what = f"{manifest['kind']} {manifest['metadata']['name']}"
            try:
                if await self._writer.ensure(service, manifest):
                    log.info("service=%s reason=Applied %s", service.key, what)
            except NameConflict as error:
                problems.append(Problem(reason=Reason.NAME_CONFLICT, message=str(error)))
            except (Forbidden, Invalid) as error:
                problems.append(Problem(reason=Reason.GATEWAY_REFUSED, message=f"{what}: {error}"))
        memory.children_of, memory.children_problems = made_of, problems
        memory.children_until_s = now_s + (RETRY_PROBLEM_S if problems else self._resync_s)

    async def _token(self, service: Service, memory: _Memory) -> str | None:
        if memory.token is None:
            memory.token = await self._writer.control_token(service)
        return memory.token

    async def _snapshot(
        self,
        key: ServiceKey,
        service: Service,
        memory: _Memory,
        pools: dict[Role, Pool],
        token: str | None,
        wishes: _Wishes,
        known: Snapshot | None = None,
    ) -> Snapshot:
        """What is known now. With ``known``, what workers and gateways said for it is kept, and nobody is asked."""
        now_s = self._clock.monotonic_s()
        workers: list[Worker] = []
        gateway_pods: list[Pod] = []
        for pod, leaving in self._expectations.over(key, self._pods.by(key)):
            if not _owned_pod(pod, service.uid):
                continue
            command = memory.commands.get(pod.metadata.uid)
            busy = command.doing if command and (command.until_s is None or command.until_s > now_s) else None
            unproved = command.problem if command else None
            workers.append(replace(worker_of(pod, busy, unproved.message if unproved else None), terminating=leaving))
        gateway_pods = [
            pod for pod in self._pods.by(key) if pod.metadata.labels.get(COMPONENT_LABEL) == COMPONENT_GATEWAY
        ]
        memory.commands = {
            uid: command
            for uid, command in memory.commands.items()
            if command.until_s is None or any(worker.uid == uid for worker in workers)
        }
        snapshot = Snapshot(
            now_s=self._clock.now().timestamp(),
            service=service,
            pools=pools,
            workers=tuple(sorted(workers, key=lambda worker: worker.name)),
            gateways=tuple(gateway_of(pod) for pod in gateway_pods),
            switches=wishes.switches,
            plans=wishes.plans,
            policy=wishes.policy,
            routing_set_by=wishes.routing_set_by,
            taken_names=frozenset(memory.strangers),
            gateway_replicas=known.gateway_replicas if known else await self._gateway_replicas(service),
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
        return snapshot if token is None else await self._ask(snapshot, gateway_pods, token)

    async def _wishes(self, key: ServiceKey, service: Service, problems: list[Problem]) -> _Wishes:
        """Switches, plans and policy of the service, live where something runs."""
        held = any(SWITCH_ANNOTATION in pod.metadata.annotations for pod in self._pods.by(key))
        switches, objects = await self._decisions.switches(key, held=held)
        for raw in objects:
            if not any(owner.get("uid") == service.uid for owner in raw["metadata"].get("ownerReferences") or ()):
                await self._writer.own_switch(service, raw)
        policy: Policy | None = None
        if service.spec.policy_ref is not None:
            policy = self._decisions.policy(service.namespace, service.spec.policy_ref.name)
            if policy is None:
                text = f"spec.policyRef.name is {service.spec.policy_ref.name}: there is no such PlannerPolicy here"
                problems.append(Problem(reason=Reason.POLICY_NOT_FOUND, message=f"{text}; nothing is planned"))
        return _Wishes(switches, await self._decisions.plans(key), policy)

    async def _refuse_switches(self, key: ServiceKey) -> None:
        """There is no such service: whoever made a switch for it is told so."""
        namespace, name = key
        for switch in self._decisions.pending_switches(key):
            await self._writer.switch_status(namespace, no_service(switch, name, self._clock.now()))

    def policy_changed(self, namespace: str, name: str) -> None:
        """Look again at the services that refer to that policy."""
        for key, memory in self._memory.items():
            if key[0] == namespace and memory.policy == name:
                self._queue.add(key)

    async def _gateway_replicas(self, service: Service) -> int | None:
        if service.deleting_since_s is None:
            return None
        live = await self._kube.find(resources.DEPLOYMENTS, gateway_name(service.name), service.namespace)
        if live is None or not _owned(live, service.uid) or live["metadata"].get("deletionTimestamp"):
            return None
        replicas = live["spec"].get("replicas")
        return 1 if replicas is None else int(replicas)

    async def _ask(self, snapshot: Snapshot, gateway_pods: Sequence[Pod], token: str) -> Snapshot:
        asked = workers_to_ask(snapshot)
        to_report = gateway_pods if gateways_must_report(snapshot) else ()
        states, gateways = await asyncio.gather(
            asyncio.gather(*(self._state(worker, token) for worker in asked)),
            asyncio.gather(*(self._uses(snapshot.service, pod, token) for pod in to_report if pod.ready)),
        )
        by_uid = dict(zip((worker.uid for worker in asked), states, strict=True))
        by_name = {gateway.name: gateway for gateway in gateways}
        return replace(
            snapshot,
            workers=tuple(
                replace(worker, state=by_uid[worker.uid], asked=True) if worker.uid in by_uid else worker
                for worker in snapshot.workers
            ),
            gateways=tuple(by_name.get(gateway.name, gateway) for gateway in snapshot.gateways),
        )

    async def _state(self, worker: Worker, token: str) -> WorkerState | None:
        if worker.control_url is None:
            return None
        async with self._questions:
            try:
                return await self._control.state(worker.control_url, token)
            except ControlFailed as error:
                log.debug("worker=%s state unknown: %s", worker.name, error)
                return None

    async def _uses(self, service: Service, pod: Pod, token: str) -> GatewayPod:
        async with self._questions:
            try:
                answer = await self._control.endpoints(pod.status.pod_ip or "", token)
            except ControlFailed as error:
                self._event(service, "GatewaySkipped", f"a drain does not wait for {pod.metadata.name}: {error}", True)
                return gateway_of(pod, unreachable=True)
        return gateway_of(pod, uses=frozenset(item.uid for item in answer.endpoints))

    # --- acting ---

    async def _execute(
        self, raw: Object, snapshot: Snapshot, actions: Iterable[act.Action], memory: _Memory, token: str | None
    ) -> list[Problem]:
        """Service-level actions one after the other, then what concerns single pods side by side."""
        on_pods: list[act.Action] = []
        for action in actions:
            if isinstance(action, act.WorkerAction | act.CreateWorker):
                on_pods.append(action)
            else:
                await self._on_service(raw, snapshot, action)
        slots = asyncio.Semaphore(CONCURRENT_ACTIONS)

        async def one(action: act.Action) -> Problem | None:
            async with slots:
                return await self._on_pod(snapshot, action, memory, token)

        results = await asyncio.gather(*(one(action) for action in on_pods), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]
        found = [result for result in results if isinstance(result, Problem)]
        return list({(problem.reason, problem.message): problem for problem in found}.values())[:3]

    async def _on_service(self, raw: Object, snapshot: Snapshot, action: act.Action) -> None:
        service = snapshot.service
        match action:
            case act.MoveReplica():
                await self._writer.move_replica(service, snapshot.pools[action.role], action)
            case act.SetReplicas() | act.RestoreReplicas():
                await self._writer.set_replicas(service, snapshot.pools[action.role], action)
            case act.OwnReplicas():
                await self._writer.own_replicas(service, action)
            case act.CreateSwitch():
                await self._writer.create_switch(service, action)
            case act.SetRouting():
                pass  # written with the service's status at the end of this look
            case act.SetPlanStatus():
                await self._writer.plan_status(service.namespace, action)
                self._say_plan(service, action)
                return
            case act.SetSwitchStatus():
                await self._writer.switch_status(service.namespace, action)
                self._say_switch(service, action)
                return
            case act.AddFinalizer():
                await self._writer.add_finalizer(raw)
            case act.RemoveFinalizer():
                await self._writer.remove_finalizer(raw)
            case act.CopyReplicas():
                await self._writer.copy_replicas(service, action)
            case act.StopGateway():
                await self._writer.stop_gateway(service)
            case _:
                raise TypeError(f"no action of a service: {action}")
        self._did(service, action, "")

    async def _on_pod(
        self, snapshot: Snapshot, action: act.Action, memory: _Memory, token: str | None
    ) -> Problem | None:
        service = snapshot.service
        match action:
            case act.CreateWorker():
                return await self._create(service, action, memory)
            case act.SetRoutable() | act.BeginDrain() | act.CancelDrain() | act.HoldWorker() | act.ReleaseWorker():
                await self._writer.patch_worker(service, action)
            case act.Relabel():
                memory.commands.pop(action.uid, None)  # what failed was about its old role
                await self._writer.patch_worker(service, action)
            case act.DeleteWorker():
                await self._writer.delete_worker(service, action)
                self._observe_drain(snapshot, action)
            case act.GiveRole():
                self._command(service, memory, action, "gets its role", self._give_role(action, token))
                return None
            case act.VerifyWorker():
                self._command(service, memory, action, "is being verified", self._verify(action, token))
                return None
            case act.AskDrain():
                self._command(service, memory, action, "is asked to drain", self._ask_drain(action, token))
                return None
            case _:
                raise TypeError(f"no action of a pod: {action}")
        self._did(service, action, action.worker)
        return None

    async def _create(self, service: Service, action: act.CreateWorker, memory: _Memory) -> Problem | None:
        try:
            await self._writer.create_worker(service, action)
        except NameConflict as error:
            # The name is taken for good; the next look takes the next ordinal.
            memory.strangers.add(action.name)
            self._event(service, Reason.NAME_CONFLICT, str(error), True)
            self._queue.add((service.namespace, service.name))
            return None
        except (Forbidden, Invalid) as error:
            self._metrics.actions.labels("CreateWorker", "refused").inc()
            if isinstance(error, Forbidden) and error.namespace_terminating:
                return None
            hostpath = service.spec.model.source.startswith("file://") and "hostPath" in str(error)
            reason = Reason.MODEL_VOLUME_FORBIDDEN if hostpath else Reason.POD_REFUSED
            return Problem(reason=reason, message=f"workers of {service.name}: {error}")
        self._did(service, action, action.name)
        return None

    def _command(
        self,
        service: Service,
        memory: _Memory,
        action: act.GiveRole | act.VerifyWorker | act.AskDrain,
        doing: str,
        work: Coroutine[Any, Any, None],
    ) -> None:
        """Ask something of a worker beside the queue: it may take seconds, and other workers must not wait for it."""
        before = memory.commands.get(action.uid)
        command = _Command(doing=doing, failures=before.failures if before else 0)
        command.problem = before.problem if before else None
        memory.commands[action.uid] = command

        async def run() -> None:
            try:
                await work
            except Exception as error:  # whatever it was, the worker must be tried again
                if not isinstance(error, ControlFailed):
                    log.exception("service=%s worker=%s %s", service.key, action.worker, _name(action))
                command.failures += 1
                first_s, most_s = RETRY_COMMAND_S
                command.until_s = self._clock.monotonic_s() + min(most_s, first_s * 2.0 ** (command.failures - 1))
                command.doing = f"could not be commanded ({error}); it is tried again"
                if isinstance(action, act.VerifyWorker):
                    text = f"{action.worker}: {error}"
                    command.problem = Problem(reason=Reason.VERIFICATION_FAILED, message=text, role=action.role)
                    self._event(service, Reason.VERIFICATION_FAILED, text, True)
                log.warning("service=%s worker=%s %s failed: %s", service.key, action.worker, _name(action), error)
                self._metrics.actions.labels(_name(action), "failed").inc()
                self._queue.add_later((service.namespace, service.name), command.until_s - self._clock.monotonic_s())
            else:
                memory.commands.pop(action.uid, None)
                self._did(service, action, action.worker)
            finally:
                self._queue.add((service.namespace, service.name))

        task = asyncio.create_task(run(), name=f"{doing} {action.worker}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _give_role(self, action: act.GiveRole, token: str | None) -> None:
        await self._control.give_role(action.url, token or "", action.role)

    async def _verify(self, action: act.VerifyWorker, token: str | None) -> None:
        await self._control.verify(action.url, token or "", action.role, action.partner_url)

    async def _ask_drain(self, action: act.AskDrain, token: str | None) -> None:
        await self._control.drain(action.url, token or "", action.reason)

    def _observe_drain(self, snapshot: Snapshot, action: act.DeleteWorker) -> None:
        worker = next((item for item in snapshot.workers if item.uid == action.uid), None)
        if worker is not None and worker.drain_started_s is not None:
            seconds = max(0.0, snapshot.now_s - worker.drain_started_s)
            self._metrics.drain_seconds.labels(str(action.lossless).lower()).observe(seconds)

    # --- saying what was done ---

    async def _write_status(
        self, service: Service, found: LLMService, pools: Mapping[Role, Pool], outcome: Report
    ) -> None:
        for role, status in outcome.pools.items():
            if pools[role].status != status:
                name = pool_name(service.name, role)
                await self._writer.status(resources.WORKER_POOLS, name, service.namespace, status.manifest())
        # The service last: whoever sees it ready finds its pools as it says.
        said = {item.type for item in outcome.status.conditions}
        ours = tuple(item for item in found.status.conditions if item.type in said)
        if found.status.model_copy(update={"conditions": ours}) != outcome.status:
            manifest = outcome.status.manifest()
            await self._writer.status(resources.LLM_SERVICES, service.name, service.namespace, manifest)

    def _say(self, raw: Object, service: Service, memory: _Memory, outcome: Report) -> None:
        said = (outcome.reason, outcome.sentence)
        if memory.reported == said:
            return
        log.info("service=%s reason=%s %s", service.key, outcome.reason, outcome.sentence)
        if memory.reported is None or memory.reported[0] != outcome.reason:
            failed = any(
                item.type == ConditionType.DEGRADED and item.status == "True" for item in outcome.status.conditions
            )
            self._event(service, outcome.reason, outcome.sentence, failed)
        memory.reported = said

    def _did(self, service: Service, action: act.Action, what: str) -> None:
        name = _name(action)
        log.info("service=%s action=%s %s%s", service.key, name, f"worker={what} " if what else "", action.why)
        self._metrics.actions.labels(name, "done").inc()
        lossy = isinstance(action, act.DeleteWorker) and not action.lossless
        reason = _EVENTS.get(name, name)
        if isinstance(action, act.SetRoutable) and not action.routable:
            reason = "WorkerUnroutable"
        self._event(service, reason, f"{what}: {action.why}" if what else action.why, lossy)

    def _say_switch(self, service: Service, action: act.SetSwitchStatus) -> None:
        """A switch tells its story on itself; only its end is an Event of the service too."""
        status = action.status
        log.info(
            "service=%s switch=%s phase=%s reason=%s %s",
            service.key,
            action.name,
            status.phase,
            status.reason,
            status.message,
        )
        resource = resources.ROLE_SWITCHES
        regarding = Reference(resource.api_version, resource.kind, service.namespace, action.name, action.uid)
        failed = status.phase in (SwitchPhase.FAILED, SwitchPhase.ROLLING_BACK, SwitchPhase.ROLLED_BACK)
        self._events.record(regarding, str(status.phase), status.message or "", warning=failed)
        if status.phase is not None and status.phase.ended:
            took = f" after {status.seconds:.1f} s" if status.seconds is not None else ""
            self._event(service, f"Switch{status.phase}", f"{action.name}{took}: {status.message}", failed)
            self._metrics.switches.labels(str(status.phase), str(status.reason)).inc()
            if status.phase is SwitchPhase.COMPLETED and status.seconds is not None:
                self._metrics.switch_seconds.observe(status.seconds)

    def _say_plan(self, service: Service, action: act.SetPlanStatus) -> None:
        """A plan tells its story on itself; its end is an Event of the service too."""
        status = action.status
        what = (service.key, action.name, status.phase, status.reason, status.message)
        log.info("service=%s plan=%s phase=%s reason=%s %s", *what)
        resource = resources.PLANS
        regarding = Reference(resource.api_version, resource.kind, service.namespace, action.name, action.uid)
        failed = status.phase is PlanPhase.FAILED
        self._events.record(regarding, str(status.phase), status.message or "", warning=failed)
        if status.phase is not None and status.phase.ended:
            self._event(service, f"Plan{status.phase}", f"{action.name}: {status.message}", failed)
            self._metrics.plans.labels(str(status.phase), str(status.reason)).inc()

    def _event(self, service: Service, reason: str, note: str, warning: bool = False) -> None:
        regarding = Reference(
            resources.LLM_SERVICES.api_version,
            resources.LLM_SERVICES.kind,
            service.namespace,
            service.name,
            service.uid,
        )
        self._events.record(regarding, reason, note, warning=warning)

    def _say_invalid(self, raw: Object, error: ValidationError) -> None:
        problems = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
        reference = Reference.of(resources.LLM_SERVICES, raw)
        log.warning("service=%s/%s reason=InvalidSpec %s", reference.namespace, reference.name, problems)
        self._events.record(reference, Reason.INVALID_SPEC, problems, warning=True)

    def _next(self, after: Snapshot, truncated: bool, acted: bool, memory: _Memory) -> float:
        if truncated:
            return 0.0
        waits = [self._resync()]
        look_s = next_look_s(after)
        if look_s is not None:
            waits.append(look_s)
        if acted:
            waits.append(0.05)  # the mirror will say so too; this is for the change it merges or misses
        now_s = self._clock.monotonic_s()
        waits += [at_s - now_s for at_s in (memory.create_again_s, memory.children_until_s) if at_s > now_s]
        return min(waits)

    def _resync(self) -> float:
        return self._resync_s * random.uniform(0.9, 1.1)


_EVENTS: Final = {
    "CreateWorker": "WorkerCreated",
    "SetRoutable": "WorkerRoutable",
    "BeginDrain": "WorkerDraining",
    "CancelDrain": "DrainCancelled",
    "DeleteWorker": "WorkerDeleted",
    "GiveRole": "RoleGiven",
    "VerifyWorker": "WorkerVerified",
    "AskDrain": "WorkerStopsWork",
    "CopyReplicas": "Scaled",
    "StopGateway": "GatewayStopping",
    "AddFinalizer": "FinalizerAdded",
    "RemoveFinalizer": "FinalizerRemoved",
    "HoldWorker": "SwitchStarted",
    "Relabel": "RoleChanged",
    "ReleaseWorker": "WorkerReleased",
    "MoveReplica": "ReplicaMoved",
    "SetReplicas": "Scaled",
    "RestoreReplicas": "ReplicasPutBack",
    "OwnReplicas": "ReplicasOwned",
    "CreateSwitch": "SwitchCreated",
    "SetRouting": "RoutingSet",
}


def _name(action: act.Action) -> str:
    return type(action).__name__


def _owned(item: Object, uid: str) -> bool:
    owners = item["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("uid") == uid for owner in owners)


def _owned_pod(pod: Pod, uid: str) -> bool:
    """A worker of this service: by label and by owner, so that a stranger's look-alike is left alone."""
    owner = pod.metadata.controller
    return pod.metadata.labels.get(COMPONENT_LABEL) == COMPONENT_WORKER and owner is not None and owner.uid == uid


def _routed(status: LLMServiceStatus, action: act.SetRouting | None) -> LLMServiceStatus:
    """The status with the routing numbers of a plan."""
    if action is None:
        return status
    routing = Routing(**action.routing.model_dump(), set_by=action.set_by)
    return status.model_copy(update={"routing": routing})


def plan_key(plan: Plan) -> ServiceKey:
    """The service a plan is about."""
    return plan.metadata.namespace, plan.spec.service_ref.name


def switch_key(switch: RoleSwitch) -> ServiceKey:
    """The service a role switch is about."""
    return switch.metadata.namespace, switch.spec.service_ref.name


def service_key(pod: Pod) -> ServiceKey | None:
    """The service a pod belongs to by its label: the mirror's index, and what a change of the pod wakes."""
    name = pod.metadata.labels.get(SERVICE_LABEL)
    return (pod.metadata.namespace, name) if name else None
