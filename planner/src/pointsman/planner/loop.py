"""The live loop: per service, read → observe → decide → write a Plan, at the interval its policy asks for."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pointsman.api.protocol.names import API_VERSION, ROUTING_SET_BY_PLANNER, Role
from pointsman.api.v1alpha1.conditions import Condition, PlannerHealth
from pointsman.api.v1alpha1.llmservice import LLMService, Routing
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.events import EventRecorder, Reference
from pointsman.kube.pods import ServiceKey
from pointsman.planner import loops, memory
from pointsman.planner.cluster import Cluster
from pointsman.planner.core import plan_ledger
from pointsman.planner.core.decide import decide
from pointsman.planner.core.messages import health as messages
from pointsman.planner.core.messages.decisions import first_reading
from pointsman.planner.core.metrics.observe import Reading, Seen, SeenEncoder, counted_once, observation
from pointsman.planner.core.routing.publication import changes, is_due
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Decision,
    EncodeWorker,
    Layout,
    Objectives,
    Observation,
    Reason,
    RoutingNumbers,
    Worker,
    WorkerCondition,
)
from pointsman.planner.core.unreachable_objectives import out_of_reach, same_share, unreachable_share
from pointsman.planner.health import apply_health, health_condition, health_of
from pointsman.planner.metrics import PlannerMetrics
from pointsman.planner.plan_writer import PlanWriter
from pointsman.planner.policies import policy_of
from pointsman.planner.policy_tables import PolicyTables
from pointsman.planner.prometheus import PrometheusReadings
from pointsman.planner.prometheus_secrets import PrometheusSecrets
from pointsman.planner.routing_publisher import RoutingPublisher
from pointsman.planner.scraper import Scraper
from pointsman.planner.season_history import with_history
from pointsman.planner.source import Source, reading_within
from pointsman.planner.steady_time import SteadyTime
from pointsman.process.clock import SYSTEM_CLOCK, Clock
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds
from pointsman.serving.local_remote import DEFAULT_RULE
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET

log = logging.getLogger(__name__)

# Where what would be explained has changed, else memory.SAVE_EVERY_S; where reasons come in turn, doubled up to that.
SAVE_CHANGED_S: Final = 5.0
_ROUTING_ONLY: Final = (Reason.STEADY, Reason.FLOW_CONTROL, Reason.THRESHOLD)  # they come in turn
_OUT_OF_REACH: Final = (False, PlannerHealth.OBJECTIVES_OUT_OF_REACH)


@dataclass
class _Planned:
    """What is kept of one service between ticks. ``state`` survives a restart."""

    uid: str
    state: State
    source: Source
    plans: PlanWriter
    routing: RoutingPublisher
    role_since_s: dict[str, tuple[Role, float]] = field(default_factory=dict)
    saved_s: float = 0.0
    saved: tuple[object, object] | None = None  # what was said when it was saved
    unsaved_plan: bool = False  # a plan was written since then
    restless: bool = False  # something else was said since then
    save_words_s: float = SAVE_CHANGED_S  # after so long, where it is said otherwise of the same
    said: tuple[Reason, str] | None = None
    condition: tuple[bool, PlannerHealth, str] | None = None  # healthy, why, and of what
    unreachable_share: float = 0.0  # of requests, as the condition says
    last: memory.Last | None = None
    shown: bool = False  # what this look found, in /metrics
    history_read: bool = False  # of Prometheus, or it failed


class Planner:
    """Plans for every service with a policy; one task a service."""

    def __init__(
        self,
        *,
        kube: Kube,
        cluster: Cluster,
        scraper: Scraper,
        events: EventRecorder,
        metrics: PlannerMetrics,
        leads: Callable[[], bool],
        prometheus_timeout_s: float = 5.0,
        prometheus_urls: Collection[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._scraper = scraper
        self._events = events
        self._metrics = metrics
        self._tables = PolicyTables(kube, clock)
        self._leads = leads
        self._secrets = PrometheusSecrets(kube, clock)
        self._prometheus_timeout_s = prometheus_timeout_s
        self._prometheus_urls = prometheus_urls
        self._clock = clock
        self._time = SteadyTime(clock)
        self._without: set[ServiceKey] = set()  # services whose policy is not there, as /metrics says
        self._mended: dict[ServiceKey, str] = {}  # the version of a service whose condition was put right

    async def run(self) -> None:
        """Until cancelled. A service that gets a policy is planned within a second, one that loses it is left alone."""

        async def also() -> None:
            if self._leads():
                await self._report_unplanned()

        await loops.run_each(lambda: {key for key, _, _ in self._cluster.planned()}, self._plan, self._forget, also)

    def _forget(self, key: ServiceKey) -> None:
        self._metrics.forget(*key)
        self._scraper.keep(set(), _prefix(key))  # should it come back, its old pages would be a long window

    async def _plan(self, key: ServiceKey) -> None:
        kept: _Planned | None = None
        failures = 0  # in a row
        try:
            while True:
                wait_s, failed = loops.LOOK_FOR_SERVICES_S, ""
                found = next(((s, p) for k, s, p in self._cluster.planned() if k == key), None)
                try:
                    if found is not None and self._leads():
                        service, policy = found
                        if kept is None or kept.uid != service.metadata.uid:
                            if kept is not None:
                                kept.source.close()
                            kept = await self._remembered(key, service.metadata.uid)
                        kept.shown = False
                        with self._metrics.tick_seconds.time():
                            wait_s = await self._tick(key, service, policy, kept)
                except KubeError as error:
                    failed = str(error)
                    log.warning("API server not reached", extra={"service": "/".join(key), "why": str(error)})
                except Exception as error:  # one service's bad luck must not stop its planning for good, nor another's
                    failed = f"{type(error).__name__}: {error}"
                    log.exception("evaluation failed", extra={"service": "/".join(key)})
                failures = failures + 1 if failed else 0
                if failed and (kept is None or not kept.shown):
                    self._metrics.unknown(*key)  # the figures of an earlier look are none of now
                if failures >= loops.LOOKS_FAILED and found is not None:
                    await self._report_failure(key, found[0], kept, failed)
                await asyncio.sleep(wait_s)
        finally:
            if kept is not None:
                kept.source.close()

    async def _remembered(self, key: ServiceKey, uid: str) -> _Planned:
        """What is known of a service, by the process that planned for it before."""
        state, sequence = await memory.load(self._kube, *key, uid)
        last = await memory.load_last(self._kube, *key, uid)
        source = Source(
            _prefix(key),
            self._scraper,
            self._secrets,
            self._prometheus_timeout_s,
            self._clock,
            self._prometheus_urls,
        )
        resource = resources.LLM_SERVICES
        of = Reference(resource.api_version, resource.kind, *key, uid)
        plans = PlanWriter(
            self._kube, self._events, self._metrics, self._clock, of, lambda: self._cluster.plans.by(key), sequence
        )
        published = await memory.load_publications(self._kube, *key, uid)
        routing = RoutingPublisher(self._kube, key, uid, published)
        if isinstance(last, memory.NoLast):
            return _Planned(uid, state or State(), source, plans, routing)
        self._time.not_before(last.observation.at_s)
        roles = {
            worker.name: (worker.role, float("-inf") if worker.role_since_s is None else worker.role_since_s)
            for worker in last.observation.workers
        }
        return _Planned(uid, state or State(), source, plans, routing, role_since_s=roles)

    # --- one tick ---

    async def _tick(self, key: ServiceKey, service: LLMService, policy: PlannerPolicy, kept: _Planned) -> float:
        settings = policy_of(policy.spec, service.spec)
        workers = self._cluster.workers(key, service.spec.worker.gpus, self._clock.now().timestamp())
        encoders = self._cluster.encode_workers(key, service.spec.gpus_of(Role.ENCODE), self._clock.now().timestamp())
        gateways = self._cluster.gateways(key)
        prefix = _prefix(key)
        of_workers = [target for target, _ in (*workers, *encoders) if target is not None]
        targets = {f"{prefix}{target.key}": target for target in (*of_workers, *gateways)}
        source = await kept.source.read(key[0], policy, targets)
        names = [f"{prefix}{target.key}" for target in gateways]
        age_s = max((source.age_s(name) for name in names), default=float("inf"))
        if kept.source.is_repeated(source, names, settings.stale_after_s):
            return settings.interval_s

        at_s = self._time.now_s()
        plans = kept.plans.known()
        in_force = kept.routing.in_force(service)
        asked = plan_ledger.asked_of_a_person(plans)
        seen = []
        for target, worker in workers:
            name = f"{prefix}{target.key}" if target else ""
            dated = replace(worker, role_since_s=self._role_since(kept, worker, at_s))
            reading = reading_within(source, name, settings.stale_after_s) if target else None
            failed, age = (source.failed(name), source.age_s(name)) if target else (False, None)
            seen.append(Seen(dated, reading, failed, age))
        kept.role_since_s = {w.name: kept.role_since_s[w.name] for _, w in workers if w.name in kept.role_since_s}
        seen_encoders = [
            SeenEncoder(worker, reading_within(source, name, settings.stale_after_s), source.failed(name))
            for target, worker in encoders
            for name in (f"{prefix}{target.key}" if target else "",)
        ]
        encode_replicas = _encode_replicas(service, encoders)
        readings = {name: source.reading(name) for name in names}
        # In a thread: the pages of a thousand workers take a quarter of a second.
        observed = await asyncio.to_thread(
            observation,
            at_s=at_s,
            age_s=age_s,
            gateways=[reading or Reading({}, None, 0.0) for reading in readings.values()],
            workers=seen,
            routing=_routing(in_force),
            objectives=settings.objectives,
            plan_in_progress=self._in_progress(key, plans, workers),
            awaiting_approval=_layout_of(asked) if asked is not None and not _is_of_encode(asked, workers) else None,
            worker_gpus=service.spec.worker.gpus,
            pods_start_s=self._cluster.start_s(key, service),
            encoders=seen_encoders,
            encode_replicas=encode_replicas,
        )
        if kept.last is not None and kept.last.decision.reason is not Reason.STALE_METRICS:
            observed = counted_once(observed, kept.last.observation)
        base, unknown_table = await self._tables.base(policy)
        asks_history = settings.seasonal and not kept.history_read
        if asks_history and isinstance(source, PrometheusReadings) and source.problem is None:
            kept.history_read = True
            kept.state = await with_history(kept.state, source, *key, at_s)
        kept.state, decision, next_tick = await asyncio.to_thread(decide, kept.state, observed, settings, at_s, base)
        unreadable = any(source.failed(name) for name in names) or any(
            worker.condition is WorkerCondition.UNREACHABLE for worker in observed.workers
        )
        is_first = kept.source.is_first_look(readings, at_s, settings.stale_after_s)
        first = age_s <= settings.stale_after_s and is_first
        if decision.reason is Reason.STALE_METRICS and first and not unreadable:
            decision = replace(decision, reason=Reason.NOT_ENOUGH_DATA, message=first_reading("gateway"))
        kept.last = memory.Last(observed, decision)
        self._metrics.ticked(*key, observed, decision, settings)
        kept.shown = True
        self._say(key, kept, decision)
        published_at = in_force.updated_at if in_force and in_force.set_by == ROUTING_SET_BY_PLANNER else None
        stamped_s = published_at.timestamp() if published_at is not None else None
        unpublished: KubeError | None = None
        last = kept.routing.history[-1] if kept.routing.history else None
        if is_due(decision, observed, settings, stamped_s, last, self._clock.now().timestamp()):
            try:
                await self._publish(key, kept, observed, decision, settings.objectives)
            except KubeError as error:  # a refusal of the numbers must delay neither the layout nor the saved state
                unpublished = error
        await self._write(key, service, policy, kept, plans, observed, decision, asked)
        if unpublished is not None:
            raise unpublished
        if kept.unsaved_plan:
            return next_tick.after_s  # a look makes at most three writes: the condition can wait for the next one
        unreachable = source.problem if isinstance(source, PrometheusReadings) else None
        said = kept.condition is not None and kept.condition[:2] == _OUT_OF_REACH
        missed = out_of_reach(decision, settings.objectives, said=said, tuning=settings.tuning)
        await self._report_health(key, service, kept, decision, unknown_table, unreachable, missed, settings.objectives)
        return next_tick.after_s

    def _in_progress(self, key: ServiceKey, plans: Sequence[Plan], workers: Sequence[tuple[object, Worker]]) -> bool:
        """A plan that changes prefill and decode is to be carried out and has not ended, or a switch has not.

        A plan that changes the encode pool alone does not count: its workers take minutes to start, and the other
        pools are planned meanwhile.
        """
        busy = any(plan_ledger.to_be_carried_out(plan) and not _is_of_encode(plan, workers) for plan in plans)
        return busy or self._cluster.is_switching(key)

    @staticmethod
    def _role_since(kept: _Planned, worker: Worker, at_s: float) -> float | None:
        """Since when a worker has its role; None for what it had when the planner began to look."""
        before = kept.role_since_s.get(worker.name)
        if before is None:
            kept.role_since_s[worker.name] = (worker.role, float("-inf"))
            return None
        if before[0] is not worker.role:
            kept.role_since_s[worker.name] = (worker.role, at_s)
            return at_s
        return before[1] if before[1] != float("-inf") else None

    # --- what it leaves behind ---

    def _say(self, key: ServiceKey, kept: _Planned, decision: Decision) -> None:
        level = logging.DEBUG if kept.said and kept.said[0] is decision.reason else logging.INFO
        log.log(
            level,
            "service evaluated",
            extra={"service": "/".join(key), "reason": decision.reason, "detail": decision.message},
        )
        kept.said = (decision.reason, decision.message)

    async def _write(
        self,
        key: ServiceKey,
        service: LLMService,
        policy: PlannerPolicy,
        kept: _Planned,
        plans: Sequence[Plan],
        observed: Observation,
        decision: Decision,
        asked: Plan | None,
    ) -> None:
        layout: tuple[int, ...] = (observed.committed(Role.PREFILL), observed.committed(Role.DECODE))
        if decision.encode is not None and observed.encode_replicas is not None:
            layout = (*layout, observed.encode_replicas)
        now_s = self._clock.monotonic_s()
        news = plan_ledger.news(decision, plans, policy.spec, layout, self._clock.now())
        kept.restless |= kept.saved is not None and _said(kept) != kept.saved
        if news is not None:
            sequence = kept.plans.next_sequence()
            if kept.plans.must_save:
                await self._save(key, service, kept, now_s)
            await kept.plans.create(
                plan_ledger.plan_manifest(
                    namespace=key[0],
                    service=key[1],
                    service_uid=service.metadata.uid,
                    sequence=sequence,
                    decision=news,
                    policy=policy.spec,
                    layout=layout,
                    now=self._clock.now(),
                    awaiting=asked.metadata.name if asked is not None else "",
                    encode_gpus=max(1, service.spec.gpus_of(Role.ENCODE)),
                )
            )
            kept.unsaved_plan = True
        elif kept.unsaved_plan or now_s - kept.saved_s >= _save_after_s(kept):
            await self._save(key, service, kept, now_s)
        else:
            await kept.plans.delete_outdated()

    async def _publish(
        self, key: ServiceKey, kept: _Planned, observed: Observation, decision: Decision, objectives: Objectives
    ) -> None:
        before, after, reason = observed.routing, decision.routing, decision.routing_reason or decision.reason
        await kept.routing.publish(before, after, reason, self._clock.now(), objectives)
        self._metrics.published(*key, reason)
        log.info(
            "routing published",
            extra={"service": "/".join(key), "reason": reason, "changes": ", ".join(changes(before, after))},
        )

    async def _save(self, key: ServiceKey, service: LLMService, kept: _Planned, now_s: float) -> None:
        kept.save_words_s = min(2 * kept.save_words_s, memory.SAVE_EVERY_S) if kept.restless else SAVE_CHANGED_S
        kept.saved_s, kept.saved, kept.restless, kept.unsaved_plan = now_s, _said(kept), False, False
        sequence, published = kept.plans.to_reserve, kept.routing.history
        await memory.save(self._kube, _owner(service), *key, kept.state, sequence, kept.last, published)
        kept.plans.saved()

    async def _report_health(
        self,
        key: ServiceKey,
        service: LLMService,
        kept: _Planned,
        decision: Decision,
        unknown_table: str | None,
        unreachable: str | None,
        missed: str | None,
        objectives: Objectives,
    ) -> None:
        """The condition PlannerHealthy, written when it changes: frozen metrics are said, not hidden."""
        frozen, of = decision.reason is Reason.STALE_METRICS, ""
        if frozen and unreachable is not None:
            healthy, reason, message = False, PlannerHealth.PROMETHEUS_UNREACHABLE, unreachable
            of = unreachable
        elif frozen:
            healthy, reason, message = False, PlannerHealth.STALE_METRICS, decision.message
        elif unknown_table is not None:
            healthy, reason, message, of = False, PlannerHealth.UNKNOWN_TABLE, unknown_table, unknown_table
        elif missed is not None:
            (healthy, reason), message = _OUT_OF_REACH, missed
            if not same_share(share := unreachable_share(decision), kept.unreachable_share):
                kept.unreachable_share = share
            asked = (objectives.ttft_ms, objectives.ttft_ms_per_prompt_token, objectives.tpot_ms)
            of = f"{asked} {kept.unreachable_share}"
        elif not decision.inputs and kept.condition is not None and kept.condition[:2] == _OUT_OF_REACH:
            return  # it says nothing about them
        else:
            healthy, reason, message = (
                True,
                PlannerHealth.PLANNING,
                messages.planning(key[1]),
            )
        self._metrics.health(*key, healthy, reason)
        if kept.condition == (healthy, reason, of):
            return
        await self._write_health(key, service, healthy, reason, message)
        kept.condition = (healthy, reason, of)

    async def _report_failure(self, key: ServiceKey, service: LLMService, kept: _Planned | None, error: str) -> None:
        """Looks end in an error: nobody must take the planner's last word for its present one."""
        self._metrics.health(*key, False, PlannerHealth.EVALUATION_FAILED)
        said = health_of(service.status.conditions)
        if kept is not None and kept.condition is not None:
            written = kept.condition[1] is PlannerHealth.EVALUATION_FAILED
        else:
            written = said is not None and said.reason == PlannerHealth.EVALUATION_FAILED
        if written:
            return
        message = messages.service_fails(error[: loops.MOST_OF_AN_ERROR])
        try:
            await self._write_health(key, service, False, PlannerHealth.EVALUATION_FAILED, message)
        except KubeError:
            return  # nobody can be told now; it is said as soon as it can be
        if kept is not None:
            kept.condition = (False, PlannerHealth.EVALUATION_FAILED, "")

    async def _report_unplanned(self) -> None:
        """What the condition PlannerHealthy says where nobody plans, whoever wrote it: nothing is left of a plan."""
        without: set[ServiceKey] = set()
        mended: dict[ServiceKey, str] = {}
        for key, service in list(self._cluster.unplanned()):
            reason = PlannerHealth.POLICY_NOT_FOUND
            wanted: str | None = None
            if service.spec.policy_ref is not None:
                without.add(key)
                reason, wanted = self._without_policy(key[0], service.spec.policy_ref.name)
                self._metrics.health(*key, False, reason)
            said = health_of(service.status.conditions)
            if (said and (said.reason, said.message)) == (wanted and (reason, wanted)):
                continue
            mended[key] = version = service.metadata.resource_version
            if self._mended.get(key) == version:
                continue  # it is not shown yet; or it is somebody else's, and stays
            try:
                if wanted is None:
                    await self._apply_health(key, [])
                else:
                    await self._write_health(key, service, False, reason, wanted)
            except KubeError as error:
                del mended[key]
                log.warning("API server not reached", extra={"service": "/".join(key), "why": str(error)})
        for key in self._without - without - {key for key, _, _ in self._cluster.planned()}:
            self._metrics.forget(*key)
        self._without, self._mended = without, mended

    def _without_policy(self, namespace: str, name: str) -> tuple[PlannerHealth, str]:
        """Why no policy of that name is followed."""
        why = self._cluster.policies.why_unreadable(name, namespace)
        if why is not None:
            return PlannerHealth.POLICY_UNREADABLE, messages.policy_unreadable(name, why)
        return PlannerHealth.POLICY_NOT_FOUND, messages.policy_not_found(name)

    async def _write_health(
        self, key: ServiceKey, service: LLMService, healthy: bool, reason: PlannerHealth, message: str
    ) -> None:
        before = health_of(service.status.conditions)
        generation, now = service.metadata.generation, self._clock.now()
        await self._apply_health(key, [health_condition(before, healthy, reason, message, generation, now)])

    async def _apply_health(self, key: ServiceKey, conditions: Sequence[Condition]) -> None:
        await apply_health(self._kube, resources.LLM_SERVICES, key, conditions)


