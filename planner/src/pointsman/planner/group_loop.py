"""The live loop for elastic groups: per group, read, decide, write a Plan, at the interval that its policy asks for."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pointsman.api.v1alpha1.conditions import PlannerHealth
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy, PlannerPolicySpec
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.events import EventRecorder, Reference
from pointsman.kube.pods import ServiceKey
from pointsman.planner import group_memory, loops
from pointsman.planner.cluster import Cluster
from pointsman.planner.core import plan_ledger
from pointsman.planner.core.elastic.decide import GroupState, decide
from pointsman.planner.core.elastic.observe import manager_window, seen_by_gateways
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.engine.startup_time import with_pods_start
from pointsman.planner.core.messages import health as messages
from pointsman.planner.core.messages.decisions import first_reading, unreadable_gateways
from pointsman.planner.core.messages.words import sentences
from pointsman.planner.core.types import Bounds, Observation, Policy, Reason
from pointsman.planner.group_memory import GroupLast
from pointsman.planner.group_status import latency_of
from pointsman.planner.health import apply_health, health_condition, health_of
from pointsman.planner.memory import SAVE_EVERY_S
from pointsman.planner.metrics import PlannerMetrics
from pointsman.planner.plan_writer import PlanWriter
from pointsman.planner.policies import policy_of_group
from pointsman.planner.prometheus import PrometheusReadings
from pointsman.planner.prometheus_secrets import PrometheusSecrets
from pointsman.planner.scraper import Scraper
from pointsman.planner.source import Source, Unread, ages_of_failed_s, exclude_ended_gateways
from pointsman.planner.steady_time import SteadyTime
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

_LOOK_AGAIN_S: Final = 5.0  # after a look that failed


@dataclass
class _GroupRecord:
    """What the loop keeps of one group between evaluations. ``state`` survives a restart."""

    uid: str
    state: GroupState
    source: Source
    plans: PlanWriter
    saved_at_s: float = 0.0
    has_unsaved_plan: bool = False  # a plan was written since then
    saved_summary: tuple[Reason, int] | None = None  # what was decided
    condition: tuple[bool, PlannerHealth] | None = None
    decided_on: Observation | None = None  # at the last look; None: it was too old


class GroupPlanner:
    """Plans for every elastic group with a policy; one task a group."""

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
        self._leads = leads
        self._secrets = PrometheusSecrets(kube, clock)
        self._prometheus_timeout_s = prometheus_timeout_s
        self._prometheus_urls = prometheus_urls
        self._clock = clock
        self._time = SteadyTime(clock)

    async def run(self) -> None:
        """Until cancelled."""
        await loops.run_each(
            lambda: {key for key, _, _ in self._cluster.planned_groups()}, self._plan, self._forget, self._unplanned
        )

    def _forget(self, key: ServiceKey) -> None:
        self._metrics.forget(*key)
        self._scraper.keep(set(), _prefix(key))

    async def _unplanned(self) -> None:
        """Nothing is said of groups that have no policy any more."""
        planned = {key for key, _, _ in self._cluster.planned_groups()}
        for group in self._cluster.groups.objects() if self._leads() else ():
            key = (group.metadata.namespace, group.metadata.name)
            if key in planned or health_of(group.status.conditions) is None:
                continue
            try:
                await apply_health(self._kube, resources.ELASTIC_GROUPS, key, [])
            except KubeError as error:
                log.warning("API server not reached", extra={"group": "/".join(key), "why": str(error)})

    async def _plan(self, key: ServiceKey) -> None:
        record: _GroupRecord | None = None
        failures = 0  # in a row
        try:
            while True:
                wait_s, failed = loops.LOOK_FOR_SERVICES_S, ""
                found = next(((g, p) for k, g, p in self._cluster.planned_groups() if k == key), None)
                try:
                    if found is not None and self._leads():
                        group, policy = found
                        if record is None or record.uid != group.metadata.uid:
                            if record is not None:
                                record.source.close()
                            record = await self._remembered(key, group.metadata.uid)
                        with self._metrics.tick_seconds.time():
                            wait_s = await self._look(key, group, policy, record)
                except KubeError as error:
                    failed = str(error)
                    log.warning("API server not reached", extra={"group": "/".join(key), "why": str(error)})
                except Exception as error:  # one group's bad luck must not stop its planning for good, nor another's
                    failed = f"{type(error).__name__}: {error}"
                    log.exception("evaluation failed", extra={"group": "/".join(key)})
                failures = failures + 1 if failed else 0
                if failed:
                    self._metrics.unknown(*key)  # the figures of an earlier look are none of now
                    wait_s = _LOOK_AGAIN_S
                if failures >= loops.LOOKS_FAILED and found is not None:
                    text = messages.group_fails(failed[: loops.MOST_OF_AN_ERROR])
                    await self._say_health(key, found[0], record, False, PlannerHealth.EVALUATION_FAILED, text)
                await asyncio.sleep(wait_s)
        finally:
            if record is not None:
                record.source.close()

    async def _remembered(self, key: ServiceKey, uid: str) -> _GroupRecord:
        state, sequence = await group_memory.load(self._kube, *key, uid)
        last = await group_memory.load_last(self._kube, *key, uid)
        if isinstance(last, GroupLast):
            self._time.not_before(last.observation.seen.at_s)
        source = Source(
            _prefix(key),
            self._scraper,
            self._secrets,
            self._prometheus_timeout_s,
            self._clock,
            self._prometheus_urls,
        )
        resource = resources.ELASTIC_GROUPS
        of = Reference(resource.api_version, resource.kind, *key, uid)
        plans = PlanWriter(
            self._kube,
            self._events,
            self._metrics,
            self._clock,
            of,
            lambda: self._cluster.plans_of_group(key),
            sequence,
        )
        return _GroupRecord(uid, state, source, plans)

    # --- one look ---

    async def _look(self, key: ServiceKey, group: ElasticGroup, policy: PlannerPolicy, record: _GroupRecord) -> float:
        settings = with_pods_start(policy_of_group(policy.spec, group.spec), self._cluster.group_start_s(key))
        gateways, manager = self._cluster.gateways(key, record.source.known_targets()), self._cluster.manager(key)
        targets = {_prefix(key) + t.key: t for t in (*gateways, *([manager] if manager else []))}
        source = await record.source.read(key[0], policy, targets)
        settings = replace(settings, stale_after_s=record.source.stale_after_s(policy.spec.metrics, targets))
        of_manager = _prefix(key) + manager.key if manager is not None else None
        named = {name: target for name, target in targets.items() if name != of_manager}
        named = exclude_ended_gateways(named, source, settings.stale_after_s)
        targets = {name: target for name, target in targets.items() if name in named or name == of_manager}
        if record.source.is_repeated(source, list(targets), settings.stale_after_s):
            return settings.interval_s
        at_s = self._time.now_s()
        readings = {name: source.reading(name) for name in targets}
        ages_s = ages_of_failed_s(source, named)
        unread = record.source.unread(readings, at_s, settings.stale_after_s, of_manager, lost_s=ages_s)
        pods = {name: target.pod.metadata.name for name, target in named.items()}
        observed = self._observed(key, group, policy.spec, settings, source, record, at_s, unread, pods)
        bounds = Bounds(group.spec.instances.min_replicas, group.spec.instances.max_replicas)
        record.state, decision = decide(record.state, observed, settings, bounds, at_s)
        record.decided_on = None if decision.reason is Reason.STALE_METRICS else observed.seen
        if decision.reason is Reason.STALE_METRICS and unread.first and not any(map(source.failed, targets)):
            decision = replace(decision, reason=Reason.NOT_ENOUGH_DATA, message=first_reading("pod"))
        lost = observed.seen.unreadable_gateways
        if lost and decision.reason is not Reason.STALE_METRICS:
            decision = replace(decision, message=sentences(decision.message, unreadable_gateways(lost)))
        self._metrics.group_looked(*key, observed, decision, settings)
        level = logging.DEBUG if record.saved_summary and record.saved_summary[0] is decision.reason else logging.INFO
        log.log(
            level,
            "group evaluated",
            extra={"group": "/".join(key), "reason": decision.reason, "detail": decision.message},
        )
        written = await self._write(key, group, policy, record, observed, decision)
        # A look makes at most three writes: after a plan, the next one reports the condition.
        if not record.has_unsaved_plan:
            healthy, reason, message = True, PlannerHealth.PLANNING, messages.planning(key[1])
            if isinstance(source, PrometheusReadings) and source.problem is not None:
                healthy, reason, message = False, PlannerHealth.PROMETHEUS_UNREACHABLE, source.problem
            elif decision.reason is Reason.STALE_METRICS:
                healthy, reason, message = False, PlannerHealth.STALE_METRICS, decision.message
            elif lost:
                healthy, reason, message = False, PlannerHealth.GATEWAY_UNREADABLE, unreadable_gateways(lost)
            written |= await self._say_health(key, group, record, healthy, reason, message)
        if not written:
            await record.plans.delete_outdated()
        return settings.interval_s

    def _observed(
        self,
        key: ServiceKey,
        group: ElasticGroup,
        policy: PlannerPolicySpec,
        settings: Policy,
        source: Scraper | PrometheusReadings,
        record: _GroupRecord,
        at_s: float,
        unread: Unread,
        pods: Mapping[str, str],
    ) -> GroupObservation:
        names = [name for name in pods if name not in (*unread.new, *unread.late)]
        manager = self._cluster.manager(key)
        manager_name = _prefix(key) + manager.key if manager is not None else ""
        plans = record.plans.known()
        asked = plan_ledger.asked_of_a_person(plans)
        layout = (group.spec.instances.replicas,)
        manager_reading = source.reading(manager_name) if manager is not None else None
        seen = seen_by_gateways(
            settings.objectives,
            at_s=at_s,
            new_gateways=sum(name in pods for name in unread.new) + unread.gone,
            unreadable_gateways=tuple(pods[name] for name in unread.late if name in pods),
            ages_s=[source.age_s(name) for name in (*names, manager_name)],
            gateways=[source.reading(name) for name in names],
            manager=manager_reading,
            before=record.decided_on,
            plan_in_progress=any(map(plan_ledger.to_be_carried_out, plans)),
        )
        return GroupObservation(
            seen=seen,
            instances=self._cluster.instances(key, group.spec.instance.gpus),
            desired=group.spec.instances.replicas,
            max_degree=group.spec.max_degree,
            latency=latency_of(group),
            manager=manager_window(manager_reading),
            gpus_each=max(1, group.spec.instance.gpus),
            awaiting_approval=asked.spec.target[0] if asked is not None else None,
            needs_approval=asked is None or plan_ledger.needs_approval(asked.spec, policy, layout),
        )

    # --- what it leaves behind ---

    async def _write(
        self,
        key: ServiceKey,
        group: ElasticGroup,
        policy: PlannerPolicy,
        record: _GroupRecord,
        observed: GroupObservation,
        decision: GroupDecision,
    ) -> bool:
        """A plan, or what is remembered. Returns whether anything was written."""
        plans, layout = record.plans.known(), (observed.desired,)
        news = plan_ledger.news(decision, plans, policy.spec, layout, self._clock.now())
        said, now_s = (decision.reason, decision.instances), self._clock.monotonic_s()
        sequence = record.plans.next_sequence() if news is not None else 0
        due = record.has_unsaved_plan or said != record.saved_summary or now_s - record.saved_at_s >= SAVE_EVERY_S
        must_save = record.plans.must_save or (news is None and due)
        if must_save:
            last = GroupLast(observed, decision)
            await group_memory.save(self._kube, _owner(group), *key, record.state, record.plans.to_reserve, last)
            record.plans.saved()
            record.saved_summary, record.saved_at_s, record.has_unsaved_plan = said, now_s, False
        if news is not None:
            asked = plan_ledger.asked_of_a_person(plans)
            await record.plans.create(
                plan_ledger.plan_manifest(
                    namespace=key[0],
                    owner=_owner(group),
                    sequence=sequence,
                    decision=news,
                    policy=policy.spec,
                    layout=layout,
                    now=self._clock.now(),
                    awaiting=asked.metadata.name if asked is not None else "",
                )
            )
            record.has_unsaved_plan = True
        return must_save or news is not None

    async def _say_health(
        self,
        key: ServiceKey,
        group: ElasticGroup,
        record: _GroupRecord | None,
        healthy: bool,
        reason: PlannerHealth,
        message: str,
    ) -> bool:
        """The condition PlannerHealthy, written when it changes. ``record`` None: nothing could be remembered yet.

        Returns whether it was written.
        """
        self._metrics.health(*key, healthy, reason)
        before, now = health_of(group.status.conditions), self._clock.now()
        if record is None:
            written = before is not None and before.reason == reason
        else:
            written = record.condition == (healthy, reason)
        if written:
            return False
        said = health_condition(before, healthy, reason, message, group.metadata.generation, now)
        try:
            await apply_health(self._kube, resources.ELASTIC_GROUPS, key, [said])
        except KubeError as error:
            log.warning("API server not reached", extra={"group": "/".join(key), "why": str(error)})
            return False  # it is said at the next look
        if record is not None:
            record.condition = (healthy, reason)
        return True


def _prefix(key: ServiceKey) -> str:
    """Of the names of its targets."""
    return f"group {key}/"


def _owner(group: ElasticGroup) -> dict[str, Any]:
    return {
        "apiVersion": resources.ELASTIC_GROUPS.api_version,
        "kind": group.kind,
        "name": group.metadata.name,
        "uid": group.metadata.uid,
        "controller": False,
        "blockOwnerDeletion": False,
    }
