"""The condition PlannerHealthy of services: what it reports, and when it is written."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pointsman.api.v1alpha1.conditions import Condition, PlannerHealth
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.pods import ServiceKey
from pointsman.planner import loops
from pointsman.planner.cluster import Cluster
from pointsman.planner.core.messages import decisions
from pointsman.planner.core.messages import health as messages
from pointsman.planner.core.types import Decision, Objectives, Policy, Reason
from pointsman.planner.core.unreachable_objectives import out_of_reach, same_share, unreachable_share
from pointsman.planner.health import apply_health, health_condition, health_of
from pointsman.planner.metrics import PlannerMetrics
from pointsman.planner.service_record import ServiceRecord
from pointsman.process.clock import Clock

log = logging.getLogger(__name__)

_OUT_OF_REACH: Final = (False, PlannerHealth.OBJECTIVES_OUT_OF_REACH)
_ENOUGH_REQUESTS: Final = 200.0
"""By so many, a share of 5 % is known to about 1.5 points. Of the first ten requests, one long prompt is a tenth."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Of one evaluation. ``unknown_table`` and ``prometheus_problem``: a sentence, None if there is no such problem;
    ``unreadable_gateways``: pods; ``too_soon``: a sentence, if metrics are too old before Prometheus scrapes again."""

    decision: Decision
    settings: Policy
    unknown_table: str | None
    prometheus_problem: str | None
    unreadable_gateways: Sequence[str] = ()
    too_soon: str | None = None


@dataclass(frozen=True, slots=True)
class _Verdict:
    """``of``: what it is about; the condition is written anew where that changes."""

    healthy: bool
    reason: PlannerHealth
    message: str
    of: str = ""


class ServiceHealth:
    """Writes the condition of services, each time it changes."""

    def __init__(self, kube: Kube, cluster: Cluster, metrics: PlannerMetrics, clock: Clock) -> None:
        self._kube = kube
        self._cluster = cluster
        self._metrics = metrics
        self._clock = clock
        self._without_policy: set[ServiceKey] = set()  # as /metrics shows
        self._mended: dict[ServiceKey, str] = {}  # the version of a service whose condition was put right

    async def report(self, key: ServiceKey, service: LLMService, record: ServiceRecord, found: Findings) -> bool:
        """After an evaluation: frozen metrics are reported, not hidden. Returns whether the condition was written.

        Raises KubeError.
        """
        verdict = _verdict(key[1], record, found)
        if verdict is None:
            return False
        self._metrics.health(*key, verdict.healthy, verdict.reason)
        condition = verdict.healthy, verdict.reason, verdict.of
        if record.condition == condition:
            return False
        await self._write(key, service, verdict)
        record.condition = condition
        return True

    async def report_failure(
        self, key: ServiceKey, service: LLMService, record: ServiceRecord | None, error: str
    ) -> None:
        """Evaluations end in an error: nobody must take the planner's last report for its present one."""
        reason = PlannerHealth.EVALUATION_FAILED
        self._metrics.health(*key, False, reason)
        if record is not None and record.condition is not None:
            written = record.condition[1] is reason
        else:
            shown = health_of(service.status.conditions)
            written = shown is not None and shown.reason == reason
        if written:
            return
        verdict = _Verdict(False, reason, messages.service_fails(error[: loops.MOST_OF_AN_ERROR]))
        try:
            await self._write(key, service, verdict)
        except KubeError:
            return  # it is written as soon as the API server can be reached
        if record is not None:
            record.condition = (False, reason, "")

    async def report_unplanned(self) -> None:
        """The condition of services that nobody plans, whoever wrote it: nothing is left of a plan."""
        without: set[ServiceKey] = set()
        mended: dict[ServiceKey, str] = {}
        for key, service in list(self._cluster.unplanned()):
            verdict = self._verdict_without_policy(key, service)
            if verdict is not None:
                without.add(key)
                self._metrics.health(*key, False, verdict.reason)
            if _is_shown(service, verdict):
                continue
            mended[key] = version = service.metadata.resource_version
            if self._mended.get(key) == version:
                continue  # it is not shown yet; or it is somebody else's, and stays
            try:
                await self._write(key, service, verdict)
            except KubeError as error:
                del mended[key]
                log.warning("API server not reached", extra={"service": "/".join(key), "why": str(error)})
        for key in self._without_policy - without - {key for key, _, _ in self._cluster.planned()}:
            self._metrics.forget(*key)
        self._without_policy, self._mended = without, mended

    def _verdict_without_policy(self, key: ServiceKey, service: LLMService) -> _Verdict | None:
        """Why the policy that a service names is not followed; None: it names none."""
        if service.spec.policy_ref is None:
            return None
        name = service.spec.policy_ref.name
        why = self._cluster.policies.why_unreadable(name, key[0])
        if why is not None:
            return _Verdict(False, PlannerHealth.POLICY_UNREADABLE, messages.policy_unreadable(name, why))
        return _Verdict(False, PlannerHealth.POLICY_NOT_FOUND, messages.policy_not_found(name))

    async def _write(self, key: ServiceKey, service: LLMService, verdict: _Verdict | None) -> None:
        """``verdict`` None: take the condition away."""
        conditions: Sequence[Condition] = ()
        if verdict is not None:
            before, generation = health_of(service.status.conditions), service.metadata.generation
            now = self._clock.now()
            conditions = [health_condition(before, verdict.healthy, verdict.reason, verdict.message, generation, now)]
        await apply_health(self._kube, resources.LLM_SERVICES, key, conditions)


