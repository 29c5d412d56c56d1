"""95th percentiles of what clients wait: a baseline's guard reads them, and the planner does not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from pointsman.api.protocol import metrics as named
from pointsman.planner.core.metrics.observe import Reading, together
from pointsman.planner.core.metrics.scrape_pair import Histogram
from pointsman.planner.core.types import Observation, Service


@dataclass(frozen=True, slots=True)
class TimedService(Service):
    """What clients got, with two percentiles in seconds; None: nothing was counted."""

    ttft_p95_s: float | None = None
    tpot_p95_s: float | None = None


def with_latencies(seen: Observation, gateways: Sequence[Reading]) -> Observation:
    """With the percentiles that gateways counted between their two pages."""
    if seen.service is None:
        return seen
    known = {field.name: getattr(seen.service, field.name) for field in fields(seen.service)}
    ttft_s, tpot_s = (quantile(together(gateways, of.name), 0.95) for of in (named.GATEWAY_TTFT, named.GATEWAY_TPOT))
    return replace(seen, service=TimedService(**known, ttft_p95_s=ttft_s, tpot_p95_s=tpot_s))


def quantile(counted: Histogram, share: float) -> float | None:
    """The value below which ``share`` lies, linear within a bucket; the last finite bound if it is beyond."""
    rank, low, below = share * counted.count, 0.0, 0.0
    for upper, reached in zip(counted.bounds, counted.cumulative, strict=True):
        if below < rank <= reached:
            return low if math.isinf(upper) else low + (upper - low) * ((rank - below) / (reached - below))
        low, below = upper, reached
    return None
