"""How good the planner's forecast is, over arrivals alone: ``make bench-forecast``.

The production forecaster is shown the counts that a gateway would have shown the live planner, one a tick, and is asked
for what the planner asks for: the present rate, and the rate when a worker that is started now serves. Services plan
with that rate itself, elastic groups with an upper bound of it, so the bound is measured too.
What it said is compared with what then came, beside two plain forecasts of the same counts. Nothing is simulated. What
was found of each load, seed and horizon is written to ``bench/results/forecast_cells.json``, and the rows made of it to
``bench/results/forecast.json``.
"""

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import NormalDist
from typing import Final

import numpy as np

from bench.planner.scenarios import RETURNING, SCENARIOS, STEADY_LOADS, STEADY_SEEDS, Synthetic, steady
from bench.rows import RESULTS, Row, finish, keep, kept, row
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.workload.arrival_forecast import RateForecaster
from pointsman.planner.replay.generators import Segment
from pointsman.planner.simulator.types import Floats, Trace

RESULT: Final = "forecast"
CELLS: Final = RESULTS / "forecast_cells.json"
COMMAND: Final = "make bench-forecast"
SEEDS: Final = (11, 12, 13)
POLICY: Final = SCENARIOS["step"].policy()  # of which only defaults matter here: the tick, what a start takes
TICK_S: Final = POLICY.interval_s
LEAD_S: Final = POLICY.start_s  # at which the forecaster compares what it said with what came
AHEAD_S: Final = LEAD_S + TICK_S  # for which ``decide`` asks it
HORIZONS_S: Final = (0.0, AHEAD_S)
NOMINAL: Final = NormalDist().cdf(1.0)  # the quantile of the bound that is measured: one standard deviation
ROUNDING: Final = 1e-9  # of sums that are equal
RECENT_S: Final = SHIPPED.recent_rate_s
LAST, MEAN = "last value", f"mean of {RECENT_S:g} s"


# --- loads ---


@dataclass(frozen=True)
class Load:
    """Traces that are measured together."""

    name: str
    traces: tuple[Callable[[int], Trace], ...]
    seeds: tuple[int, ...] = SEEDS

    @property
    def rates_are_known(self) -> bool:
        """Whether requests were drawn from true rates; of a real trace nobody knows them."""
        return all(isinstance(trace, Synthetic) for trace in self.traces)


def _constant(gpu: str) -> Load:
    loads = [(rate, tokens) for on, rate, tokens, *_ in STEADY_LOADS if on == gpu]
    rates = [rate for rate, _ in loads]
    return Load(
        f"constant, {min(rates)} to {max(rates)}/s",
        tuple(steady(rate, tokens) for rate, tokens in loads),
        tuple(STEADY_SEEDS + seed for seed in SEEDS),
    )


ONE_OF_A_KIND: Final = "azure_conv"  # its arrivals are the same, whatever the seed
LOADS: Final = {
    load.name: load
    for load in (
        *(
            Load(name, (each.trace,), SEEDS[:1] if name == ONE_OF_A_KIND else SEEDS)
            for name, each in {**SCENARIOS, **RETURNING}.items()
        ),
        *(_constant(gpu) for gpu in dict.fromkeys(gpu for gpu, *_ in STEADY_LOADS)),
    )
}


def drawn(segments: Sequence[Segment], from_s: float, to_s: float) -> float:
    """How many requests such true rates give in that time, on average."""
    total = 0.0
    for piece in segments:
        begin_s, end_s = max(from_s, piece.start_s), min(to_s, piece.end_s)
        if begin_s < end_s:
            middle = ((begin_s + end_s) / 2 - piece.start_s) / (piece.end_s - piece.start_s)
            total += (end_s - begin_s) * (piece.rate + (piece.end_rate - piece.rate) * middle)
    return total


# --- what was said, and what came ---


@dataclass(frozen=True)
class Compared:
    """What was said at one look of one moment, and what then came; all are rates a second.

    ``true``: what the requests were drawn from; None: nobody knows it. ``rises``: that was less at the look.
    """

    came: float
    true: float | None
    rises: bool
    ours: float
    bound: float
    last: float
    mean: float


def judged_by(now_s: float, horizon_s: float) -> tuple[float, float]:
    """From when to when what comes tells how good a forecast was.

    As the planner itself compares: the half minute that ends at the horizon. Of the present that one is over, and
    nothing needs to be foretold of it: the half minute that begins.
    """
    end_s = now_s + max(horizon_s, RECENT_S)
    return end_s - RECENT_S, end_s


def compared(arrival_s: Floats, segments: Sequence[Segment] | None = None) -> dict[float, list[Compared]]:
    """Every look of the live planner at these arrivals, by horizon.

    What comes after the last arrival is not known, and what is said of it is compared with nothing. A tick in which
    nobody came was seen: it is a count of zero.
    """
    known_s = float(arrival_s[-1])

    def count(from_s: float, to_s: float) -> int:
        return int(np.searchsorted(arrival_s, to_s) - np.searchsorted(arrival_s, from_s))

    found: dict[float, list[Compared]] = {horizon_s: [] for horizon_s in HORIZONS_S}
    forecaster = RateForecaster()
    for tick in range(1, int(known_s / TICK_S) + 1):
        now_s, before_s = tick * TICK_S, (tick - 1) * TICK_S
        forecaster = forecaster.observe(float(count(before_s, now_s)), TICK_S, now_s, LEAD_S)
        since_s = max(0.0, now_s - RECENT_S)
        last, mean = count(before_s, now_s) / TICK_S, count(since_s, now_s) / (now_s - since_s)
        for horizon_s, said in found.items():
            from_s, to_s = judged_by(now_s, horizon_s)
            if to_s > known_s:
                continue
            forecast = forecaster.at(horizon_s, now_s, AHEAD_S, NOMINAL)
            assert forecast is not None  # something was seen
            true, rises = None, False
            if segments is not None:
                true = drawn(segments, from_s, to_s) / RECENT_S
                rises = true > drawn(segments, before_s, now_s) / TICK_S * (1 + ROUNDING)
            came = count(from_s, to_s) / RECENT_S
            said.append(Compared(came, true, rises, forecast.expected, forecast.high, last, mean))
    return found


