"""From a live service's history in Prometheus to a trace: one request for every one that arrived.

Prometheus keeps counts and histograms, not requests. What is exact: how many requests arrived between two scrapes, in
which bucket their lengths are, and the sum of their lengths. What is drawn (seeded): when within the window each
arrived, where within its bucket its length is, and which answer belongs to which prompt. What is lost: which prompts
share a prefix.
"""

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pointsman.api.protocol import metrics as named
from pointsman.planner.core.metrics import scrape_pair
from pointsman.planner.core.metrics.scrape_pair import Histogram
from pointsman.planner.errors import TraceError
from pointsman.planner.replay.prometheus_history import Scrapes
from pointsman.planner.replay.requests import Arrived, trace_of
from pointsman.planner.simulator.types import Trace

FAMILIES = (
    named.GATEWAY_ARRIVALS.name,
    *(
        f"{name}_{part}"
        for name in (named.GATEWAY_PROMPT_TOKENS.name, named.GATEWAY_OUTPUT_TOKENS.name)
        for part in ("bucket", "sum")
    ),
)
"""Names of the samples a recording is made of."""
GAP_FACTOR = 3.0  # a pause between scrapes of so many times the usual one is said
_LAST_BUCKET_WIDTH = 2.0  # of the bucket without an upper bound: it ends at so many times its lower one
_BISECTIONS = 50


@dataclass(frozen=True, slots=True)
class Window:
    """What one gateway saw between two scrapes; Unix times."""

    begin_s: float
    end_s: float
    arrivals: int
    prompts: Histogram
    outputs: Histogram


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace and what should be known about it. ``begin_s``: the Unix time of its 0 s."""

    trace: Trace
    begin_s: float
    end_s: float
    notes: tuple[str, ...]


def windows(gateways: Mapping[str, Scrapes]) -> Iterator[Window]:
    """The windows of every gateway, between each two of its scrapes."""
    for history in gateways.values():
        for (begin_s, before), (end_s, after) in itertools.pairwise(history.pages.items()):
            arrivals = scrape_pair.added(before, after, named.GATEWAY_ARRIVALS.name)
            if arrivals is None:
                continue
            yield Window(
                begin_s,
                end_s,
                round(arrivals),
                scrape_pair.observed(before, after, named.GATEWAY_PROMPT_TOKENS.name),
                scrape_pair.observed(before, after, named.GATEWAY_OUTPUT_TOKENS.name),
            )


def recording(name: str, gateways: Mapping[str, Scrapes], seed: int) -> Recording:
    """The requests of a service. Raises TraceError when the history shows none."""
    found = sorted(windows(gateways), key=lambda window: window.begin_s)
    arrived = [window for window in found if window.arrivals > 0]
    if not arrived:
        raise TraceError(
            f"{name}: no request arrived in that time, or Prometheus has no history of the gateway's metrics"
        )
    rng = random.Random(seed)
    begin_s = found[0].begin_s
    usual_prompts, usual_outputs = _together(w.prompts for w in found), _together(w.outputs for w in found)
    if usual_prompts.count <= 0 or usual_outputs.count <= 0:
        raise TraceError(
            f"{name}: requests arrived, but none was accepted and answered in that time: no length is known"
        )
    requests: list[Arrived] = []
    for window in arrived:
        prompts = _lengths(window.prompts, usual_prompts, window.arrivals, rng)
        outputs = _lengths(window.outputs, usual_outputs, window.arrivals, rng)
        times = sorted(rng.uniform(window.begin_s, window.end_s) - begin_s for _ in range(window.arrivals))
        requests += [Arrived(*values) for values in zip(times, prompts, outputs, strict=True)]
    notes = [f"lengths and moments are drawn within buckets and scrapes (seed {seed})"]
    usual_s = median(window.end_s - window.begin_s for window in found)
    gaps = [w for w in found if w.end_s - w.begin_s > GAP_FACTOR * usual_s]
    if gaps:
        longest = max(w.end_s - w.begin_s for w in gaps)
        notes.append(
            f"{len(gaps)} gaps between scrapes, the longest {longest:.0f} s: arrivals in one are spread evenly over it"
        )
    return Recording(trace_of(name, requests), begin_s, max(w.end_s for w in found), tuple(notes))


def draw(histogram: Histogram, rng: random.Random) -> list[int]:
    """One length for each observation: in its bucket, and all of them with the histogram's sum, as near as may be.

    Within a bucket a length is ``low + (high - low) · u^γ`` with u uniform; the one γ that gives the sum is found by
    bisection (the sum falls as γ grows).
    """
    places: list[tuple[float, float, float]] = []
    below, low = 0.0, 0.0
    for upper, reached in zip(histogram.bounds, histogram.cumulative, strict=True):
        high = max(low * _LAST_BUCKET_WIDTH, histogram.total / max(histogram.count, 1)) if math.isinf(upper) else upper
        least = math.floor(low) + 1.0  # lengths are whole, and above the bucket's lower bound
        places += [(least, max(high, least), rng.random()) for _ in range(round(reached - below))]
        below, low = reached, upper if math.isfinite(upper) else low
    small, large = math.log(1e-3), math.log(1e3)
    for _ in range(_BISECTIONS):
        middle = (small + large) / 2
        if sum(_placed(place, math.exp(middle)) for place in places) > histogram.total:
            small = middle
        else:
            large = middle
    return [round(_placed(place, math.exp(small))) for place in places]


def _placed(place: tuple[float, float, float], gamma: float) -> float:
    low, high, share = place
    return low + (high - low) * math.pow(share, gamma)


def _lengths(seen: Histogram, usual: Histogram, count: int, rng: random.Random) -> Sequence[int]:
    """``count`` lengths: those seen in the window, and for requests whose length was not (refused, or still being
    answered) others like them."""
    drawn = draw(seen, rng) if seen.count > 0 else []
    rng.shuffle(drawn)
    if len(drawn) < count:
        source = drawn or draw(_sampled(usual, 200), rng)
        drawn = drawn + [rng.choice(source) for _ in range(count - len(drawn))]
    return drawn[:count]


def _sampled(histogram: Histogram, most: int) -> Histogram:
    """The same shape with at most so many observations."""
    scale = min(1.0, most / histogram.count)
    return Histogram(histogram.bounds, tuple(value * scale for value in histogram.cumulative), histogram.total * scale)


def _together(histograms: Iterable[Histogram]) -> Histogram:
    found = scrape_pair.EMPTY
    for histogram in histograms:
        found = found.plus(histogram)
    return found
