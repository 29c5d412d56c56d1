"""One evaluation of one service: read, observe, decide, publish, write, report."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pointsman.api.protocol.names import API_VERSION, ROUTING_SET_BY_PLANNER, Role
from pointsman.api.v1alpha1.llmservice import LLMService, Routing
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.plannerpolicy import DEFAULT_STALE_AFTER_S, PlannerPolicy
from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.pods import ServiceKey
from pointsman.planner import memory
from pointsman.planner.cluster import Cluster, Target
from pointsman.planner.core import plan_ledger
from pointsman.planner.core.decide import decide
from pointsman.planner.core.messages.decisions import first_reading, too_few_intervals, unreadable_gateways
from pointsman.planner.core.messages.words import sentences
from pointsman.planner.core.metrics.observe import UNREAD, Reading, Seen, counted_once, observation
from pointsman.planner.core.routing.publication import changes, is_due
from pointsman.planner.core.types import (
    Decision,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    Worker,
    WorkerCondition,
)
from pointsman.planner.metrics import PlannerMetrics
from pointsman.planner.policies import policy_of
from pointsman.planner.policy_tables import PolicyTables
from pointsman.planner.prometheus import PrometheusReadings
from pointsman.planner.scraper import Scraper
from pointsman.planner.season_history import with_history
from pointsman.planner.service_health import Findings, ServiceHealth
from pointsman.planner.service_record import ServiceRecord
from pointsman.planner.source import Unread, ages_of_failed_s, exclude_ended_gateways, reading_within
from pointsman.planner.steady_time import SteadyTime
from pointsman.process.clock import Clock
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds
from pointsman.serving.local_remote import DEFAULT_RULE
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Subject:
    """The service that is evaluated."""

    key: ServiceKey
    service: LLMService
    policy: PlannerPolicy
    settings: Policy
    record: ServiceRecord


@dataclass(frozen=True, slots=True)
class _Pods:
    """Its pods, and the pages that were read of them. ``gateways``: pods by the names of their targets."""

    workers: Sequence[tuple[Target | None, Worker]]
    encoders: Sequence[tuple[Target | None, Worker]]
    gateways: Mapping[str, Target]
    source: Scraper | PrometheusReadings

    def ages_s(self) -> dict[str, float]:
        """Of the newest pages of the gateways."""
        return {name: self.source.age_s(name) for name in self.gateways}

    def readings(self) -> dict[str, Reading | None]:
        """Of the gateways."""
        return {name: self.source.reading(name) for name in self.gateways}


@dataclass(frozen=True, slots=True)
class _InForce:
    """Plans and routing numbers that are there before the decision."""

    plans: Sequence[Plan]
    routing: Routing | None


class Evaluator:
    """Evaluates services for the loop."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        metrics: PlannerMetrics,
        health: ServiceHealth,
        time: SteadyTime,
        clock: Clock,
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._metrics = metrics
        self._health = health
        self._tables = PolicyTables(kube, clock)
        self._time = time
        self._clock = clock

    async def evaluate(
        self, key: ServiceKey, service: LLMService, policy: PlannerPolicy, record: ServiceRecord
    ) -> float:
        """Returns after how many seconds the next evaluation is due. Raises KubeError."""
        settings = policy_of(policy.spec, service.spec)
        subject = _Subject(key, service, policy, settings, record)

        # 1. Read the pods.
        pods = await self._read_pods(subject)
        settings = replace(settings, stale_after_s=record.source.stale_after_s(policy.spec.metrics, pods.gateways))
        pods = replace(pods, gateways=exclude_ended_gateways(pods.gateways, pods.source, settings.stale_after_s))
        subject = replace(subject, settings=settings)
        if record.source.is_repeated(pods.source, list(pods.gateways), settings.stale_after_s):
            return settings.interval_s

        # 2. Observe.
        at_s, readings = self._time.now_s(), pods.readings()
        unread = record.source.unread(
            readings, at_s, settings.stale_after_s, lost_s=ages_of_failed_s(pods.source, pods.gateways)
        )
        in_force = _InForce(record.plans.known(), record.routing.in_force(service))
        observed = await self._observe(subject, pods, in_force, at_s, readings, unread)

        # 3. Decide.
        base, unknown_table = await self._tables.base(policy)
        await self._read_history(subject, pods, at_s)
        state, decision, next_tick = await asyncio.to_thread(decide, record.state, observed, settings, at_s, base)
        record.state = state
        decision = _with_unread(subject, pods, observed, decision, unread)
        self._show(subject, observed, decision)

        # 4. Publish the routing numbers. A refusal of them must delay neither the layout nor the saved state. They wait
        # for the next evaluation if the plan's number must be saved first: save, plan and Event are three writes.
        plan = self._next_plan(subject, in_force, observed, decision)
        published, unpublished = False, None
        if plan is None or not record.plans.must_save:
            published, unpublished = await self._publish_if_due(subject, in_force.routing, observed, decision)

        # 5. Write a plan, or save what is remembered.
        try:
            written = await self._write(subject, plan)
        except KubeError:
            if plan is not None and record.plans.must_save:  # it could not be saved
                await self._publish_if_due(subject, in_force.routing, observed, decision)
            raise
        if unpublished is not None:
            raise unpublished

        # 6. Report the condition. An evaluation makes at most three writes: after a plan, the next one reports it.
        reported = False
        if not record.has_unsaved_plan:
            problem = pods.source.problem if isinstance(pods.source, PrometheusReadings) else None
            lost, too_soon = observed.unreadable_gateways, record.source.too_soon(policy.spec.metrics, pods.gateways)
            found = Findings(decision, settings, unknown_table, problem, lost, too_soon)
            reported = await self._health.report(key, service, record, found)

        # 7. Delete old plans if nothing else was written.
        if not (published or written or reported):
            await record.plans.delete_outdated()
        return next_tick.after_s

    # --- 1, 2: read and observe ---

    async def _read_pods(self, subject: _Subject) -> _Pods:
        key, spec, prefix = subject.key, subject.service.spec, target_prefix(subject.key)
        workers = self._cluster.workers(key, spec.worker.gpus, self._clock.now().timestamp())
        encoders = self._cluster.encode_workers(key, spec.gpus_of(Role.ENCODE), self._clock.now().timestamp())
        gateways = self._cluster.gateways(key, subject.record.source.known_targets())
        of_workers = [target for target, _ in (*workers, *encoders) if target is not None]
        targets = {f"{prefix}{target.key}": target for target in (*of_workers, *gateways)}
        source = await subject.record.source.read(key[0], subject.policy, targets)
        return _Pods(workers, encoders, {f"{prefix}{target.key}": target for target in gateways}, source)

    async def _observe(
        self,
        subject: _Subject,
        pods: _Pods,
        in_force: _InForce,
        at_s: float,
        readings: Mapping[str, Reading | None],
        unread: Unread,
    ) -> Observation:
        record, settings = subject.record, subject.settings
        read = [name for name, reading in readings.items() if reading is not None and name not in unread.late]
        ages_s = pods.ages_s()
        # In a thread: the pages of a thousand workers take a quarter of a second.
        observed = await asyncio.to_thread(
            observation,
            at_s=at_s,
            age_s=max((ages_s[name] for name in read or readings), default=float("inf")),
            # Before all were read once, a part of the load would look like all of it.
            gateways=[readings[name] or UNREAD for name in (*read, *unread.first)],
            new_gateways=len(unread.new) + unread.gone,
            unreadable_gateways=tuple(pods.gateways[name].pod.metadata.name for name in unread.late),
            workers=_seen_workers(subject, pods),
            routing=_routing(in_force.routing),
            objectives=settings.objectives,
            plan_in_progress=self._in_progress(subject.key, in_force.plans, pods.workers),
            worker_gpus=subject.service.spec.worker.gpus,
            pods_start_s=self._cluster.start_s(subject.key, subject.service),
            encoders=_seen_encoders(subject, pods),
            encode_replicas=_encode_replicas(subject.service, pods.encoders),
            encode_gpus=subject.service.spec.gpus_of(Role.ENCODE),
        )
        # Each gets its share of what all may have under way; one that is not ready gets no new requests.
        gateways = max(1, sum(each.is_ready for each in pods.gateways.values()))
        asked = plan_ledger.asked_of_a_person(in_force.plans)
        observed = replace(observed, gateways=gateways)
        if asked is not None:
            needs_approval = plan_ledger.needs_approval(asked.spec, subject.policy.spec, observed.pools)
            observed = replace(observed, awaiting_approval=asked.spec.target, needs_approval=needs_approval)
        if record.last is not None and record.last.decision.reason is not Reason.STALE_METRICS:
            return counted_once(observed, record.last.observation)
        return observed

    def _in_progress(self, key: ServiceKey, plans: Sequence[Plan], workers: Sequence[tuple[object, Worker]]) -> bool:
        """A plan that changes prefill and decode is to be carried out and has not ended, or a switch has not.

        A plan that changes the encode pool alone does not count: its workers take minutes to start, and the other
        pools are planned meanwhile.
        """
        busy = any(plan_ledger.to_be_carried_out(plan) and not _is_of_encode(plan, workers) for plan in plans)
        return busy or self._cluster.is_switching(key)

    # --- 3: decide ---

    async def _read_history(self, subject: _Subject, pods: _Pods, at_s: float) -> None:
        record, source = subject.record, pods.source
        if not subject.settings.seasonal or record.history_read:
            return
        if isinstance(source, PrometheusReadings) and source.problem is None:
            record.history_read = True
            record.state = await with_history(record.state, source, *subject.key, at_s)

    def _show(self, subject: _Subject, observed: Observation, decision: Decision) -> None:
        """In metrics and log."""
        record = subject.record
        record.last = memory.Last(observed, decision)
        self._metrics.ticked(*subject.key, observed, decision, subject.settings)
        record.metrics_published = True
        log.log(
            logging.DEBUG if record.last_logged is decision.reason else logging.INFO,
            "service evaluated",
            extra={"service": "/".join(subject.key), "reason": decision.reason, "detail": decision.message},
        )
        record.last_logged = decision.reason

    # --- 4, 5: publish and write ---

    async def _publish_if_due(
        self, subject: _Subject, in_force: Routing | None, observed: Observation, decision: Decision
    ) -> tuple[bool, KubeError | None]:
        """At most one write: (whether it was made, why it could not be)."""
        settings, routing = subject.settings, subject.record.routing
        try:
            if await routing.remove_leftovers():
                return True, None
        except KubeError as error:
            return False, error
        published_at = in_force.updated_at if in_force and in_force.set_by == ROUTING_SET_BY_PLANNER else None
        stamped_s = published_at.timestamp() if published_at is not None else None
        last = routing.history[-1] if routing.history else None
        if not is_due(decision, observed, settings, stamped_s, last, self._clock.now().timestamp()):
            return False, None
        before, after, reason = observed.routing, decision.routing, decision.routing_reason or decision.reason
        try:
            await routing.publish(before, after, reason, self._clock.now(), settings.objectives)
        except KubeError as error:
            return False, error
        self._metrics.published(*subject.key, reason)
        log.info(
            "routing published",
            extra={"service": "/".join(subject.key), "reason": reason, "changes": ", ".join(changes(before, after))},
        )
        return True, None

    def _next_plan(
        self, subject: _Subject, in_force: _InForce, observed: Observation, decision: Decision
    ) -> dict[str, Any] | None:
        """The manifest of a plan that is to be written, with a number of its own."""
        layout = observed.pools[: len(decision.target)]
        news = plan_ledger.news(decision, in_force.plans, subject.policy.spec, layout, self._clock.now())
        if news is None:
            return None
        asked = plan_ledger.asked_of_a_person(in_force.plans)
        return self._plan(subject, subject.record.plans.next_sequence(), news, layout, asked)

    async def _write(self, subject: _Subject, plan: dict[str, Any] | None) -> bool:
        """Whether anything was written."""
        record, now_s = subject.record, self._clock.monotonic_s()
        record.note_changes()
        if plan is not None:
            if record.plans.must_save:
                await self._save(subject, now_s)
            await record.plans.create(plan)
            record.has_unsaved_plan = True
            return True
        if record.must_save(now_s):
            await self._save(subject, now_s)
            return True
        return False

    def _plan(
        self, subject: _Subject, sequence: int, news: Decision, layout: tuple[int, ...], asked: Plan | None
    ) -> dict[str, Any]:
        return plan_ledger.plan_manifest(
            namespace=subject.key[0],
            owner=_owner(subject.service),
            sequence=sequence,
            decision=news,
            policy=subject.policy.spec,
            layout=layout,
            now=self._clock.now(),
            awaiting=asked.metadata.name if asked is not None else "",
            encode_gpus=max(1, subject.service.spec.gpus_of(Role.ENCODE)),
        )

    async def _save(self, subject: _Subject, now_s: float) -> None:
        record = subject.record
        record.note_save(now_s)
        sequence, published = record.plans.to_reserve, record.routing.history
        owner = _owner(subject.service)
        await memory.save(self._kube, owner, *subject.key, record.state, sequence, record.last, published)
        record.plans.saved()