def _prefix(key: ServiceKey) -> str:
    """Of the names of its targets."""
    return f"{key}/"


def _layout_of(plan: Plan) -> Layout:
    return Layout(plan.spec.replicas(Role.PREFILL), plan.spec.replicas(Role.DECODE))


def _is_of_encode(plan: Plan, workers: Sequence[tuple[object, Worker]]) -> bool:
    """Whether a plan leaves prefill and decode as they are, and is about the encode pool."""
    if Role.ENCODE not in plan.spec.roles or plan.spec.switches:
        return False
    there = [worker.role for _, worker in workers if worker.condition is not WorkerCondition.DRAINING]
    return _layout_of(plan) == (there.count(Role.PREFILL), there.count(Role.DECODE))


def _encode_replicas(service: LLMService, encoders: Sequence[tuple[object, EncodeWorker]]) -> int | None:
    """Encode workers that are asked for, as the operator says; None: the service has no encode pool."""
    if service.spec.encode is None:
        return None
    pools = service.status.pools
    if pools is not None and pools.encode is not None and pools.encode.desired is not None:
        return pools.encode.desired
    return sum(worker.condition is not WorkerCondition.DRAINING for _, worker in encoders)


def _save_after_s(kept: _Planned) -> float:
    """How long after the last time the memory is saved, where no plan is written: that saves it at once."""
    said = _said(kept)
    if said == kept.saved:
        return memory.SAVE_EVERY_S
    other = said is None or kept.saved is None or said[1] != kept.saved[1]
    return SAVE_CHANGED_S if other else kept.save_words_s


