"""Figures of a run: pure arithmetic on what was measured. Percentiles are nearest-rank, in milliseconds.

Unknown is None: a request that failed, or an answer of one token, gives no latency instead of a 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pointsman.local.traffic.statistics import percentile

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times in seconds; ``submitted_s`` from the start of the run, the others from its submission.

    ``accepted_s``: the whole request was written to the endpoint; ``chunks_s``: arrival of each chunk with text.
    Token counts are the endpoint's own usage, None where it sent none. ``error`` None: a whole answer came.
    """

    submitted_s: float
    accepted_s: float | None = None
    chunks_s: tuple[float, ...] = ()
    ended_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for fewer than two tokens."""
        tokens = self.completion_tokens or len(self.chunks_s)
        if tokens < 2 or len(self.chunks_s) < 2:
            return None
        return (self.chunks_s[-1] - self.chunks_s[0]) / (tokens - 1)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds; None where nothing was observed."""

    p50: float | None
    p95: float | None
    p99: float | None
    count: int

    @classmethod
    def of(cls, seconds: Iterable[float | None]) -> "Percentiles":
        """Percentiles of the known values."""
        known = [value * 1000 for value in seconds if value is not None]
        p50, p95, p99 = (percentile(known, percent) for percent in PERCENTILES)
        return cls(p50, p95, p99, len(known))


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run amounts to. ``throughput`` is completion tokens per second of the whole run, failures left out.

    ``submit_wall_s``: from the first submission to the end of the last one, pauses included.
    """

    requests: int
    failed: int
    prompt_tokens: int | None
    completion_tokens: int | None
    submit_wall_s: float
    total_wall_s: float
    add_request: Percentiles
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles
    latency: Percentiles
    throughput: float | None


LATENCIES = {
    "add_request": "add_request latency",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "latency": "Latency",
}
"""Field of Figures -> what people read."""


def figures(samples: Sequence[Sample], *, submit_wall_s: float, total_wall_s: float) -> Figures:
    """Measure ``samples``. Failed requests give no latency: a quick failure must not look like speed."""
    served = [sample for sample in samples if sample.error is None]
    completion = _total([sample.completion_tokens for sample in served])
    return Figures(
        requests=len(samples),
        failed=len(samples) - len(served),
        prompt_tokens=_total([sample.prompt_tokens for sample in served]),
        completion_tokens=completion,
        submit_wall_s=submit_wall_s,
        total_wall_s=total_wall_s,
        add_request=Percentiles.of(sample.accepted_s for sample in served),
        ttft=Percentiles.of(sample.chunks_s[0] if sample.chunks_s else None for sample in served),
        tpot=Percentiles.of(sample.tpot_s for sample in served),
        itl=Percentiles.of(later - earlier for sample in served for earlier, later in pairwise(sample.chunks_s)),
        latency=Percentiles.of(sample.ended_s for sample in served),
        throughput=completion / total_wall_s if completion is not None and total_wall_s > 0 else None,
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two runs. ``ratio`` is after / before; None where either is unknown or before is 0."""

    name: str
    unit: str
    before: float | None
    after: float | None
    lower_is_better: bool

    @property
    def ratio(self) -> float | None:
        """After divided by before."""
        return self.after / self.before if self.after is not None and self.before else None


def differences(before: Figures, after: Figures) -> list[Difference]:
    """Every latency percentile and the throughput of two runs, side by side."""
    found = [
        Difference(
            f"{label} p{percent}",
            "ms",
            getattr(getattr(before, field), f"p{percent}"),
            getattr(getattr(after, field), f"p{percent}"),
            lower_is_better=True,
        )
        for field, label in LATENCIES.items()
        for percent in PERCENTILES
    ]
    return [*found, Difference("Throughput", "tokens/s", before.throughput, after.throughput, lower_is_better=False)]


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
