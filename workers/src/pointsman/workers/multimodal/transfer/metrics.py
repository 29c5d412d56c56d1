"""``pointsman_embedding_transfer_*``: what one side of embedding transfers shows.

The machines run in the engine's own process, /metrics is in the server's: statistics are plain values that can be sent.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from pointsman.api.protocol import metrics as named
from pointsman.workers.multimodal.transfer.data_paths import TRANSPORTS

Side = Literal["encode", "language"]
RESULTS: Final = ("succeeded", "failed", "timed_out")
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class TransferStatistics(msgspec.Struct, frozen=True):
    """Blocks now, and what happened since the statistics before: ``msgspec.to_builtins`` makes a dict of it.

    ended: transfers by result; sent_bytes: by transport; seconds: of each transfer that succeeded.
    """

    used_blocks: int
    total_blocks: int
    fragmentation: float
    ended: Mapping[str, int]
    resumes: int
    sent_bytes: Mapping[str, int]
    seconds: Sequence[float]


class EmbeddingTransferMetrics:
    """The metric families of one ``side``. Every label value exists from the start, so that rates begin at 0."""

    def __init__(self, side: Side, registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(metric: named.Metric) -> Gauge:
            return Gauge(metric.name, metric.help, metric.labels, registry=registry).labels(side=side)

        def counter(metric: named.Metric) -> Counter:
            return Counter(metric.name, metric.help, metric.labels, registry=registry)

        self._used = gauge(named.EMBEDDING_TRANSFER_USED_BLOCKS)
        self._total = gauge(named.EMBEDDING_TRANSFER_BLOCKS)
        self._fragmentation = gauge(named.EMBEDDING_TRANSFER_FRAGMENTATION)
        ended = counter(named.EMBEDDING_TRANSFER_TRANSFERS)
        self._ended = {result: ended.labels(side=side, result=result) for result in RESULTS}
        self._resumes = counter(named.EMBEDDING_TRANSFER_RESUMES).labels(side=side)
        sent = counter(named.EMBEDDING_TRANSFER_BYTES)
        self._bytes = {transport: sent.labels(side=side, transport=transport) for transport in TRANSPORTS}
        seconds = named.EMBEDDING_TRANSFER_SECONDS
        self._seconds = Histogram(
            seconds.name, seconds.help, seconds.labels, registry=registry, buckets=SECONDS
        ).labels(side=side)

    def observe(self, statistics: TransferStatistics) -> None:
        """Take in what happened since the last call."""
        self._used.set(statistics.used_blocks)
        self._total.set(statistics.total_blocks)
        self._fragmentation.set(statistics.fragmentation)
        for result, count in statistics.ended.items():
            self._ended[result].inc(count)
        self._resumes.inc(statistics.resumes)
        for transport, size in statistics.sent_bytes.items():
            self._bytes[transport].inc(size)
        for seconds in statistics.seconds:
            self._seconds.observe(seconds)
