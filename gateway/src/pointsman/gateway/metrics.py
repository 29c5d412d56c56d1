"""The gateway's Prometheus metrics, by the names and labels of the wire contract."""

from bisect import bisect_left
from collections.abc import Sequence
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pointsman.api.protocol import metrics as names
from pointsman.api.protocol.metrics import Objective, TpotVerdict, TtftVerdict
from pointsman.gateway.core.requests import Endpoint, VerbatimReason
from pointsman.gateway.errors import GatewayError, NoWorkerAvailable, Overloaded, StreamBroken, TimedOut, WorkersFailed
from pointsman.serving.objectives import Objectives

OTHER_ENDPOINT = "other"
"""Label of refused requests that never came to a generating endpoint: unknown paths, unreadable requests."""

EJECTION_REASONS = ("unreachable", "failing")
"""Why a worker is left alone for a while."""

SERVERS_FAULTS = (
    *Overloaded.reasons,
    *(kind.reason for kind in (NoWorkerAvailable, WorkersFailed, TimedOut, StreamBroken, GatewayError)),
)
"""Reasons of failed requests that are not the client's mistake."""


class ImagePath(StrEnum):
    """Where the embedding of an image comes from; the value is a metric label."""

    ENCODE = "encode"  # an encode worker computed it for this request
    CACHE = "cache"  # an encode worker has it from an earlier one
    BYPASS = "bypass"  # the worker that prefills: the images are small
    LOCAL = "local"  # the worker that prefills: no encode worker did it


IMAGE_REASONS = (
    (ImagePath.ENCODE, "encoded"),
    (ImagePath.CACHE, "remembered"),
    (ImagePath.BYPASS, "small"),
    (ImagePath.LOCAL, "no-encode-worker"),
    (ImagePath.LOCAL, "outdated-worker"),
    (ImagePath.LOCAL, "timed-out"),
)


