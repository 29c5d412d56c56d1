"""What the exchange of embeddings shows in the engine's /metrics.

The engine's process counts, the server's process shows: vLLM carries the counts with the output of each step.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

from pointsman.api.protocol import metrics as named
from pointsman.workers.multimodal.exchange.fetches import FetchOutcome
from pointsman.workers.multimodal.transfer.metrics import EmbeddingTransferMetrics, TransferStatistics

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ExchangeStats(ECConnectorStats):  # type: ignore[misc]
    """Fetches that have ended: ``counts`` by outcome, ``seconds`` of those that succeeded.

    ``reserved_bytes``: of the embeddings that are fetched or wait for the engine now. ``transfers``: of the buffers
    that embeddings are fetched into, in the order taken.
    """

    @classmethod
    def of(
        cls,
        counts: dict[str, int],
        seconds: list[float],
        reserved_bytes: int,
        transfers: Sequence[TransferStatistics] = (),
    ) -> "ExchangeStats":
        """Statistics of these."""
        sent = [msgspec.to_builtins(each) for each in transfers]
        data = {"counts": counts, "seconds": seconds, "reserved_bytes": reserved_bytes, "transfers": sent}
        return cls(data=data)

    @property
    def transfers(self) -> list[TransferStatistics]:
        """Of the buffers that embeddings are fetched into."""
        return msgspec.convert(self.data.get("transfers", []), list[TransferStatistics])

    @property
    def counts(self) -> dict[str, int]:
        """Fetches by outcome."""
        found: dict[str, int] = self.data.get("counts", {})
        return found

    @property
    def seconds(self) -> list[float]:
        """Of each that succeeded."""
        found: list[float] = self.data.get("seconds", [])
        return found

    @property
    def reserved_bytes(self) -> int | None:
        """Now; None: not known."""
        found: int | None = self.data.get("reserved_bytes")
        return found

    def reset(self) -> None:
        """Forget them."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: ECConnectorStats) -> ECConnectorStats:
        """Both together."""
        assert isinstance(other, ExchangeStats)
        names = self.counts.keys() | other.counts.keys()
        counts = {name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in names}
        latest = self if other.reserved_bytes is None else other
        transfers = self.transfers + other.transfers
        return ExchangeStats.of(counts, self.seconds + other.seconds, latest.reserved_bytes or 0, transfers)

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log."""
        mean = {"mean_seconds": sum(self.seconds) / len(self.seconds)} if self.seconds else {}
        return {**self.counts, **mean}

    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not self.data


class ExchangeMetrics(ECConnectorPromMetrics):  # type: ignore[misc]
    """The metric families, in the server's process."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        fetches, seconds = named.WORKER_EMBEDDING_FETCHES, named.WORKER_EMBEDDING_FETCH_SECONDS
        self._fetches: Counter = self._counter_cls(fetches.name, fetches.help, labelnames=fetches.labels)
        self._seconds: Histogram = self._histogram_cls(seconds.name, seconds.help, buckets=SECONDS)
        reserved = named.WORKER_EMBEDDING_BYTES
        self._reserved: Gauge = self._gauge_cls(reserved.name, reserved.help)
        for outcome in FetchOutcome:
            self._fetches.labels(outcome=outcome.value)
        # An encode worker's process shows its own: its transfers end after the step that could report them.
        self._transfers = None if self._ec_transfer_config.is_ec_producer else EmbeddingTransferMetrics("language")

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Take in what the engine's process has counted."""
        stats = ExchangeStats(data=transfer_stats_data)
        for outcome, count in stats.counts.items():
            self._fetches.labels(outcome=outcome).inc(count)
        for seconds in stats.seconds:
            self._seconds.observe(seconds)
        if stats.reserved_bytes is not None:
            self._reserved.set(stats.reserved_bytes)
        for statistics in stats.transfers:
            assert self._transfers is not None, "only a language engine fetches"
            self._transfers.observe(statistics)
