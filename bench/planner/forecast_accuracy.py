"""How good the planner's forecast is, over arrivals alone: ``make bench-forecast``.

The production forecaster is shown the counts that a gateway would have shown the live planner, one a tick, and is asked
for what the planner asks for: the present rate, and the rate when a worker that is started now serves. Services plan
with that rate itself, elastic groups with an upper bound of it, so the bound is measured too. What it said is compared
with what then came, beside two plain forecasts of the same counts. Nothing is simulated.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import NormalDist, fmean
from typing import Final, NamedTuple

import numpy as np

from bench.planner.loads import GROUPS, LOADS, Load
from bench.rows import Row, finish, row
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Policy
from pointsman.planner.core.workload.arrival_forecast import RateForecaster
from pointsman.planner.replay.generators import Segment, named_shape
from pointsman.planner.simulator.types import Floats

RESULT: Final = "forecast"
COMMAND: Final = "make bench-forecast"
TICK_S: Final = Policy().interval_s
LEAD_S: Final = Policy().start_s  # at which the forecaster compares what it said with what came
AHEAD_S: Final = LEAD_S + TICK_S  # for which ``decide`` asks it
HORIZONS: Final = {0.0: "now", AHEAD_S: f"{AHEAD_S:g} s ahead"}
NOMINAL: Final = NormalDist().cdf(1.0)  # the quantile of the bound that is measured: one standard deviation
RECENT_S: Final = SHIPPED.recent_rate_s
PLAIN: Final = {"last": "last value", "mean": f"mean of {RECENT_S:g} s"}


def _half_hours(gpu: str) -> list[Load]:
    """Of the constant hours on these GPUs: the last of two durations counts."""
    hours = [load for load in GROUPS["constant hours"].values() if load.gpu == gpu]
    return [load.model_copy(update={"trace": f"{load.trace},duration_s=1800"}) for load in hours]


TOGETHER: Final = {
    **{name: ([LOADS[name]], (11, 12, 13)) for name in ("step", "mixshift", "burst", "ramp", "moon_conv")},
    "azure_conv": ([LOADS["azure_conv"]], (11,)),  # arrivals are the same, whatever the seed
    "onoff": ([LOADS["onoff"]], (11, 12, 13)),
    "constant, 4 to 13/s": (_half_hours("a100_sxm"), (51, 52, 53)),
    "constant, 20 to 40/s": (_half_hours("h100_sxm"), (51, 52, 53)),
}
"""Loads that are measured as if they were one, and their seeds."""


class Look(NamedTuple):
    """What was said at one moment, and what then came; all are rates a second."""

    came: float
    true: float | None  # what the requests were drawn from; None: nobody knows it
    ours: float
    bound: float
    last: float
    mean: float


def looks(arrival_s: Floats, segments: Sequence[Segment] | None = None) -> dict[float, list[Look]]:
    """What the live planner would have been told of these arrivals, by horizon.

    Compared as the planner itself does: with the half minute that ends at the horizon. Of the present that one is over:
    the half minute that begins. What is said of the time after the last arrival is compared with nothing.
    """

    def count(from_s: float, to_s: float) -> int:
        return int(np.searchsorted(arrival_s, to_s) - np.searchsorted(arrival_s, from_s))

    found: dict[float, list[Look]] = {horizon_s: [] for horizon_s in HORIZONS}
    forecaster = RateForecaster()
    for tick in range(1, int(arrival_s[-1] / TICK_S) + 1):
        now_s, before_s = tick * TICK_S, (tick - 1) * TICK_S
        forecaster = forecaster.observe(float(count(before_s, now_s)), TICK_S, now_s, LEAD_S)
        since_s = max(0.0, now_s - RECENT_S)
        last, mean = count(before_s, now_s) / TICK_S, count(since_s, now_s) / (now_s - since_s)
        for horizon_s, said in found.items():
            to_s = now_s + max(horizon_s, RECENT_S)
            from_s = to_s - RECENT_S
            forecast = forecaster.at(horizon_s, now_s, AHEAD_S, NOMINAL)
            if to_s <= arrival_s[-1] and forecast is not None:
                true = None if segments is None else drawn(segments, from_s, to_s) / RECENT_S
                said.append(Look(count(from_s, to_s) / RECENT_S, true, forecast.expected, forecast.high, last, mean))
    return found


def drawn(segments: Sequence[Segment], from_s: float, to_s: float) -> float:
    """How many requests such true rates give in that time, on average."""
    total = 0.0
    for piece in segments:
        begin_s, end_s = max(from_s, piece.start_s), min(to_s, piece.end_s)
        if begin_s < end_s:
            middle = ((begin_s + end_s) / 2 - piece.start_s) / (piece.end_s - piece.start_s)
            total += (end_s - begin_s) * (piece.rate + (piece.end_rate - piece.rate) * middle)
    return total


def measured(name: str, seed: int) -> dict[float, list[Look]]:
    """One of ``TOGETHER``."""
    found: dict[float, list[Look]] = {horizon_s: [] for horizon_s in HORIZONS}
    for load in TOGETHER[name][0]:
        shape = load.trace if isinstance(load.trace, str) else None
        segments = None if shape is None else named_shape(shape).segments(random.Random(seed))
        for horizon_s, more in looks(load.arrivals(seed).arrival_s, segments).items():
            found[horizon_s] += more
    return found


def mape(found: Sequence[Look], of: str) -> float:
    """The mean error relative to what came, where anything did: of nothing no error is a share."""
    return round(fmean(abs(getattr(look, of) - look.came) / look.came for look in found if look.came), 4)


def rows(name: str) -> Iterator[Row]:
    """Means over the seeds: of each horizon beside both plain forecasts, and how much the bound covers."""
    found = [measured(name, seed) for seed in TOGETHER[name][1]]
    of = partial(row, of_means=True, command=COMMAND)
    for horizon_s, when in HORIZONS.items():
        ours = [mape(each[horizon_s], "ours") for each in found]
        for field, peer in PLAIN.items():
            theirs = [mape(each[horizon_s], field) for each in found]
            what = f"{name}: MAPE, {when}"
            yield of(what, "of the rate", ours, theirs, peer_name=peer, of_ratio=True, at_most=1.0)
    ahead = [each[AHEAD_S] for each in found]
    known = ahead[0][0].true is not None
    shares = [
        round(fmean((look.came if look.true is None else look.true) <= look.bound for look in each), 4)
        for each in ahead
    ]
    what = f"{name}: {'true rates' if known else 'rates that came'} within the bound, {HORIZONS[AHEAD_S]}"
    yield of(what, "of forecasts", shares, at_least=round(NOMINAL, 4))


if __name__ == "__main__":
    finish(RESULT, [each for name in TOGETHER for each in rows(name)])
    sys.exit(0)
