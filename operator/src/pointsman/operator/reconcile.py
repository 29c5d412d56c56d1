"""One reconciliation of a service: live GET → snapshot → core → bounded actions → apply → status and one sentence."""

import logging
import random
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from pointsman.api.protocol.names import (
    Role,
)
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.llmservice import LLMService, LLMServiceStatus, Routing
from pointsman.kube import resources
from pointsman.kube.client import Object
from pointsman.kube.errors import Conflict
from pointsman.kube.pods import ServiceKey
from pointsman.operator.announce import Announcer
from pointsman.operator.commands import Commands
from pointsman.operator.core import actions as act
from pointsman.operator.core.adapters import EngineAdapter, adapter_for
from pointsman.operator.core.decide import Decision, decide, next_look_s
from pointsman.operator.core.desired import first_replicas
from pointsman.operator.core.gateway import endpoint
from pointsman.operator.core.install import Install
from pointsman.operator.core.policies import with_objectives
from pointsman.operator.core.problems import Problem
from pointsman.operator.core.revision import kv_compatibility, revision
from pointsman.operator.core.snapshot import Policy, Pool, Service, Snapshot
from pointsman.operator.core.status import report
from pointsman.operator.core.unknown_fields import dropped_fields
from pointsman.operator.core.worker_pod import uncounted_gpus
from pointsman.operator.errors import NotLeading, Refused
from pointsman.operator.execute import Executed, Executor
from pointsman.operator.metrics import OperatorMetrics
from pointsman.operator.observe import service_of
from pointsman.operator.observer import Inputs, Memory, Observer
from pointsman.operator.policies import PolicyKey
from pointsman.operator.refusals import RETRY_S
from pointsman.operator.work_queue import WorkQueue
from pointsman.process.clock import SYSTEM_CLOCK, Clock
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET

log = logging.getLogger(__name__)

RETRY_CREATE_S: Final = 10.0  # a pod the API server refused is tried again after this


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


@dataclass(frozen=True, slots=True)
class _Read:
    """One service, as one reconciliation read it. ``problems`` grows on the way; ``render`` None: none can be made."""

    key: ServiceKey
    raw: Object
    found: LLMService
    service: Service
    memory: Memory
    render: _Renderer | None
    problems: list[Problem]


