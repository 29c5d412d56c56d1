"""What the operator counts. ``docs/operate/conditions.md`` documents names and labels; label sets are bounded."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from pointsman.api.v1alpha1.conditions import Condition
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup, InstanceCounts
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plan import PlanPhase, PlanReason
from pointsman.api.v1alpha1.roleswitch import SwitchPhase, SwitchReason
from pointsman.kube.mirror import MirrorStats
from pointsman.kube.request import RequestRecord
from pointsman.operator.work_queue import QueueStats

_OF_SERVICE: Final = ("namespace", "service")
_OfKind = tuple[str, str, str]  # namespace, name and kind of an object
# Shown as 0 from the start, for each service: else the first of them is no increase that Prometheus could see.
_SWITCH_ENDS: Final = (
    (SwitchPhase.COMPLETED, SwitchReason.SWITCHED),
    (SwitchPhase.ROLLED_BACK, SwitchReason.DRAIN_TIMED_OUT),
    (SwitchPhase.ROLLED_BACK, SwitchReason.ROLE_TIMED_OUT),
    (SwitchPhase.ROLLED_BACK, SwitchReason.VERIFY_FAILED),
    (SwitchPhase.FAILED, SwitchReason.ROLLBACK_FAILED),
    (SwitchPhase.FAILED, SwitchReason.WORKER_LOST),
    (SwitchPhase.FAILED, SwitchReason.LAST_ROUTABLE_WORKER),
)
_PLAN_ENDS: Final = (
    (PlanPhase.COMPLETED, PlanReason.DONE),
    (PlanPhase.SUPERSEDED, PlanReason.NEWER_PLAN),
    (PlanPhase.DENIED, PlanReason.DENIED),
    (PlanPhase.EXPIRED, PlanReason.EXPIRED),
    (PlanPhase.FAILED, PlanReason.SWITCH_FAILED),
    (PlanPhase.FAILED, PlanReason.UNSCHEDULABLE),
    (PlanPhase.FAILED, PlanReason.NOT_ALLOWED),
)

GROUP_EVENTS: Final = ("InstanceJoined", "InstanceDrained", "InstanceLost", "ManagerRestarted")
"""Events of elastic groups that are counted. What the manager counts itself is on its own page."""


class OperatorMetrics:
    """The process's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "pointsman_operator_reconciles",
            "Reconciliations of services, by outcome.",
            ["outcome"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "pointsman_operator_reconcile_seconds",
            "Duration of one reconciliation.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.actions = Counter(
            "pointsman_operator_actions", "Actions executed.", ["action", "outcome"], registry=self.registry
        )
        self.drain_seconds = Histogram(
            "pointsman_operator_drain_seconds",
            "Time from the start of a worker's drain to its deletion.",
            ["lossless"],
            buckets=(0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800),
            registry=self.registry,
        )
        for lossless in ("true", "false"):
            self.drain_seconds.labels(lossless)
        self.switches = Counter(
            "pointsman_operator_role_switches",
            "Role switches that ended.",
            [*_OF_SERVICE, "phase", "reason"],
            registry=self.registry,
        )
        self.plans = Counter(
            "pointsman_operator_plans", "Plans that ended.", [*_OF_SERVICE, "phase", "reason"], registry=self.registry
        )
        self.switch_seconds = Histogram(
            "pointsman_operator_role_switch_seconds",
            "Time from the creation of a role switch until its worker serves in the new role.",
            _OF_SERVICE,
            buckets=(0.5, 1, 1.5, 2, 3, 5, 10, 30, 60, 120, 300),
            registry=self.registry,
        )
        self.requests = Counter(
            "pointsman_operator_kube_requests",
            "Requests to the API server.",
            ["verb", "resource", "status"],
            registry=self.registry,
        )
        self._conditions = Gauge(
            "pointsman_operator_service_condition",
            "1 for the present status and reason of each condition of a service or an elastic group.",
            [*_OF_SERVICE, "kind", "type", "status", "reason"],
            registry=self.registry,
        )
        self._instances = Gauge(
            "pointsman_operator_elastic_instances",
            "Instances of an elastic group, by state. joined is missing while the manager does not answer.",
            [*_OF_SERVICE, "state"],
            registry=self.registry,
        )
        self.group_events = Counter(
            "pointsman_operator_elastic_events",
            "Instances that joined, drained or were lost, and restarts of the manager, by reason of the Event.",
            [*_OF_SERVICE, "reason"],
            registry=self.registry,
        )
        self.leader = Gauge("pointsman_operator_leader", "1 while this process is the leader.", registry=self.registry)
        self._shown: dict[_OfKind, dict[str, tuple[str, str]]] = {}  # status and reason, by type of condition

    def looked(self, namespace: str, service: str, conditions: Iterable[Condition]) -> None:
        """A look at a service ended with these conditions."""
        of_it = {"namespace": namespace, "service": service}
        is_new = self._show_conditions((namespace, service, LLMService.resource.kind), conditions)
        if not is_new:
            return
        for phase, reason in _SWITCH_ENDS:
            self.switches.labels(**of_it, phase=phase, reason=reason)
        for plan_phase, plan_reason in _PLAN_ENDS:
            self.plans.labels(**of_it, phase=plan_phase, reason=plan_reason)
        self.switch_seconds.labels(**of_it)

    def forget(self, namespace: str, service: str) -> None:
        """The service is gone."""
        of_it = {"namespace": namespace, "service": service}
        self._show_conditions((namespace, service, LLMService.resource.kind), ())
        self._shown.pop((namespace, service, LLMService.resource.kind), None)
        families: tuple[Any, ...] = (self.switches, self.plans, self.switch_seconds)
        for family in families:
            family.remove_by_labels(of_it)

    def set_group(
        self, namespace: str, group: str, conditions: Iterable[Condition], instances: InstanceCounts | None
    ) -> None:
        """A reconcile of an elastic group ended with these conditions and counts."""
        of_it = {"namespace": namespace, "service": group}
        self._show_conditions((namespace, group, ElasticGroup.resource.kind), conditions)
        counts = instances.model_dump() if instances else {}
        for state in InstanceCounts.model_fields:
            if (count := counts.get(state)) is None:
                self._instances.remove(namespace, group, state)
            else:
                self._instances.labels(**of_it, state=state).set(count)
        for reason in GROUP_EVENTS:
            self.group_events.labels(**of_it, reason=reason)

    def remove_group(self, namespace: str, group: str) -> None:
        """The elastic group is deleted."""
        of_it = {"namespace": namespace, "service": group}
        self._show_conditions((namespace, group, ElasticGroup.resource.kind), ())
        self._shown.pop((namespace, group, ElasticGroup.resource.kind), None)
        self._instances.remove_by_labels(of_it)
        self.group_events.remove_by_labels(of_it)

    def _show_conditions(self, of_it: _OfKind, conditions: Iterable[Condition]) -> bool:
        """Exactly these conditions of an object. Returns whether it had none before.

        What was shown is remembered: to look for it would cost more with every service there is.
        """
        before = self._shown.get(of_it)
        now = {item.type: (str(item.status), str(item.reason)) for item in conditions}
        for kind, (status, reason) in (before or {}).items():
            if now.get(kind) != (status, reason):
                self._conditions.remove(*of_it, kind, status, reason)
        for kind, (status, reason) in now.items():
            if before is None or before.get(kind) != (status, reason):
                self._conditions.labels(*of_it, kind, status, reason).set(1)
        self._shown[of_it] = now
        return before is None

    def count_request(self, record: RequestRecord) -> None:
        """For ``Kube(on_request=…)``."""
        resource = record.resource.qualified_name + (f"/{record.subresource}" if record.subresource else "")
        self.requests.labels(record.verb, resource, str(record.status or "none")).inc()

    def watch(self, mirrors: Mapping[str, Callable[[], MirrorStats]], queue: Callable[[], QueueStats]) -> None:
        """Show mirrors, by resource, and the queue at every scrape. One of the mirrors is of ``pods``."""
        self.registry.register(_Live(mirrors, queue))


