"""Executing what the core decided. Each action is safe to repeat; one that fails is decided anew from a fresh look."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.kube import resources
from pointsman.kube.client import Object
from pointsman.kube.errors import Forbidden, Invalid, NotFound
from pointsman.kube.pods import ServiceKey
from pointsman.operator.announce import Announcer
from pointsman.operator.apply import Writer
from pointsman.operator.children import Children
from pointsman.operator.commands import Commands
from pointsman.operator.core import actions as act
from pointsman.operator.core.ledger import change_outcomes
from pointsman.operator.core.messages import status as texts
from pointsman.operator.core.naming import pool_name
from pointsman.operator.core.policies import objectives_of
from pointsman.operator.core.problems import Problem
from pointsman.operator.core.snapshot import Pool, Service, Snapshot, Switch
from pointsman.operator.core.status import Report
from pointsman.operator.core.switching import no_service
from pointsman.operator.errors import NameConflict, StreamNotDeleted
from pointsman.operator.metrics import OperatorMetrics
from pointsman.operator.refusals import Refusals, what_of
from pointsman.operator.streams import PrefillStreams
from pointsman.operator.work_queue import WorkQueue
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

CONCURRENT_ACTIONS: Final = 16  # of one pass


@dataclass(frozen=True, slots=True)
class Executed:
    """What became of a pass: ``done`` is how many actions were tried.

    ``not_created`` why workers could not be made
    ``refused`` why the API server refused other actions
    """

    done: int = 0
    not_created: list[Problem] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)


class Executor:
    """Actions to writes and commands."""

    def __init__(
        self,
        writer: Writer,
        children: Children,
        commands: Commands,
        queue: WorkQueue[ServiceKey],
        announcer: Announcer,
        metrics: OperatorMetrics,
        streams: PrefillStreams,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.children: Final = children
        """The objects beside the workers."""
        self._taken: dict[str, set[str]] = {}  # names of pods of others, by uid of the service that would take them
        self._writer = writer
        self._commands = commands
        self._queue = queue
        self._announcer = announcer
        self._metrics = metrics
        self._streams = streams
        self._clock = clock
        self._refusals = Refusals(clock)

    def taken_names(self, service: Service) -> frozenset[str]:
        """Names of pods that belong to somebody else: no worker can have them."""
        return frozenset(self._taken.get(service.uid, ()))

    def forget(self, uid: str) -> None:
        """The service of that uid is gone."""
        self.children.forget(uid)
        self._taken.pop(uid, None)
        self._refusals.forget(uid)

    async def execute(
        self, raw: Object, snapshot: Snapshot, actions: Iterable[act.Action], token: str | None
    ) -> Executed:
        """Actions of the service one after the other, then those of pods: side by side, but in turn those of one pod.

        An action that the API server refuses (rights, a quota, somebody's admission policy) keeps no other from being
        executed. Raises other KubeErrors and NotLeading: what is left is decided anew.
        """
        uid = snapshot.service.uid
        slots = asyncio.Semaphore(CONCURRENT_ACTIONS)
        done, not_created, refused = 0, list[Problem](), list[Problem]()

        async def attempt(action: act.Action) -> None:
            nonlocal done
            if (known := self._refusals.find(uid, what_of(action))) is not None:
                refused.append(known)
                return
            done += 1
            try:
                async with slots:
                    problem = await self._execute(raw, snapshot, action, token)
            except (Forbidden, Invalid) as error:
                self._metrics.actions.labels(action.label, "refused").inc()
                if not (isinstance(error, Forbidden) and error.namespace_terminating):
                    refused.append(self._refusals.add(uid, what_of(action), error))
            else:
                not_created.extend([problem] if problem is not None else [])

        async def in_turn(of_a_pod: Iterable[act.Action]) -> None:
            for action in of_a_pod:
                await attempt(action)

        on_pods: dict[str, list[act.Action]] = {}
        for action in actions:
            if isinstance(action, act.WorkerAction):
                on_pods.setdefault(action.uid, []).append(action)
            elif isinstance(action, act.CreateWorker):
                on_pods[f"new {action.name}"] = [action]
            else:
                await attempt(action)
        results = await asyncio.gather(*map(in_turn, on_pods.values()), return_exceptions=True)
        errors = [result for result in results if result is not None]
        if errors:
            raise errors[0]
        return Executed(done, _first(not_created), _first(refused))

    async def _execute(self, raw: Object, snapshot: Snapshot, action: act.Action, token: str | None) -> Problem | None:
        if isinstance(action, act.WorkerAction | act.CreateWorker):
            return await self._on_pod(snapshot, action, token)
        await self._on_service(raw, snapshot, action)
        return None

    async def own_switches(self, service: Service, switches: Iterable[Object]) -> list[Problem]:
        """Have RoleSwitches that people created go with their service. Returns why the API server refused that."""
        found = [await self._own_switch(service, switch) for switch in switches]
        return [problem for problem in found if problem is not None]

    async def _own_switch(self, service: Service, switch: Object) -> Problem | None:
        """Have a person's RoleSwitch go with its service. Returns why the API server refused that."""
        what = ("OwnSwitch", switch["metadata"]["name"])
        if (known := self._refusals.find(service.uid, what)) is not None:
            return known
        try:
            await self._writer.own_switch(service, switch)
        except (Forbidden, Invalid) as error:
            return self._refusals.add(service.uid, what, error)
        return None

    async def refuse_switches(self, namespace: str, name: str, switches: Iterable[Switch]) -> None:
        """There is no such service: its switches report that."""
        for switch in switches:
            await self._writer.switch_status(namespace, no_service(switch, name, self._clock.now()))

    async def write_status(
        self, service: Service, found: LLMService, pools: Mapping[Role, Pool], outcome: Report
    ) -> None:
        """What differs from the status as it was read."""
        for role, status in outcome.pools.items():
            if pools[role].status != status:
                name = pool_name(service.name, role)
                manifest = status.manifest()
                try:
                    await self._writer.status(
                        resources.WORKER_POOLS, name, service.namespace, manifest, uid=pools[role].uid
                    )
                except NotFound:  # its namespace is going, or somebody deleted it: the next look makes it anew
                    log.info("pool gone before its status was written", extra={"service": service.key, "pool": name})
        # The service last: whoever sees it ready finds its pools as it says.
        said = {item.type for item in outcome.status.conditions}
        ours = tuple(item for item in found.status.conditions if item.type in said)
        if found.status.model_copy(update={"conditions": ours}) != outcome.status:
            # Of the routing numbers the operator applies the objectives alone: all others have owners of their own.
            manifest = outcome.status.model_copy(update={"routing": objectives_of(outcome.status.routing)}).manifest()
            await self._writer.status(
                resources.LLM_SERVICES, service.name, service.namespace, manifest, uid=service.uid
            )

    async def _on_service(self, raw: Object, snapshot: Snapshot, action: act.Action) -> None:
        service = snapshot.service
        match action:
            case act.WritePool():
                pool = snapshot.pools[action.role]
                await self._writer.write_pool(service, action, pool)
                for change, text in change_outcomes(action.role, pool.replicas, pool.ledger, action.changes):
                    self._announcer.changed(service, change, text)
                return
            case act.CreateSwitch():
                await self._writer.create_switch(service, action)
            case act.DeleteSwitch():
                await self._writer.delete_switch(service.namespace, action)
            case act.SetRouting():
                await self._writer.routing(service, action)
            case act.SetPlanStatus():
                await self._writer.plan_status(service.namespace, action)
                self._announcer.plan(service, action)
                return
            case act.SetSwitchStatus():
                await self._writer.switch_status(service.namespace, action)
                self._announcer.switch(service, action)
                return
            case act.AddFinalizer():
                await self._writer.add_finalizer(raw)
            case act.RemoveFinalizer():
                await self._delete_stream(service)
                await self._writer.delete_children(service)
                for worker in snapshot.workers:  # those of a service that does not wait for their drain
                    await self._writer.delete_left(service, worker)
                await self._writer.remove_finalizer(raw)
            case act.DeletePool():
                await self._writer.delete_pool(service, action.role)
            case act.StopGateway():
                await self._writer.stop_gateway(service)
            case _:
                raise TypeError(f"no action of a service: {action}")
        self._announcer.did(service, action)

    async def _delete_stream(self, service: Service) -> None:
        """Of a service whose workers are gone. NATS may be down: that does not keep the service."""
        try:
            await self._streams.delete(service.namespace, service.uid)
        except StreamNotDeleted as error:
            self._announcer.event(service, "StreamNotDeleted", texts.retried(str(error)), warning=True)
        if service.skip_drain:  # workers still live, and one that reconnects makes it anew
            self._streams.remember(service.namespace, service.uid)

    async def _on_pod(self, snapshot: Snapshot, action: act.Action, token: str | None) -> Problem | None:
        service = snapshot.service
        match action:
            case act.CreateWorker():
                return await self._create(service, action)
            case act.PatchPod(change=act.PodChange.ROLE):
                self._commands.forget(action.uid)  # what failed was about its old role
                await self._writer.patch_pod(service, action)
            case act.PatchPod():
                await self._writer.patch_pod(service, action)
            case act.SetRoutableCondition():
                await self._writer.routable_condition(service, action)
                return None  # the Event of the label says it
            case act.DeleteWorker():
                await self._writer.delete_worker(service, action)
                self._announcer.drained(snapshot, action)
            case act.GiveRole() | act.SetPrefillTokenBudget() | act.VerifyWorker() | act.AskDrain():
                if token is not None:
                    self._commands.start(service, action, token)
                return None
            case _:
                raise TypeError(f"no action of a pod: {action}")
        self._announcer.did(service, action, action.worker)
        return None

    async def _create(self, service: Service, action: act.CreateWorker) -> Problem | None:
        try:
            await self._writer.create_worker(service, action)
        except NameConflict as error:
            # The name is taken for good; the next look takes the next ordinal.
            self._taken.setdefault(service.uid, set()).add(action.name)
            self._announcer.event(service, Reason.NAME_CONFLICT, str(error), warning=True)
            self._queue.add((service.namespace, service.name))
            return None
        except (Forbidden, Invalid) as error:
            self._metrics.actions.labels("CreateWorker", "refused").inc()
            if isinstance(error, Forbidden) and error.namespace_terminating:
                return None
            hostpath = service.spec.model.source.startswith("file://") and "hostPath" in str(error)
            reason = Reason.MODEL_VOLUME_FORBIDDEN if hostpath else Reason.POD_REFUSED
            return Problem(reason=reason, message=texts.refused(f"workers of {service.name}", str(error)))
        self._announcer.did(service, action, action.name)
        return None


def _first(problems: Iterable[Problem]) -> list[Problem]:
    """The first three that say something different."""
    return list({(problem.reason, problem.message): problem for problem in problems}.values())[:3]