def _verdict(name: str, record: ServiceRecord, found: Findings) -> _Verdict | None:
    """What an evaluation shows; None: nothing new about objectives that were out of reach."""
    decision, objectives, problem = found.decision, found.settings.objectives, found.prometheus_problem
    was_out_of_reach = record.condition is not None and record.condition[:2] == _OUT_OF_REACH
    if decision.reason is Reason.STALE_METRICS and problem is not None:
        return _Verdict(False, PlannerHealth.PROMETHEUS_UNREACHABLE, problem, of=problem)
    if found.too_soon is not None:  # also while the last pages are not too old yet: it would go to and fro
        return _Verdict(False, PlannerHealth.STALE_METRICS, found.too_soon, of=found.too_soon)
    if decision.reason is Reason.STALE_METRICS:
        return _Verdict(False, PlannerHealth.STALE_METRICS, decision.message)
    if found.unreadable_gateways:
        unread = decisions.unreadable_gateways(found.unreadable_gateways)
        return _Verdict(False, PlannerHealth.GATEWAY_UNREADABLE, unread, of=unread)
    if found.unknown_table is not None:
        return _Verdict(False, PlannerHealth.UNKNOWN_TABLE, found.unknown_table, of=found.unknown_table)
    missed = out_of_reach(decision, objectives, said=was_out_of_reach, tuning=found.settings.tuning)
    if 0 < unreachable_share(decision) < 1 and record.state.requests < _ENOUGH_REQUESTS:
        missed = None
    if missed is not None:
        return _Verdict(*_OUT_OF_REACH, missed, of=_out_of_reach_of(decision, objectives, record))
    if not decision.inputs and was_out_of_reach:
        return None
    return _Verdict(True, PlannerHealth.PLANNING, messages.planning(name))


def _out_of_reach_of(decision: Decision, objectives: Objectives, record: ServiceRecord) -> str:
    if not same_share(share := unreachable_share(decision), record.unreachable_share):
        record.unreachable_share = share
    asked = (objectives.ttft_ms, objectives.ttft_ms_per_prompt_token, objectives.tpot_ms)
    return f"{asked} {record.unreachable_share}"


def _is_shown(service: LLMService, verdict: _Verdict | None) -> bool:
    shown = health_of(service.status.conditions)
    if shown is None or verdict is None:
        return shown is None and verdict is None
    return (shown.reason, shown.message) == (verdict.reason, verdict.message)
