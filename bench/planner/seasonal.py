"""What the seasonal forecast is worth: ``make bench-seasonal``.

Two measurements, each with and without the season, from the third day on (nothing is believed before). *Forecast*: ten
real days of arrivals, the forecast at two leads beside the true rate; nothing is simulated. *Simulated*: six days of
half an hour, with workers that start in two minutes as in all loads of ``scenarios``. Cells go to
``bench/results/seasonal_cells.json``, rows to ``bench/results/seasonal.json``.
"""

import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any, Final

import numpy as np

from bench.planner.scenarios import DATA, SCENARIOS
from bench.rows import RESULTS, Row, finish, keep, kept, options, row
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
    """Means over the seeds, where both were measured: the ratio with the season to that without."""
    for load in LOADS:
        of_load = [each for each in forecast if each.load == load]
        judged: list[tuple[str, str, Sequence[Any], str, dict[str, Any]]] = []
        for lead_s in LEADS_S:
            here = [each for each in of_load if each.lead_s == lead_s]
            for what, value, most in (("low", "short", 1.0), ("high", "above", 1.1)):
                name = f"rate foreseen too {what}, {lead_s:g} s ahead"
                judged.append((name, "of the rate", here, value, {"at_most": most}))
        simulated = [run for run in runs if run.load == load]
        judged += [
            ("share of requests within objectives", "", simulated, "share", {"at_least": 0.999}),
            ("share within objectives on the worst day", "", simulated, "worst_day", {"at_least": 0.99}),
            ("GPU-hours", "h", simulated, "gpu_hours", {"at_most": 1.05}),
        ]
        beside = partial(row, peer_name=WITHOUT, of_ratio=True, of_means=True, command=COMMAND)
        for name, unit, found, value, target in judged:
            mine, others = ([getattr(e, value) for e in found if e.planner == who] for who in (WITH, WITHOUT))
            if mine and others:
                yield beside(f"{load}: {name}", unit, mine, others, **target)


def read_cells() -> tuple[list[Forecast], list[Simulated]]:
    """All that were kept; none if there is no file."""
    found = kept(CELLS) or {"forecast": [], "simulated": []}
    return [Forecast(**cell) for cell in found["forecast"]], [Simulated(**cell) for cell in found["simulated"]]


def main(argv: list[str]) -> int:
    """Measure what was asked for again, keep the rest, and write cells and rows; 1 if a target is missed."""
    which = ("all", "what is measured again: all, forecast, simulated, or rows (nothing)")
    resume = (False, "keep the cells that were measured before")
    asked = options(COMMAND, __doc__, argv, only=which, resume=resume, loads=((*LOADS,), "that are measured"))
    again = asked.only == "all" and not asked.resume and {*asked.loads} == {*LOADS}
    forecast, runs = ([], []) if again else read_cells()
    for load, seed in itertools.product(asked.loads, SEEDS):
        for lead_s in LEADS_S if asked.only in ("all", "forecast") else ():
            rest = [each for each in forecast if (each.load, each.seed, each.lead_s) != (load, seed, lead_s)]
            if not asked.resume or len(rest) == len(forecast):
                forecast = rest + forecasts(load, seed, lead_s)
        if asked.only in ("all", "simulated") and load in SIMULATED:
            others = [run for run in runs if (run.load, run.seed) != (load, seed)]
            if not asked.resume or len(others) == len(runs):
                runs = [*others, *simulated(load, seed)]
        order = [*LOADS]
        forecast.sort(key=lambda each: (order.index(each.load), each.seed, each.lead_s))
        runs.sort(key=lambda run: (order.index(run.load), run.seed))
        keep(CELLS, {"forecast": [asdict(each) for each in forecast], "simulated": [asdict(run) for run in runs]})
    return finish(RESULT, [*rows(forecast, runs)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