def _said(kept: _Planned) -> tuple[object, object] | None:
    """(what was decided, of what): what of the last look a person would miss if ``explain`` told of an earlier one."""
    if kept.last is None:
        return None
    seen, decision = kept.last.observation, kept.last.decision
    workers = sorted((worker.role, worker.condition) for worker in seen.workers)
    reason = Reason.STEADY if decision.reason in _ROUTING_ONLY else decision.reason
    aim = reason, decision.prefill, decision.decode
    return aim, (workers, seen.plan_in_progress, seen.awaiting_approval)


def _owner(service: LLMService) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "LLMService",
        "name": service.metadata.name,
        "uid": service.metadata.uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }


def _routing(routing: Routing | None) -> RoutingNumbers:
    """The numbers in force: those that were published, else what gateways and workers begin with."""
    tokens = routing.max_local_prefill_tokens if routing else None
    size = routing.max_prefill_queue_size if routing else None
    return RoutingNumbers(
        DEFAULT_RULE.max_local_prefill_tokens if tokens is None else tokens,
        DEFAULT_RULE.max_prefill_queue_size if size is None else size,
        FlowBounds(
            routing.pending_tokens_per_prefill_worker, routing.decoding_per_decode_worker, routing.slack_milliseconds
        )
        if routing
        else UNBOUNDED,
        (routing.prefill_token_budget if routing else None) or DEFAULT_PREFILL_TOKEN_BUDGET,
    )
