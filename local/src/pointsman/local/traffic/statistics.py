"""Numbers out of records: pure arithmetic, no I/O and no clock.

Percentiles are nearest-rank (the smallest observed value with at least ``percent`` of the values at or below it): every
figure shown was really observed, and the worst value is the 100th percentile.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pointsman.local.traffic.types import PrefillPath, Record


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Nearest-rank percentile of ``values`` (any order); None for no values. ``percent`` in (0, 100]."""
    if not 0 < percent <= 100:
        raise ValueError(f"percent is {percent}: it must be above 0 and at most 100")
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency's distribution, in milliseconds; None where nothing was observed."""

    p50_ms: float | None
    p99_ms: float | None
    worst_ms: float | None
    count: int

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Latency":
        """The distribution of ``seconds``."""
        values = [value * 1000 for value in seconds]
        return cls(percentile(values, 50), percentile(values, 99), percentile(values, 100), len(values))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run of traffic amounts to. ``paths_unknown`` are served requests whose answer named no path."""

    requests: int
    failed_requests: int
    remote_prefills: int
    local_prefills: int
    paths_unknown: int
    output_tokens: int
    ttft: Latency
    itl: Latency
    workers: tuple[str, ...]
    prefill_workers: tuple[str, ...]


def summarise(records: Sequence[Record]) -> Summary:
    """Count and measure ``records``. Failed requests give no latency: a quick failure must not look like speed."""
    served = [record for record in records if record.served]
    return Summary(
        requests=len(records),
        failed_requests=len(records) - len(served),
        remote_prefills=sum(record.path is PrefillPath.REMOTE for record in served),
        local_prefills=sum(record.path is PrefillPath.LOCAL for record in served),
        paths_unknown=sum(record.path is None for record in served),
        output_tokens=sum(record.completion_tokens or 0 for record in served),
        ttft=Latency.of(record.ttft_seconds for record in served if record.ttft_seconds is not None),
        itl=Latency.of(gap for record in served for gap in record.itl_seconds),
        workers=tuple(sorted({record.worker for record in served if record.worker})),
        prefill_workers=tuple(sorted({record.prefill_worker for record in served if record.prefill_worker})),
    )


def recent(records: Sequence[Record], *, now_s: float, window_seconds: float) -> list[Record]:
    """The records that ended within the last ``window_seconds`` before ``now_s`` (same clock as ``started_s``)."""
    return [record for record in records if now_s - (record.started_s + record.total_seconds) <= window_seconds]