class Reconciler:
    """Called with a key by the work queue; the same key never twice at once."""

    def __init__(
        self,
        *,
        observer: Observer,
        executor: Executor,
        commands: Commands,
        queue: WorkQueue[ServiceKey],
        policies: WorkQueue[PolicyKey],
        announcer: Announcer,
        metrics: OperatorMetrics,
        resync_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._observer = observer
        self._executor = executor
        self._commands = commands
        self._queue = queue
        self._policies = policies
        self._announcer = announcer
        self._metrics = metrics
        self._resync_s = resync_s
        self._clock = clock

    async def stop(self) -> None:
        """Cancel what is being asked of workers; all of it may be asked again by the next leader."""
        await self._commands.stop()

    async def __call__(self, key: ServiceKey) -> float | None:
        """Reconcile the service once; returns in how many seconds to do so again."""
        began_s = self._clock.monotonic_s()
        outcome = "error"
        try:
            wait_s, outcome = await self._reconcile(key)
            return wait_s
        except Conflict as error:
            # Somebody wrote meanwhile: what they wrote is looked at next.
            outcome = "conflict"
            log.debug("conflict", extra={"service": "/".join(key), "why": str(error)})
            return 0.1
        except NotLeading:
            outcome = "not-leading"
            return None
        finally:
            self._metrics.reconciles.labels(outcome).inc()
            self._metrics.reconcile_seconds.observe(self._clock.monotonic_s() - began_s)

    # --- one reconciliation, step by step ---

    async def _reconcile(self, key: ServiceKey) -> tuple[float | None, str]:
        # 1. Read the service.
        raw = await self._observer.find(key)
        if raw is None:
            return await self._gone(key)
        try:
            found = LLMService.model_validate(raw)
        except ValidationError as error:
            self._announcer.invalid(resources.LLM_SERVICES, raw, error)
            return self._resync(), "invalid"
        read = self._read(key, raw, found)
        service, problems = read.service, read.problems

        # 2. Read what is desired of it, and make what it owns.
        inputs, pools = await self._make_children(read)
        token = read.memory.token = await self._executor.children.token(service)

        # 3. Observe.
        inputs = _with_published(inputs, read)
        taken = self._executor.taken_names(service)
        snapshot = await self._observer.snapshot(key, service, pools, token, taken, inputs)
        unread = self._observer.unreadable_pods(key)
        problems += unread

        # 4. Decide, and carry it out.
        decision, executed = await self._act(read, snapshot, token, may_create=not unread)
        problems += self._problems_after(read, snapshot, executed)
        if not executed.refused and any(isinstance(action, act.RemoveFinalizer) for action in decision.actions):
            why = decision.actions[-1].why
            log.info("service deleted", extra={"service": "/".join(key), "reason": "Deleted", "why": why})
            return self._resync(), "deleted"

        # 5. Report.
        taken = self._executor.taken_names(service)
        after = await self._observer.snapshot(key, service, pools, token, taken, inputs, known=snapshot)
        routing = next((a for a in reversed(decision.actions) if isinstance(a, act.SetRouting)), None)
        outcome = report(
            after,
            problems,
            endpoint=endpoint(service),
            revision=read.render.revision(Role.DECODE) if read.render else None,
            before=_routed(found.status, routing, inputs.policy),
            now=self._clock.now(),
        )
        await self._executor.write_status(service, found, snapshot.pools, outcome)
        self._announcer.outcome(service, outcome)
        return self._next(after, decision.truncated, executed, read.memory), "done"

    async def _gone(self, key: ServiceKey) -> tuple[float | None, str]:
        namespace, name = key
        await self._executor.refuse_switches(namespace, name, self._observer.pending_switches(key))
        self._forget(key)
        self._queue.forget(key)
        return None, "gone"

    def _read(self, key: ServiceKey, raw: Object, found: LLMService) -> _Read:
        """The service, what is remembered of it, and what is wrong with its spec."""
        memory = self._remember(key, found.metadata.uid)
        service = service_of(found)
        problems = _problems_of_spec(raw, service)
        render = self._renderer(key, service, memory, found.status.worker_image, problems)
        if service.spec.paused:
            memory.acting_since_s = self._clock.now().timestamp()
        self._follow(key, memory, service)
        return _Read(key, raw, found, service, memory, render, problems)

    async def _make_children(self, read: _Read) -> tuple[Inputs, dict[Role, Pool]]:
        """What is desired of the service beside its spec, and its pools; with all else that it owns, if it may act."""
        service, problems = read.service, read.problems
        inputs, unowned, wrong = await self._observer.inputs(read.key, service)
        problems += [*await self._executor.own_switches(service, unowned), *wrong]
        make = service.has_finalizer and not service.spec.paused and service.deleting_since_s is None
        pools, unmade = await self._find_pools(read.key, service, read.found.status, inputs, make=make)
        problems += unmade
        if inputs.policy and any(pool.owned_replicas not in (None, pool.replicas) for pool in pools.values()):
            # Others wrote replicas. The policy may have handed the pools over to them just before.
            policy = await self._observer.live_policy(service.namespace, inputs.policy.name)
            inputs = replace(inputs, policy=policy)
        if make and read.render is not None:
            await self._executor.children.ensure(service, pools)
        return inputs, pools

    async def _act(
        self, read: _Read, snapshot: Snapshot, token: str | None, *, may_create: bool
    ) -> tuple[Decision, Executed]:
        """Decide on the snapshot and carry it out; after a refused create, the next one waits a while."""
        memory = read.memory
        # Not before the Secret is its own: workers that took a predecessor's token would be foreign.
        may_create = may_create and token is not None and self._clock.monotonic_s() >= memory.create_again_s
        decision = decide(snapshot, read.render if may_create else None)
        executed = await self._executor.execute(read.raw, snapshot, decision.actions, token)
        if may_create:
            memory.create_problems = executed.not_created
            again_s = self._clock.monotonic_s() + RETRY_CREATE_S
            memory.create_again_s = again_s if executed.not_created else 0.0
        return decision, executed

    def _problems_after(self, read: _Read, snapshot: Snapshot, executed: Executed) -> list[Problem]:
        """Problems of children, of creates, of actions, of workers, and refusals."""
        unverified = [self._commands.problem(worker.uid) for worker in snapshot.workers]
        return [
            *self._executor.children.problems(read.service),
            *read.memory.create_problems,
            *executed.refused,
            *(problem for problem in (*unverified, read.memory.nats_problem) if problem is not None),
            *self._observer.refusals(snapshot),
        ]

    def _remember(self, key: ServiceKey, uid: str) -> Memory:
        memory = self._observer.memories.get(key)
        if memory is None or memory.uid != uid:  # a service of that name was deleted and made anew
            self._forget(key)
            memory = self._observer.memories[key] = Memory(uid=uid, acting_since_s=self._clock.now().timestamp())
        return memory

    def _follow(self, key: ServiceKey, memory: Memory, service: Service) -> None:
        """Remember the policy the service refers to, and have policies say anew who follows them, and how well."""
        policy = service.spec.policy_ref.name if service.spec.policy_ref else None
        said = (service.generation, service.deleting_since_s is not None)
        if (memory.policy, memory.policy_said) != (policy, said):
            for name in {memory.policy, policy}:
                if name is not None:
                    self._policies.add((key[0], name))
        memory.policy, memory.policy_said = policy, said

    def _forget(self, key: ServiceKey) -> None:
        memory = self._observer.memories.pop(key, None)
        if memory is not None:
            if memory.policy is not None:
                self._policies.add((key[0], memory.policy))
            self._announcer.forget(*key, memory.uid)
            self._executor.children.forget(memory.uid)
            self._executor.forget(memory.uid)
            self._commands.keep(key, ())

    def _renderer(
        self, key: ServiceKey, service: Service, memory: Memory, stored_image: str | None, problems: list[Problem]
    ) -> _Renderer | None:
        try:
            adapter = adapter_for(service.spec)
            adapter.check(service.spec)
            install = self._observer.install_of(key, service, adapter, stored_image)
            renderer = _Renderer(adapter, service, install)
            if memory.rendered_from != (service.spec, install):  # each takes 0.2 ms
                for role in service.spec.roles:
                    renderer("probe", role)  # a template that cannot be merged is refused as a whole
                memory.rendered_from = service.spec, install
        except Refused as error:
            problems.append(Problem(reason=error.reason, message=str(error)))
            return None
        return renderer

    async def _find_pools(
        self, key: ServiceKey, service: Service, status: LLMServiceStatus, inputs: Inputs, *, make: bool
    ) -> tuple[dict[Role, Pool], list[Problem]]:
        """The service's pools. One that somebody deleted is made anew with the number of its workers."""
        workers = self._observer.workers(key, service)
        before = Snapshot(now_s=0.0, service=service, pools={}, workers=workers, switches=inputs.switches)

        def replicas(role: Role) -> int:
            counts = status.pools.of(role) if status.pools is not None else None
            return first_replicas(before, role, (counts.desired if counts is not None else None) or 0)

        had_encode = status.pools is not None and status.pools.encode is not None
        had_encode = had_encode or any(worker.role is Role.ENCODE for worker in workers)
        return await self._executor.children.pools(service, replicas, make=make, had_encode=had_encode)

    def policy_changed(self, namespace: str, name: str) -> None:
        """Look again at the services that refer to that policy."""
        for key, memory in self._observer.memories.items():
            if key[0] == namespace and memory.policy == name:
                self._queue.add(key)

    def _next(self, after: Snapshot, truncated: bool, executed: Executed, memory: Memory) -> float:
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
        due_s = (memory.create_again_s, self._executor.children.due_s(after.service))
        waits += [at_s - now_s for at_s in due_s if at_s > now_s]
        return min(waits)

    def _resync(self) -> float:
        return self._resync_s * random.uniform(0.9, 1.1)


def _problems_of_spec(raw: Object, service: Service) -> list[Problem]:
    """Fields that are unknown, and GPUs that are requested beside ``gpus``."""
    problems: list[Problem] = []
    if dropped := dropped_fields(LLMService, raw):
        problems.append(Problem(reason=Reason.UNKNOWN_FIELD, message=dropped))
    for role, of in ((Role.DECODE, "worker"), (Role.ENCODE, "encode")):
        template = service.spec.template_of(role) if role in service.spec.roles else {}
        if uncounted := uncounted_gpus(template, service.spec.gpus_of(role), of):
            problems.append(Problem(reason=Reason.UNCOUNTED_GPUS, message=uncounted))
    return problems


def _with_published(inputs: Inputs, read: _Read) -> Inputs:
    """With the routing numbers in force, the image of the workers and the compatibility of their KV."""
    status, render = read.found.status, read.render
    if routed := status.routing:
        budget = routed.prefill_token_budget or DEFAULT_PREFILL_TOKEN_BUDGET
        set_by, at = routed.set_by, routed.updated_at
        inputs = replace(inputs, routing_set_by=set_by, routing_updated_at=at, prefill_token_budget=budget)
    return replace(
        inputs,
        worker_image=render.install.worker_image if render else status.worker_image,
        kv_compatibility=render.kv_compatibility if render else None,
    )


def _routed(status: LLMServiceStatus, action: act.SetRouting | None, policy: Policy | None) -> LLMServiceStatus:
    """The status with the routing numbers of a plan and the objectives of the policy."""
    routing = status.routing
    if action is not None:
        routing = Routing(**action.routing.model_dump(), set_by=action.set_by)
    return status.model_copy(update={"routing": with_objectives(routing, policy)})
