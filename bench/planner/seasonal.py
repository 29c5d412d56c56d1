"""What the seasonal forecast is worth: ``make bench-seasonal``.

Two measurements, each with and without the season, from the third day on (nothing is believed before). *Forecast*: ten
real days of arrivals, the forecast at two leads beside the true rate; nothing is simulated. *Simulated*: six days of
half an hour, with workers that start in two minutes as in all loads of ``scenarios``. Cells go to
``bench/results/seasonal_cells.json``, rows to ``bench/results/seasonal.json``.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from bench.planner.scenarios import DATA, SCENARIOS
from bench.rows import RESULTS, Row, row, write
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.workload.arrival_forecast import RateForecaster
from pointsman.planner.core.workload.seasonality import DAY_S, Season
from pointsman.planner.replay.requests import Arrived, trace_of
from pointsman.planner.replay.trace_files import load_trace
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Floats, Planner, Trace

RESULT: Final = "seasonal"
CELLS: Final = RESULTS / "seasonal_cells.json"
COMMAND: Final = "make bench-seasonal"
SEEDS: Final = (11, 12, 13)
LEARNED_DAYS: Final = 2  # that are not counted
WITH, WITHOUT = "with the season", "without"
FORECAST_DAYS: Final = 10
FORECAST_TICK_S: Final = 5.0
LEADS_S: Final = (90.0, 300.0)
SIMULATED_DAYS: Final = 6
SIMULATED_BIN_S: Final = 60.0
BURSTS: Final = (9 / 24, 19 / 24)  # of the day, when each begins
BURST_SHARE: Final = 1 / 12  # of the day, that each lasts


# --- loads: the rate of each second ---

Rates = Callable[[np.random.Generator, float, int], Floats]
"""(chance, seconds of a day, days) -> requests a second in each second."""


def _noise(rng: np.random.Generator, day_s: float, days: int) -> Floats:
    """No day is as the one before: a tenth up or down, other 48 times a day."""
    marks = np.exp(rng.normal(0, 0.1, 48 * days + 1))
    noise: Floats = np.interp(np.arange(int(day_s * days)), np.arange(len(marks)) * day_s / 48, marks)
    return noise


@cache
def _azure_minutes() -> Floats:
    """Two copies of Azure's recorded conversations, requests a second in each minute of the recorded hour."""
    arrivals = load_trace(DATA / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.xz", 0).trace.arrival_s
    minutes = np.histogram(arrivals, bins=np.arange(0, arrivals[-1], 60.0))[0]
    return 2 * minutes / 60


def azure(rng: np.random.Generator, day_s: float, days: int) -> Floats:
    """The recorded hour as the shape of a day."""
    shape = _azure_minutes()
    of_day = np.arange(int(day_s * days)) % day_s / day_s
    rates: Floats = np.interp(of_day * len(shape), np.arange(len(shape)), shape) * _noise(rng, day_s, days)
    return rates


def bursts(rng: np.random.Generator, day_s: float, days: int, *, without: int | None = None, late: float = 0) -> Floats:
    """3 requests/s, and 11 twice a day at the same time; on the day ``without`` none, each ``late`` of a day later."""
    at_s = np.arange(int(day_s * days))
    day, of_day = at_s // day_s, at_s % day_s / day_s
    high = np.zeros(len(at_s))
    for begin in BURSTS:
        high[(of_day >= begin + late) & (of_day < begin + late + BURST_SHARE) & (day != without)] = 8.0
    return 3 * _noise(rng, day_s, days) + high


def holiday(rng: np.random.Generator, day_s: float, days: int) -> Floats:
    """The same, but no burst on the fifth day."""
    return bursts(rng, day_s, days, without=4)


def uneven(rng: np.random.Generator, day_s: float, days: int) -> Floats:
    """The same with bursts that begin within a bin."""
    return bursts(rng, day_s, days, late=1 / 576)


def constant(_: np.random.Generator, day_s: float, days: int) -> Floats:
    """8 requests/s."""
    return np.full(int(day_s * days), 8.0)


def walk(rng: np.random.Generator, day_s: float, days: int) -> Floats:
    """A random walk around 8 requests/s: 3 % up or down 1440 times a day, no day like another."""
    level, levels = 0.0, []
    for step in rng.normal(0, 0.03, 1440 * days):
        level = 0.995 * level + step
        levels.append(level)
    rates: Floats = 8 * np.exp(np.interp(np.arange(int(day_s * days)), np.arange(len(levels)) * day_s / 1440, levels))
    return rates


LOADS: Final[dict[str, Rates]] = {
    "bursts at the same hour": bursts,
    "bursts within a bin": uneven,
    "bursts, but none on a holiday": holiday,
    "azure's hour as a day": azure,
    "constant": constant,
    "random walk": walk,
}
SIMULATED: Final = ("bursts at the same hour", "bursts, but none on a holiday", "constant", "random walk")
SIMULATED_DAY_S: Final = 1800.0


# --- forecast ---


@dataclass(frozen=True)
class Forecast:
    """Shares of the mean rate: ``short`` of the true rate at the lead, and ``above`` it, on average."""

    load: str
    seed: int
    lead_s: float
    planner: str
    short: float
    above: float
    believed: float  # mean


def forecasts(load: str, seed: int, lead_s: float) -> list[Forecast]:
    """Both forecasts of one load, by what the live planner would see."""
    rng = np.random.default_rng(seed)
    rates = LOADS[load](rng, DAY_S, FORECAST_DAYS)[:: int(FORECAST_TICK_S)]
    forecaster, season = RateForecaster(), Season()
    ahead = round(lead_s / FORECAST_TICK_S)
    errors: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    believed = []
    for tick, count in enumerate(rng.poisson(rates * FORECAST_TICK_S)):
        now_s = (tick + 1) * FORECAST_TICK_S
        forecaster = forecaster.observe(float(count), FORECAST_TICK_S, now_s, lead_s)
        season = season.observe(FORECAST_TICK_S, now_s, forecaster, lead_s)
        if now_s <= LEARNED_DAYS * DAY_S or tick % 6 or tick + ahead >= len(rates):
            continue
        foretold, true = season.forecast(now_s, forecaster, lead_s), rates[tick + ahead]
        alone = forecaster.expected(lead_s)
        errors[WITHOUT].append(float(alone - true))
        errors[WITH].append(float(alone + (foretold.rise_per_s if foretold else 0.0) - true))
        believed.append(foretold.share if foretold else 0.0)
    mean = float(rates.mean())
    return [
        Forecast(
            load, seed, lead_s, planner,
            short=round(statistics.fmean(max(0.0, -error) for error in found) / mean, 4),
            above=round(statistics.fmean(max(0.0, error) for error in found) / mean, 4),
            believed=round(statistics.fmean(believed), 3) if planner == WITH else 0.0,
        )
        for planner, found in errors.items()
    ]  # fmt: skip


# --- simulated ---


@dataclass(frozen=True)
class Simulated:
    """From the third day on. ``starts``: of workers."""

    load: str
    seed: int
    planner: str
    share: float  # of requests within objectives
    worst_day: float
    gpu_hours: float
    starts: int


def _trace(load: str, seed: int) -> Trace:
    """4000+250 tokens, as of ``step``."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(LOADS[load](rng, SIMULATED_DAY_S, SIMULATED_DAYS))
    arrivals = np.sort(np.repeat(np.arange(len(counts)), counts) + rng.random(int(counts.sum())))
    lengths = (np.maximum(16, rng.gamma(16, mean / 16, len(arrivals))).astype(int) for mean in (4000.0, 250.0))
    requests = zip(arrivals.tolist(), *(each.tolist() for each in lengths), strict=True)
    return trace_of(load, [Arrived(*each) for each in requests])


def simulated(load: str, seed: int) -> Iterator[Simulated]:
    """Both planners on the same requests, noise and starts."""
    scenario, day_s, trace = SCENARIOS["step"], SIMULATED_DAY_S, _trace(load, seed)
    for name, seasonal in ((WITH, True), (WITHOUT, False)):
        planner = Planner(name, decide, lambda: State(season=Season(day_s, SIMULATED_BIN_S)))
        policy = replace(scenario.policy(), seasonal=seasonal)
        result = simulate(trace, scenario.simulation(seed), policy, planner)
        met, day = result.met, result.arrival_s // day_s
        begin_s, end_s = LEARNED_DAYS * day_s, SIMULATED_DAYS * day_s
        points = [point for point in result.timeline if begin_s <= point.at_s < end_s]
        busy = [p.prefill_active + p.decode_active + p.starting + p.switching + p.draining for p in points]
        yield Simulated(
            load, seed, name,
            share=round(float(met[day >= LEARNED_DAYS].mean()), 4),
            worst_day=round(min(float(met[day == each].mean()) for each in range(LEARNED_DAYS, SIMULATED_DAYS)), 4),
            gpu_hours=round(statistics.fmean(busy) * (end_s - begin_s) / 3600, 3),
            starts=sum(each.kind == "start" and each.began_s >= begin_s for each in result.transitions),
        )  # fmt: skip


# --- rows ---


def rows(forecast: Sequence[Forecast], runs: Sequence[Simulated]) -> Iterator[Row]:
    """Means over the seeds: with the season beside without."""
    for load in LOADS:
        for lead_s in LEADS_S:
            yield from _beside(
                f"{load}: rate foreseen too low, {lead_s:g} s ahead",
                "of the rate",
                [[each.short for each in forecast if (each.load, each.lead_s, each.planner) == (load, lead_s, planner)]
                 for planner in (WITH, WITHOUT)],
                at_most=1.0,
            )  # fmt: skip
            yield from _beside(
                f"{load}: rate foreseen too high, {lead_s:g} s ahead",
                "of the rate",
                [[each.above for each in forecast if (each.load, each.lead_s, each.planner) == (load, lead_s, planner)]
                 for planner in (WITH, WITHOUT)],
                at_most=1.1,
            )  # fmt: skip
        mine, others = ([run for run in runs if (run.load, run.planner) == (load, who)] for who in (WITH, WITHOUT))
        shares = [[run.share for run in each] for each in (mine, others)]
        yield from _beside(f"{load}: share of requests within objectives", "", shares, at_least=0.999)
        worst = [[run.worst_day for run in each] for each in (mine, others)]
        yield from _beside(f"{load}: share within objectives on the worst day", "", worst, at_least=0.99)
        hours = [[run.gpu_hours for run in each] for each in (mine, others)]
        yield from _beside(f"{load}: GPU-hours", "h", hours, at_most=1.05)


def _beside(
    name: str,
    unit: str,
    values: Sequence[Sequence[float]],
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Iterator[Row]:
    """A row of the ratio, where both were measured."""
    ours, peer = values
    if ours and peer:
        yield row(
            name, unit, ours, peer=peer, peer_name=WITHOUT, of_ratio=True, of_means=True, at_most=at_most,
            at_least=at_least, command=COMMAND,
        )  # fmt: skip


def read_cells() -> tuple[list[Forecast], list[Simulated]]:
    """All that were kept; none if there is no file."""
    kept = json.loads(CELLS.read_text()) if CELLS.exists() else {"forecast": [], "simulated": []}
    return [Forecast(**cell) for cell in kept["forecast"]], [Simulated(**cell) for cell in kept["simulated"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for again, keep the rest, and write cells and rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("forecast", "simulated", "rows"))
    parser.add_argument("--resume", action="store_true", help="keep the cells that were measured before")
    asked = parser.parse_args(arguments)
    forecast, runs = read_cells() if asked.only or asked.resume else ([], [])
    for load in LOADS:
        for seed in SEEDS:
            if asked.only in (None, "forecast"):
                for lead_s in LEADS_S:
                    of = (load, seed, lead_s)
                    if not asked.resume or all((each.load, each.seed, each.lead_s) != of for each in forecast):
                        forecast = [each for each in forecast if (each.load, each.seed, each.lead_s) != of]
                        forecast += forecasts(load, seed, lead_s)
            if asked.only in (None, "simulated") and load in SIMULATED:
                known = [run for run in runs if (run.load, run.seed) == (load, seed)]
                if not asked.resume or not known:
                    runs = [run for run in runs if (run.load, run.seed) != (load, seed)]
                    runs += list(simulated(load, seed))
            kept = {"forecast": [asdict(each) for each in forecast], "simulated": [asdict(run) for run in runs]}
            CELLS.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"wrote {write(RESULT, list(rows(forecast, runs)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
