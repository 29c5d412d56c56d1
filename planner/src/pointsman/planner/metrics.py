"""The planner's own metrics: what it saw, what it expects, and why it decided so. One set a service.

Documented by ``docs/planner/metrics.md``. What is unknown is absent, neither 0 nor what it was before.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pointsman.api.protocol.names import LANGUAGE_ROLES
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.types import (
    Decision,
    Objectives,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    WorkerCondition,
)

_Labels = tuple[str, ...]

_FORMER_INPUTS: Final[Mapping[str, str]] = {"queuedRequests": "held"}
_FORMER_REASONS: Final[Mapping[str, str]] = {Reason.WITHDRAWN: "NoLongerWanted"}
"""Names of the version before, written for one version more: alerts and dashboards of users may have them."""


class PlannerMetrics:
    """One registry per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._shown: dict[Counter | Gauge, set[_Labels]] = {}
        self.leader = Gauge("pointsman_planner_leader", "1 while this process leads.", registry=self.registry)
        self._ticks = self._counter("ticks", "Evaluations, by reason of the decision.", "reason")
        self._plans = self._counter("plans", "Plans written.", "reason")
        self._published = self._counter("routing_updates", "Publications of routing numbers.", "reason")
        self._inputs = self._gauge("input", "Inputs of the latest decision.", "name")
        self._age = self._gauge(
            "observation_age_seconds", "Age of the oldest metrics page of the latest evaluation.", "source"
        )
        self._workers = self._gauge("workers", "Workers, by their state in the latest evaluation.", "role", "condition")
        self._gpus = self._gauge("gpus", "GPUs of all workers. A worker on CPU counts as 1.")
        self._budget = self._gauge("budget_gpus", "Most GPUs that the policy allows.")
        self._ttft = self._gauge("ttft_objective_seconds", "The policy's TTFT objective, for the mean prompt.")
        self._tpot = self._gauge("tpot_objective_seconds", "The policy's TPOT objective.")
        self._attainment = self._gauge(
            "attainment_objective", "Desired share of requests within both objectives, 0..1."
        )
        self._healthy = self._gauge("healthy", "1 if PlannerHealthy is True, else 0, with its reason.", "reason")
        self._routing = self._gauge("routing", "Numbers in status.routing of the service.", "name")
        self.tick_seconds = Histogram(
            "pointsman_planner_tick_seconds", "Duration of one evaluation, scrapes included.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5), registry=self.registry,
        )  # fmt: skip

    def ticked(
        self, namespace: str, service: str, observation: Observation, decision: Decision, policy: Policy
    ) -> None:
        """One tick of one service."""
        key = (namespace, service)
        self._decided(key, decision.reason, decision.inputs)
        ages_s = (("gateways", observation.gateways_age_s), ("workers", observation.workers_age_s))
        self._show(self._age, key, {(source,): age_s for source, age_s in ages_s if age_s is not None})
        counts: dict[_Labels, float] = {(role.value, c.value): 0.0 for role in LANGUAGE_ROLES for c in WorkerCondition}
        for worker in observation.workers:
            counts[worker.role.value, worker.condition.value] += 1
        if policy.encode is not None:
            counts |= {("Encode", condition.value): 0.0 for condition in WorkerCondition}
        for encoder in observation.encode_workers if policy.encode is not None else ():
            counts["Encode", encoder.condition.value] += 1
        self._show(self._workers, key, counts)
        gpus = sum(worker.gpus for worker in observation.workers)
        gpus += sum(worker.gpus for worker in observation.encode_workers)
        self._aims(key, observation, policy, gpus)
        self._show(self._routing, key, _in_force(observation.routing))

    def group_looked(
        self, namespace: str, group: str, observation: GroupObservation, decision: GroupDecision, policy: Policy
    ) -> None:
        """One look at an elastic group."""
        key = (namespace, group)
        self._decided(key, decision.reason, decision.inputs)
        age_s = observation.seen.gateways_age_s
        self._show(self._age, key, {("gateways",): age_s} if age_s is not None else {})
        counts: dict[_Labels, float] = {("Instance", condition.value): 0.0 for condition in WorkerCondition}
        for instance in observation.instances:
            counts["Instance", instance.condition.value] += 1
        self._show(self._workers, key, counts)
        self._aims(key, observation.seen, policy, sum(instance.gpus for instance in observation.instances))

    def _decided(self, key: tuple[str, str], reason: Reason, inputs: Sequence[tuple[str, float]]) -> None:
        for each in (*Reason, *_FORMER_REASONS.values()):  # 0 from the start: else the first of a reason is no increase
            self._of(self._ticks, *key, str(each))
            self._of(self._plans, *key, str(each))
        for each in (Reason.FLOW_CONTROL, Reason.THRESHOLD):
            self._of(self._published, *key, each.value)
        for name in _names(reason, _FORMER_REASONS):
            self._of(self._ticks, *key, name).inc()
        self._show(self._inputs, key, {(name,): value for of, value in inputs for name in _names(of, _FORMER_INPUTS)})

    def _aims(self, key: tuple[str, str], observation: Observation, policy: Policy, gpus: int) -> None:
        self._show(self._gpus, key, {(): float(gpus)})
        self._show(self._budget, key, {(): float(policy.max_gpus)})
        objectives = policy.objectives
        self._show(self._ttft, key, _ttft_s(objectives, observation))
        self._show(self._tpot, key, {(): objectives.tpot_ms / 1000})
        self._show(self._attainment, key, {(): objectives.attainment})

    def planned(self, namespace: str, service: str, reason: str) -> None:
        """A plan was written."""
        for name in _names(reason, _FORMER_REASONS):
            self._of(self._plans, namespace, service, name).inc()

    def published(self, namespace: str, service: str, reason: str) -> None:
        """Routing numbers were published."""
        self._of(self._published, namespace, service, reason).inc()

    def health(self, namespace: str, service: str, healthy: bool, reason: str) -> None:
        """What the condition PlannerHealthy says."""
        self._show(self._healthy, (namespace, service), {(reason,): float(healthy)})

    def unknown(self, namespace: str, service: str) -> None:
        """What holds of the service now is not known; what was counted stays."""
        for family in self._shown:
            if isinstance(family, Gauge):
                self._drop(family, (namespace, service), keep=set())

    def forget(self, namespace: str, service: str) -> None:
        """The service is not planned any more."""
        for family in self._shown:
            self._drop(family, (namespace, service), keep=set())

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"pointsman_planner_{name}", text, ["namespace", "service", *labels], registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"pointsman_planner_{name}", text, ["namespace", "service", *labels], registry=self.registry)

    def _show(self, family: Gauge, key: tuple[str, str], values: Mapping[_Labels, float]) -> None:
        """These are all values that the family has of the service now."""
        for labels, value in values.items():
            self._of(family, *key, *labels).set(value)
        self._drop(family, key, keep={(*key, *labels) for labels in values})

    def _drop(self, family: Counter | Gauge, key: tuple[str, str], *, keep: set[_Labels]) -> None:
        shown = self._shown.get(family, set())
        for labels in [found for found in shown if found[:2] == key and found not in keep]:
            family.remove(*labels)
            shown.discard(labels)

    def _of(self, family: Counter | Gauge, *labels: str) -> Any:
        self._shown.setdefault(family, set()).add(labels)
        return family.labels(*labels)


def _names(name: str, former: Mapping[str, str]) -> list[str]:
    return [name, former[name]] if name in former else [name]


def _ttft_s(objectives: Objectives, observation: Observation) -> dict[_Labels, float]:
    """Nothing where it depends on the prompts and they are not known."""
    prompt = observation.load.prompt_tokens if observation.load is not None else None
    if prompt is None and objectives.ttft_ms_per_prompt_token > 0:
        return {}
    return {(): objectives.ttft_for(prompt or 0.0) / 1000}


def _in_force(routing: RoutingNumbers) -> dict[_Labels, float]:
    """By the names of ``status.routing``; a bound that holds nothing is absent there too."""
    numbers: dict[str, int | None] = {
        "maxLocalPrefillTokens": routing.max_local_prefill_tokens,
        "maxPrefillQueueSize": routing.max_prefill_queue_size,
        "prefillTokenBudget": routing.prefill_token_budget,
        "pendingTokensPerPrefillWorker": routing.flow.pending_tokens_per_prefill_worker,
        "decodingPerDecodeWorker": routing.flow.decoding_per_decode_worker,
        "slackMilliseconds": routing.flow.slack_ms,
    }
    return {(name,): float(value) for name, value in numbers.items() if value is not None}