def target_prefix(key: ServiceKey) -> str:
    """Of the names of a service's targets."""
    return f"{key}/"


def _seen_workers(subject: _Subject, pods: _Pods) -> list[Seen]:
    source, prefix = pods.source, target_prefix(subject.key)
    seen = []
    for target, worker in pods.workers:
        name = f"{prefix}{target.key}" if target else ""
        reading = reading_within(source, name, subject.settings.stale_after_s) if target else None
        failed, age = (source.failed(name), source.age_s(name)) if target else (False, None)
        seen.append(Seen(worker, reading, failed, age))
    return seen


def _seen_encoders(subject: _Subject, pods: _Pods) -> list[Seen]:
    source, prefix = pods.source, target_prefix(subject.key)
    return [
        Seen(worker, reading_within(source, name, subject.settings.stale_after_s), source.failed(name))
        for target, worker in pods.encoders
        for name in (f"{prefix}{target.key}" if target else "",)
    ]


def _with_unread(subject: _Subject, pods: _Pods, observed: Observation, decision: Decision, unread: Unread) -> Decision:
    """Where gateways were not read twice: that is no fault at first, but too little data; later it is said."""
    if decision.reason is not Reason.STALE_METRICS:
        lost = observed.unreadable_gateways
        return replace(decision, message=sentences(decision.message, unreadable_gateways(lost))) if lost else decision
    unreadable = any(pods.source.failed(name) for name in pods.gateways) or any(
        worker.condition is WorkerCondition.UNREACHABLE for worker in observed.workers
    )
    if unread.first and not unreadable:
        return replace(decision, reason=Reason.NOT_ENOUGH_DATA, message=first_reading("gateway"))
    stale_after_s = subject.policy.spec.metrics.stale_after_seconds
    if isinstance(pods.source, PrometheusReadings) and stale_after_s != DEFAULT_STALE_AFTER_S:
        return replace(decision, message=sentences(decision.message, too_few_intervals(stale_after_s)))
    return decision


def _is_of_encode(plan: Plan, workers: Sequence[tuple[object, Worker]]) -> bool:
    """Whether a plan leaves prefill and decode as they are, and is about the encode pool."""
    if Role.ENCODE not in plan.spec.roles or plan.spec.switches:
        return False
    there = [worker.role for _, worker in workers if worker.condition is not WorkerCondition.DRAINING]
    return plan.spec.target[:2] == (there.count(Role.PREFILL), there.count(Role.DECODE))


def _encode_replicas(service: LLMService, encoders: Sequence[tuple[object, Worker]]) -> int | None:
    """Encode workers that are asked for, as the operator says; None: the service has no encode pool."""
    if service.spec.encode is None:
        return None
    pools = service.status.pools
    if pools is not None and pools.encode is not None and pools.encode.desired is not None:
        return pools.encode.desired
    return sum(worker.condition is not WorkerCondition.DRAINING for _, worker in encoders)


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
