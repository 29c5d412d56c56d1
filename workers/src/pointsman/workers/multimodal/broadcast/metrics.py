"""``pointsman_input_broadcast_*``: what input broadcasts do on one rank, and what they cost."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pointsman.api.protocol import metrics as named
from pointsman.workers.multimodal.broadcast.messages import ErrorEnvelope, ErrorKind
from pointsman.workers.multimodal.broadcast.modes import Mode

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class BroadcastMetrics:
    """One rank's metric families. Every label value exists from the start, so that rates begin at 0."""

    def __init__(self, registry: CollectorRegistry, rank: int) -> None:
        self._rank = str(rank)

        def counter(metric: named.Metric) -> Counter:
            return Counter(metric.name, metric.help, metric.labels, registry=registry)

        def histogram(metric: named.Metric) -> Histogram:
            return Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=_SECONDS)

        pending = named.INPUT_BROADCAST_PENDING_BYTES
        self._requests = counter(named.INPUT_BROADCAST_REQUESTS)
        self._errors = counter(named.INPUT_BROADCAST_ERRORS)
        self._seconds = histogram(named.INPUT_BROADCAST_REQUEST_SECONDS)
        self._send_seconds = histogram(named.INPUT_BROADCAST_SEND_SECONDS).labels(self._rank)
        self._materialise_seconds = histogram(named.INPUT_BROADCAST_MATERIALISE_SECONDS).labels(self._rank)
        self._blocked_seconds = counter(named.INPUT_BROADCAST_BLOCKED_SECONDS).labels(self._rank)
        self._cpu_seconds = counter(named.INPUT_BROADCAST_CPU_SECONDS).labels(self._rank)
        self._pending_bytes = Gauge(pending.name, pending.help, pending.labels, registry=registry).labels(self._rank)
        for mode in Mode:
            if mode is not Mode.AUTO:
                self._requests.labels(rank=self._rank, mode=mode.value)
                self._seconds.labels(rank=self._rank, mode=mode.value)
        for kind in (*ErrorKind, "pending_memory"):
            self._errors.labels(rank=self._rank, reason=str(kind))

    def ended(self, mode: Mode, error: ErrorEnvelope | None, seconds: float) -> None:
        """The inputs of one request ended ``seconds`` after they were submitted or expected."""
        self._requests.labels(rank=self._rank, mode=mode.value).inc()
        self._seconds.labels(rank=self._rank, mode=mode.value).observe(seconds)
        if error is not None:
            self._errors.labels(rank=self._rank, reason=error.kind.value).inc()

    def refused(self) -> None:
        """Inputs were not accepted because too many bytes are pending."""
        self._errors.labels(rank=self._rank, reason="pending_memory").inc()

    def sent(self, seconds: float) -> None:
        """A parcel was packed, copied and sent."""
        self._send_seconds.observe(seconds)

    def blocked(self, seconds: float) -> None:
        """A thread that schedules requests waited or worked for inputs."""
        self._blocked_seconds.inc(seconds)

    def show_pending(self, size_bytes: int) -> None:
        """Set the gauge of pending bytes."""
        self._pending_bytes.set(size_bytes)

    @contextmanager
    def materialising(self) -> Iterator[None]:
        """Measure one materialisation."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._materialise_seconds.observe(time.perf_counter() - began_s)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Measure the CPU time that this thread spends on input broadcasts."""
        began_s = time.thread_time()
        try:
            yield
        finally:
            self._cpu_seconds.inc(time.thread_time() - began_s)