class _Live:
    """Gauges that are computed when asked for."""

    def __init__(self, mirrors: Mapping[str, Callable[[], MirrorStats]], queue: Callable[[], QueueStats]) -> None:
        self._mirrors = mirrors
        self._queue = queue

    def collect(self) -> Iterable[Metric]:
        stats, queue = {resource: read() for resource, read in self._mirrors.items()}, self._queue()
        mirror = stats["pods"]
        yield GaugeMetricFamily("pointsman_operator_mirror_pods", "Pods in the mirror.", value=mirror.size)
        if mirror.age_s is not None:
            yield GaugeMetricFamily(
                "pointsman_operator_mirror_age_seconds", "Age of the mirror of pods.", value=mirror.age_s
            )
        unreadable = GaugeMetricFamily(
            "pointsman_operator_unreadable_objects",
            "Objects that are ignored because this version cannot read them.",
            labels=["resource"],
        )
        for resource, found in stats.items():
            unreadable.add_metric([resource], found.unreadable)
        yield unreadable
        for name, value, text in (
            ("ready", queue.ready, "Services in the queue."),
            ("failing", queue.failing, "Services in back-off after a failure."),
        ):
            yield GaugeMetricFamily(f"pointsman_operator_queue_{name}", text, value=value)
        yield GaugeMetricFamily(
            "pointsman_operator_queue_oldest_seconds", "Longest wait in the queue.", value=queue.oldest_age_s
        )
