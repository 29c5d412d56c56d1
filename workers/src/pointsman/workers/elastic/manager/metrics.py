"""What an elastic group's manager counts."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from pointsman.serving.elastic.round import RoundPlan
from pointsman.workers.elastic.manager.requests import Iteration


class ManagerMetrics:
    """Names begin with ``pointsman_elastic_``; docs/metrics.md says what each means."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.instances = Gauge("pointsman_elastic_instances", "Instances that are linked", registry=registry)
        self.slots = Gauge(
            "pointsman_elastic_slots", "Tokens of KV that the instances keep, and how many more fit", ["state"],
            registry=registry,
        )  # fmt: skip
        self.iterations = Counter(
            "pointsman_elastic_iterations_total", "Iterations by phase and by instances in their group",
            ["phase", "degree"], registry=registry,
        )  # fmt: skip
        self.scalings = Counter(
            "pointsman_elastic_scalings_total", "Groups that shrank after a prefill, or got a further master",
            ["direction"], registry=registry,
        )  # fmt: skip
        self.moved_tokens = Counter(
            "pointsman_elastic_moved_tokens_total", "Tokens whose KV went from one instance to another", ["reason"],
            registry=registry,
        )  # fmt: skip
        self.recomputed = Counter(
            "pointsman_elastic_recomputed_requests_total", "Requests that lost KV and were prefilled again",
            registry=registry,
        )  # fmt: skip
        self.round_seconds = Histogram(
            "pointsman_elastic_round_seconds", "Time to plan a round",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1), registry=registry,
        )  # fmt: skip
        for direction in ("down", "up"):
            self.scalings.labels(direction)
        for reason in ("scale_down", "scale_up", "vacate", "drain"):
            self.moved_tokens.labels(reason)  # nothing is moved when a group shrinks or grows: those stay 0

    def planned(self, plan: RoundPlan) -> None:
        """A round."""
        for prefill in plan.prefills:
            owners = {name for request in prefill.requests for name, _ in request.owners}
            if len(owners) < len(prefill.instances):
                self.scalings.labels("down").inc()
        for decode in plan.decodes:
            if decode.added:
                self.scalings.labels("up").inc()
        for move in plan.moves:
            self.moved_tokens.labels(move.why).inc(move.tokens)

    def begun(self, iteration: Iteration) -> None:
        """An iteration."""
        phase = "prefill" if iteration.prompts else "decode" if iteration.steps else "move"
        self.iterations.labels(phase, str(len(iteration.members))).inc()
