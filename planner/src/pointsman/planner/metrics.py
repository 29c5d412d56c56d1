"""The planner's own metrics: what it saw, what it expects, and why it decided so. One set a service."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pointsman.planner.core.types import Decision, Observation


class PlannerMetrics:
    """One registry per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._shown: dict[Counter | Gauge, set[tuple[str, ...]]] = {}
        self.leader = Gauge("pointsman_planner_leader", "1 while this process leads.", registry=self.registry)
        self._ticks = Counter(
            "pointsman_planner_ticks", "Ticks, by reason of the decision.", ["namespace", "service", "reason"],
            registry=self.registry,
        )  # fmt: skip
        self._plans = Counter(
            "pointsman_planner_plans", "Plans written.", ["namespace", "service", "reason"], registry=self.registry
        )
        self._inputs = Gauge(
            "pointsman_planner_input", "Numbers the last decision was made from.", ["namespace", "service", "name"],
            registry=self.registry,
        )  # fmt: skip
        self._age = Gauge(
            "pointsman_planner_observation_age_seconds", "Age of the oldest part of the last observation.",
            ["namespace", "service"], registry=self.registry,
        )  # fmt: skip
        self.tick_seconds = Histogram(
            "pointsman_planner_tick_seconds", "How long one tick took, scrapes included.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5), registry=self.registry,
        )  # fmt: skip

    def ticked(self, namespace: str, service: str, observation: Observation, decision: Decision) -> None:
        """One tick of one service."""
        self._of(self._ticks, namespace, service, decision.reason.value).inc()
        self._of(self._age, namespace, service).set(observation.age_s)
        for name, value in decision.inputs:
            self._of(self._inputs, namespace, service, name).set(value)

    def planned(self, namespace: str, service: str, decision: Decision) -> None:
        """A plan was written."""
        self._of(self._plans, namespace, service, decision.reason.value).inc()

    def forget(self, namespace: str, service: str) -> None:
        """The service is not planned any more."""
        for family in (self._ticks, self._plans, self._inputs, self._age):
            for labels in [key for key in self._shown.get(family, set()) if key[:2] == (namespace, service)]:
                family.remove(*labels)
                self._shown[family].discard(labels)

    def _of(self, family: Counter | Gauge, *labels: str) -> Any:
        self._shown.setdefault(family, set()).add(labels)
        return family.labels(*labels)
