"""What the operator counts. Names and labels are documented by ``docs/operator.md``; label sets are bounded."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from pointsman.kube.client import RequestRecord
from pointsman.kube.mirror import MirrorStats
from pointsman.kube.queue import QueueStats


class OperatorMetrics:
    """The process's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "pointsman_operator_reconciles", "Looks at a service, by outcome.", ["outcome"], registry=self.registry
        )
        self.reconcile_seconds = Histogram(
            "pointsman_operator_reconcile_seconds",
            "How long one look took.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.actions = Counter(
            "pointsman_operator_actions", "Actions executed.", ["action", "outcome"], registry=self.registry
        )
        self.drain_seconds = Histogram(
            "pointsman_operator_drain_seconds",
            "From the begin of a worker's drain to its deletion.",
            ["lossless"],
            buckets=(0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800),
            registry=self.registry,
        )
        self.switches = Counter(
            "pointsman_operator_role_switches", "Role switches that ended.", ["phase", "reason"], registry=self.registry
        )
        self.plans = Counter(
            "pointsman_operator_plans", "Plans that ended.", ["phase", "reason"], registry=self.registry
        )
        self.switch_seconds = Histogram(
            "pointsman_operator_role_switch_seconds",
            "From the creation of a role switch to its worker serving in the new role.",
            buckets=(0.5, 1, 1.5, 2, 3, 5, 10, 30, 60, 120, 300),
            registry=self.registry,
        )
        self.requests = Counter(
            "pointsman_operator_kube_requests",
            "Requests to the API server.",
            ["verb", "resource", "status"],
            registry=self.registry,
        )
        self.leader = Gauge("pointsman_operator_leader", "1 while this process leads.", registry=self.registry)

    def count_request(self, record: RequestRecord) -> None:
        """For ``Kube(on_request=…)``."""
        resource = record.resource.qualified_name + (f"/{record.subresource}" if record.subresource else "")
        self.requests.labels(record.verb, resource, str(record.status or "none")).inc()

    def watch(self, mirror: Callable[[], MirrorStats], queue: Callable[[], QueueStats]) -> None:
        """Show mirror and queue at every scrape."""
        self.registry.register(_Live(mirror, queue))


class _Live:
    """Gauges that are computed when asked for."""

    def __init__(self, mirror: Callable[[], MirrorStats], queue: Callable[[], QueueStats]) -> None:
        self._mirror = mirror
        self._queue = queue

    def collect(self) -> Iterable[Metric]:
        mirror, queue = self._mirror(), self._queue()
        yield GaugeMetricFamily("pointsman_operator_mirror_pods", "Pods in the mirror.", value=mirror.size)
        if mirror.age_s is not None:
            yield GaugeMetricFamily(
                "pointsman_operator_mirror_age_seconds", "Since the mirror was proved current.", value=mirror.age_s
            )
        for name, value, text in (
            ("ready", queue.ready, "Services that wait to be looked at."),
            ("failing", queue.failing, "Services in back-off after a failure."),
        ):
            yield GaugeMetricFamily(f"pointsman_operator_queue_{name}", text, value=value)
        yield GaugeMetricFamily(
            "pointsman_operator_queue_oldest_seconds", "Longest wait of a ready service.", value=queue.oldest_age_s
        )