class GatewayMetrics:
    """One registry per process. ``service`` is a label of every family."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._service = service
        self.requests = _counter(names.GATEWAY_REQUESTS, self.registry)
        self.arrivals = _counter(names.GATEWAY_ARRIVALS, self.registry)
        for endpoint in Endpoint:  # 0 from the start: an idle gateway is not one that cannot be read
            self.arrivals.labels(service, endpoint)
        self.accepted = _counter(names.GATEWAY_ACCEPTED, self.registry).labels(service)
        self.accepted_refused = _counter(names.GATEWAY_ACCEPTED_REFUSED, self.registry).labels(service)
        self._first_tokens = _counter(names.GATEWAY_FIRST_TOKENS, self.registry)
        self._ended = _counter(names.GATEWAY_ENDED, self.registry)
        for ttft in TtftVerdict:
            self._first_tokens.labels(service, ttft)
            for tpot in TpotVerdict:
                self._ended.labels(service, ttft, tpot)
        self._objective = Gauge(
            names.GATEWAY_OBJECTIVE.name,
            names.GATEWAY_OBJECTIVE.help,
            names.GATEWAY_OBJECTIVE.labels,
            registry=self.registry,
        )
        self._objectives: Objectives | None = None
        self.verbatim = _counter(names.GATEWAY_VERBATIM, self.registry)
        for verbatim_reason in VerbatimReason:
            self.verbatim.labels(service, verbatim_reason)
        self.retries = _counter(names.GATEWAY_RETRIES, self.registry)
        self.failures = _counter(names.GATEWAY_FAILURES, self.registry)
        for reason in SERVERS_FAULTS:  # 0 from the start: else the first of them is no increase, and no alert
            self.failures.labels(service, reason)
        self.ejections = _counter(names.GATEWAY_EJECTIONS, self.registry)
        for reason in EJECTION_REASONS:
            self.ejections.labels(service, reason)
        self.prompt_tokens = _histogram(names.GATEWAY_PROMPT_TOKENS, names.TOKEN_BOUNDS, self.registry).labels(service)
        refused = _histogram(names.GATEWAY_REFUSED_PROMPT_TOKENS, names.TOKEN_BOUNDS, self.registry)
        self.refused_prompt_tokens = refused.labels(service)
        self._output_tokens = _histogram(names.GATEWAY_OUTPUT_TOKENS, names.TOKEN_BOUNDS, self.registry).labels(service)
        answers, tokens = (
            _counter(each, self.registry) for each in (names.GATEWAY_ANSWERS, names.GATEWAY_ANSWER_TOKENS)
        )
        # 0 from the start: else the first answer in a bucket is no increase for Prometheus
        self._answers = [
            (answers.labels(service, bound), tokens.labels(service, bound)) for bound in names.TOKEN_BUCKETS
        ]
        self.ttft = _histogram(names.GATEWAY_TTFT, names.LATENCY_BOUNDS_S, self.registry)
        self.tpot = _histogram(names.GATEWAY_TPOT, names.LATENCY_BOUNDS_S, self.registry)
        self.itl = _histogram(names.GATEWAY_ITL, names.LATENCY_BOUNDS_S, self.registry)
        self.e2e = _histogram(names.GATEWAY_E2E, names.LATENCY_BOUNDS_S, self.registry)
        self.in_flight = Gauge(
            names.GATEWAY_IN_FLIGHT.name, names.GATEWAY_IN_FLIGHT.help, ["service"], registry=self.registry
        ).labels(service)
        self.queued = Gauge(
            names.GATEWAY_HELD.name, names.GATEWAY_HELD.help, names.GATEWAY_HELD.labels, registry=self.registry
        ).labels(service)
        self.holds = _counter(names.GATEWAY_HOLDS, self.registry).labels(service)
        self.hold_seconds = _histogram(names.GATEWAY_HOLD_SECONDS, names.LATENCY_BOUNDS_S, self.registry).labels(
            service
        )
        self.images = _counter(names.GATEWAY_IMAGES, self.registry)
        for path, image_reason in IMAGE_REASONS:
            self.images.labels(service, path, image_reason)
        self.images_refused = _counter(names.GATEWAY_IMAGES_REFUSED, self.registry)
        self.image_bytes = _counter(names.GATEWAY_IMAGE_BYTES, self.registry).labels(service)
        self.image_fetch_seconds = _histogram(
            names.GATEWAY_IMAGE_FETCH_SECONDS, names.LATENCY_BOUNDS_S, self.registry
        ).labels(service)
        self.encode_seconds = _histogram(names.GATEWAY_ENCODE_SECONDS, names.LATENCY_BOUNDS_S, self.registry).labels(
            service
        )
        self.encode_failures = _counter(names.GATEWAY_ENCODE_FAILURES, self.registry)
        self.encode_requests = _counter(names.GATEWAY_ENCODE_REQUESTS, self.registry).labels(service)
        self.encode_images = _counter(names.GATEWAY_ENCODE_IMAGES, self.registry).labels(service)
        self.encode_images_squared = _counter(names.GATEWAY_ENCODE_IMAGES_SQUARED, self.registry).labels(service)
        self.encode_in_flight = Gauge(
            names.GATEWAY_ENCODE_IN_FLIGHT.name, names.GATEWAY_ENCODE_IN_FLIGHT.help, ["service"],
            registry=self.registry,
        ).labels(service)  # fmt: skip
        self.workers = Gauge(
            names.GATEWAY_WORKERS.name, names.GATEWAY_WORKERS.help, names.GATEWAY_WORKERS.labels, registry=self.registry
        )

    def by_path(self, path: str) -> "PathMetrics":
        """The latency histograms of one path (``local`` or ``remote``), looked up once per request."""
        return PathMetrics(self, self._service, path)

    def arrived(self, endpoint: str) -> None:
        """A request came in."""
        self.arrivals.labels(self._service, endpoint).inc()

    def set_objectives(self, objectives: Objectives | None) -> None:
        """Count against these from now on."""
        if objectives == self._objectives:
            return
        self._objectives = objectives
        self._objective.clear()
        if objectives is not None:
            for name, seconds in (
                (Objective.TTFT, objectives.ttft_s),
                (Objective.TTFT_PER_PROMPT_TOKEN, objectives.ttft_s_per_prompt_token),
                (Objective.TPOT, objectives.tpot_s),
            ):
                self._objective.labels(self._service, name).set(seconds)

    def got_first_token(self, ttft_s: float | None, prompt_tokens: int) -> TtftVerdict:
        """A request got its first token ``ttft_s`` after its arrival; None: nobody knows when."""
        verdict = self._ttft_verdict(ttft_s, prompt_tokens)
        self._first_tokens.labels(self._service, verdict).inc()
        return verdict

    def given_up(self, waited_s: float, prompt_tokens: int) -> None:
        """The client of an accepted stream left after ``waited_s`` without a first token."""
        if self._ttft_verdict(waited_s, prompt_tokens) is TtftVerdict.MISSED:
            self.ended(TtftVerdict.MISSED, TpotVerdict.FAILED)

    def ended(self, ttft: TtftVerdict, tpot: TpotVerdict) -> None:
        """An accepted request ended that was not refused, and that its client did not leave in time."""
        if self._objectives is None:
            ttft = TtftVerdict.UNKNOWN
        self._ended.labels(self._service, ttft, tpot).inc()

    def _ttft_verdict(self, ttft_s: float | None, prompt_tokens: int) -> TtftVerdict:
        if ttft_s is None or self._objectives is None:
            return TtftVerdict.UNKNOWN
        return TtftVerdict.MET if ttft_s <= self._objectives.ttft_for(prompt_tokens) else TtftVerdict.MISSED

    def tpot_verdict(self, tpot_s: float) -> TpotVerdict:
        """Of a request that took ``tpot_s`` for each token after its first."""
        if self._objectives is None:
            return TpotVerdict.UNKNOWN
        return TpotVerdict.MET if tpot_s <= self._objectives.tpot_s else TpotVerdict.MISSED

    def finished(self, prompt_tokens: int | None, output_tokens: int) -> None:
        """A request got its whole answer. ``prompt_tokens`` None: not known, so it is in no bucket of prompts."""
        self._output_tokens.observe(output_tokens)
        if prompt_tokens is None:
            return
        answers, tokens = self._answers[bisect_left(names.TOKEN_BOUNDS, prompt_tokens)]
        answers.inc()
        tokens.inc(output_tokens)

    def answered(self, endpoint: str, code: int) -> None:
        """A request was answered with HTTP status ``code``."""
        self.requests.labels(self._service, endpoint, str(code)).inc()

    def sent_verbatim(self, reason: str) -> None:
        """A body goes to the engine as it is."""
        self.verbatim.labels(self._service, reason).inc()

    def retried(self, reason: str) -> None:
        """A request goes to another worker."""
        self.retries.labels(self._service, reason).inc()

    def failed(self, reason: str) -> None:
        """A request failed for good."""
        self.failures.labels(self._service, reason).inc()

    def ejected(self, reason: str) -> None:
        """A worker is left alone for a while."""
        self.ejections.labels(self._service, reason).inc()

    def image_went(self, path: ImagePath, reason: str) -> None:
        """The embedding of an image comes from ``path``."""
        self.images.labels(self._service, path, reason).inc()

    def image_refused(self, reason: str) -> None:
        """A request was refused because of an image."""
        self.images_refused.labels(self._service, reason).inc()

    def encode_failed(self, reason: str) -> None:
        """An encode worker did not encode an image."""
        self.encode_failures.labels(self._service, reason).inc()

    def to_encode(self, images: int) -> None:
        """A request has so many images encoded by encode workers, none of them twice."""
        self.encode_requests.inc()
        self.encode_images.inc(images)
        self.encode_images_squared.inc(images**2)

    def set_workers(self, counts: dict[tuple[str, str], int]) -> None:
        """Workers by (role, state)."""
        self.workers.clear()
        for (role, state), count in counts.items():
            self.workers.labels(self._service, role, state).set(count)

    def expose(self) -> bytes:
        """The text format."""
        return generate_latest(self.registry)


class PathMetrics:
    """Latency histograms with their labels resolved."""

    __slots__ = ("e2e", "itl", "tpot", "ttft")

    def __init__(self, metrics: GatewayMetrics, service: str, path: str) -> None:
        self.ttft = metrics.ttft.labels(service, path)
        self.tpot = metrics.tpot.labels(service, path)
        self.itl = metrics.itl.labels(service, path)
        self.e2e = metrics.e2e.labels(service, path)


def _counter(metric: names.Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(metric: names.Metric, buckets: Sequence[float], registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, buckets=buckets, registry=registry)
