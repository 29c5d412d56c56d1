"""What an elastic group's manager counts."""

import logging
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from pointsman.api.protocol.elastic import Totals
from pointsman.api.protocol.metrics import ELASTIC_DECODE_SUMS, ELASTIC_SLOTS
from pointsman.serving.elastic.requests import Iteration
from pointsman.serving.elastic.round import RoundPlan
from pointsman.serving.elastic.step_sums import TERMS, StepSums

log = logging.getLogger(__name__)

_PLANNED: Final = ("vacate", "drain")
_REASONS: Final = ("scale_down", "scale_up", *_PLANNED)


class ManagerMetrics:
    """Names begin with ``pointsman_elastic_``; docs/use/elastic.md says what each means."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.instances = Gauge("pointsman_elastic_instances", "Instances that are linked", registry=registry)
        self.slots = Gauge(ELASTIC_SLOTS.name, ELASTIC_SLOTS.help, ELASTIC_SLOTS.labels, registry=registry)
        self.iterations = Counter(
            "pointsman_elastic_iterations_total", "Iterations by phase and by instances in their group",
            ["phase", "degree"], registry=registry,
        )  # fmt: skip
        self.scalings = Counter(
            "pointsman_elastic_scalings_total", "Groups that shrank after a prefill, or got a further master",
            ["direction"], registry=registry,
        )  # fmt: skip
        self.moved_tokens = Counter(
            "pointsman_elastic_moved_tokens_total", "Tokens whose KV the manager had moved", ["reason"],
            registry=registry,
        )  # fmt: skip
        self.moved_bytes = Counter(
            "pointsman_elastic_moved_bytes_total", "Bytes of KV that instances sent to others, beyond attention",
            ["reason"], registry=registry,
        )  # fmt: skip
        self.recomputed = Counter(
            "pointsman_elastic_recomputed_requests_total", "Requests that lost KV and were prefilled again",
            registry=registry,
        )  # fmt: skip
        sums = ELASTIC_DECODE_SUMS
        self.decode_sums = Counter(sums.name, sums.help, sums.labels, registry=registry)
        self.round_seconds = Histogram(
            "pointsman_elastic_round_seconds", "Time to plan a round",
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1), registry=registry,
        )  # fmt: skip
        for term in TERMS:
            self.decode_sums.labels(term)
        for direction in ("down", "up"):
            self.scalings.labels(direction)
        for reason in _REASONS:
            self.moved_bytes.labels(reason)
        for reason in _PLANNED:
            self.moved_tokens.labels(reason)

    def totals(self) -> Totals:
        """What has been counted so far."""
        return Totals(
            scaled_down=_value(self.scalings, "down"),
            scaled_up=_value(self.scalings, "up"),
            moved_tokens={reason: _value(self.moved_tokens, reason) for reason in _PLANNED},
            moved_bytes={reason: _value(self.moved_bytes, reason) for reason in _REASONS},
            recomputed=_value(self.recomputed),
        )

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

    def moved(self, iteration: Iteration, moved_bytes: int | None) -> None:
        """What a member of ``iteration`` counted; a group that shrinks or grows is to move nothing."""
        if moved_bytes is None:
            return
        if moved_bytes < 0:
            log.error("fewer bytes than attention needs were sent", extra={"bytes": moved_bytes})
        reason = "scale_down" if iteration.prompts else "scale_up" if iteration.steps else iteration.why_moved
        if reason:  # else the iteration only measured how long moves take
            self.moved_bytes.labels(reason).inc(max(moved_bytes, 0))

    def ended(self, iteration: Iteration, seconds: float) -> None:
        """An iteration that did not break."""
        if iteration.steps:
            sums = StepSums.of_iteration(len(iteration.members), len(iteration.steps), seconds)
            for term in TERMS:
                self.decode_sums.labels(term).inc(getattr(sums, term))


def _value(counter: Counter, *labels: str) -> int:
    of = counter.labels(*labels) if labels else counter
    return int(
        next(sample.value for metric in of.collect() for sample in metric.samples if sample.name.endswith("_total"))
    )