def mape(pairs: Iterable[tuple[float, float]]) -> float:
    """Of (said, came) the mean error relative to what came, where anything did: of nothing no error is a share.

    Raises ValueError if nothing ever came.
    """
    errors = [abs(said - came) / came for said, came in pairs if came > 0]
    if not errors:
        raise ValueError("nothing came at all: no error is a share of it")
    return statistics.fmean(errors)


def covered(pairs: Iterable[tuple[float, float]]) -> float:
    """Of (bound, came) the share where no more came."""
    return statistics.fmean(came <= bound for bound, came in pairs)


@dataclass(frozen=True)
class Accuracy:
    """One load and seed at one horizon: MAPEs, and where it is ahead, how often and how far the bound was above.

    ``known``: of who knows the true rate, so what chance alone makes of it. ``covered_calm``: of the true rates that
    were no higher than at the look. ``above``: the mean bound relative to the mean forecast, less 1. None: the true
    rate is not known; or it is the present, for which no planner uses a bound.
    """

    load: str
    seed: int
    horizon_s: float
    forecasts: int
    empty: int  # of which so many are in no MAPE: nothing came
    ours: float
    last: float
    mean: float
    known: float | None
    covered_came: float | None
    covered_true: float | None
    covered_calm: float | None
    above: float | None


def accuracy(load: str, seed: int, horizon_s: float, found: Sequence[Compared]) -> Accuracy:
    """The figures of what was compared. Raises ValueError if that is nothing."""
    drawn_from = [(each, each.true) for each in found if each.true is not None]

    def share(pairs: Sequence[tuple[float, float]]) -> float | None:
        return round(covered(pairs), 4) if pairs and horizon_s > 0 else None

    def error(pairs: Iterable[tuple[float, float]]) -> float:
        return round(mape(pairs), 4)

    above = sum(each.bound for each in found) / sum(each.ours for each in found) - 1
    return Accuracy(
        load, seed, horizon_s, len(found), sum(not each.came for each in found),
        ours=error((each.ours, each.came) for each in found),
        last=error((each.last, each.came) for each in found),
        mean=error((each.mean, each.came) for each in found),
        known=error((true, each.came) for each, true in drawn_from) if drawn_from else None,
        covered_came=share([(each.bound, each.came) for each in found]),
        covered_true=share([(each.bound, true) for each, true in drawn_from]),
        covered_calm=share([(each.bound, true) for each, true in drawn_from if not each.rises]),
        above=round(above, 4) if horizon_s else None,
    )  # fmt: skip


def measured(load: Load, seed: int) -> list[Accuracy]:
    """A load at both horizons; several traces of it as if they were one."""
    found: dict[float, list[Compared]] = {horizon_s: [] for horizon_s in HORIZONS_S}
    for trace in load.traces:
        segments = trace.segments(seed) if isinstance(trace, Synthetic) else None
        for horizon_s, more in compared(trace(seed).arrival_s, segments).items():
            found[horizon_s] += more
    return [accuracy(load.name, seed, horizon_s, each) for horizon_s, each in found.items()]


def read_cells() -> list[Accuracy]:
    """All that were kept; none if there is no file."""
    return [Accuracy(**cell) for cell in kept(CELLS) or ()]


def of_load(cells: Sequence[Accuracy], load: str, horizon_s: float) -> list[Accuracy]:
    """The seeds of one load at one horizon."""
    return [cell for cell in cells if (cell.load, cell.horizon_s) == (load, horizon_s)]


def ahead(horizon_s: float) -> str:
    """In words."""
    return f"{horizon_s:g} s ahead" if horizon_s else "now"


# --- rows ---


def rows(cells: Sequence[Accuracy]) -> Iterator[Row]:
    """Means over the seeds: of each horizon beside both plain forecasts, and how much the bound covers."""
    beside = partial(row, of_ratio=True, of_means=True, at_most=1.0, command=COMMAND)
    for load in LOADS.values():
        for horizon_s in HORIZONS_S:
            here = of_load(cells, load.name, horizon_s)
            name, mine = f"{load.name}: MAPE, {ahead(horizon_s)}", [cell.ours for cell in here]
            if here:
                yield beside(name, "of the rate", mine, [cell.last for cell in here], peer_name=LAST)
                yield beside(name, "of the rate", mine, [cell.mean for cell in here], peer_name=MEAN)
            what = "true rates" if load.rates_are_known else "rates that came"
            shares = [cell.covered_true if load.rates_are_known else cell.covered_came for cell in here]
            if known := [share for share in shares if share is not None]:
                name, least = f"{load.name}: {what} within the bound, {ahead(horizon_s)}", round(NOMINAL, 4)
                yield row(name, "of forecasts", known, at_least=least, of_means=True, command=COMMAND)


def main() -> int:
    """Measure all of it again and write cells and rows."""
    cells = [cell for load in LOADS.values() for seed in load.seeds for cell in measured(load, seed)]
    keep(CELLS, [asdict(cell) for cell in cells])
    finish(RESULT, [*rows(cells)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
