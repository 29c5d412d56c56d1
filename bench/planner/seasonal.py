"""What the seasonal forecast is worth: ``make bench-seasonal``.

Two measurements, each with and without the season, from the third day on (nothing is believed before). *Forecast*: ten
real days of arrivals, the forecast at two leads beside the true rate; nothing is simulated. *Simulated*: six days of
half an hour, with workers that start in two minutes as in all loads of ``make bench-planner``.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, Final

import numpy as np

from bench.planner.loads import LOADS
from bench.planner.shapes import arrivals
from bench.rows import Row, measure_parts, row
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.workload.arrival_forecast import RateForecaster
from pointsman.planner.core.workload.seasonality import DAY_S, Season
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Floats, Planner, Trace

RESULT: Final = "seasonal"
COMMAND: Final = "make bench-seasonal"
SEEDS: Final = (11, 12, 13)
LEARNED_DAYS: Final = 2  # that are not counted
FORECAST_DAYS: Final = 10
TICK_S: Final = 5.0
LEADS_S: Final = (90.0, 300.0)
DAYS: Final = 6
SHORT_DAY_S: Final = 1800.0
BIN_S: Final = 60.0
BURSTS: Final = (9 / 24, 19 / 24)  # of the day, when each begins
BURST_SHARE: Final = 1 / 12  # of the day, that each lasts
Pair = tuple[float, float]
"""(with the season, without)."""


class ShortDays(Season):
    """Half an hour each."""

    day_s = SHORT_DAY_S
    bin_s = BIN_S


# --- loads: (chance, seconds of a day, days) -> requests a second in each second ---


def _noise(rng: np.random.Generator, day_s: float, days: int) -> Floats:
    """No day is as the one before: a tenth up or down, other 48 times a day."""
    marks = np.exp(rng.normal(0, 0.1, 48 * days + 1))
    noise: Floats = np.interp(np.arange(int(day_s * days)), np.arange(len(marks)) * day_s / 48, marks)
    return noise


def bursts(rng: np.random.Generator, day_s: float, days: int, *, without: int | None = None, late: float = 0) -> Floats:
    """3 requests/s, and 11 twice a day at the same time; on the day ``without`` none, each ``late`` of a day later."""
    at_s = np.arange(int(day_s * days))
    day, of_day = at_s // day_s, at_s % day_s / day_s
    high = np.zeros(len(at_s))
    for begin in BURSTS:
        high[(of_day >= begin + late) & (of_day < begin + late + BURST_SHARE) & (day != without)] = 8.0
    return 3 * _noise(rng, day_s, days) + high


def walk(rng: np.random.Generator, day_s: float, days: int) -> Floats:
    """A random walk around 8 requests/s: 3 % up or down 1440 times a day, no day like another."""
    level, levels = 0.0, []
    for step in rng.normal(0, 0.03, 1440 * days):
        level = 0.995 * level + step
        levels.append(level)
    rates: Floats = 8 * np.exp(np.interp(np.arange(int(day_s * days)), np.arange(len(levels)) * day_s / 1440, levels))
    return rates


RATES: Final[dict[str, Callable[[np.random.Generator, float, int], Floats]]] = {
    "bursts at the same hour": bursts,
    "bursts within a bin": partial(bursts, late=1 / 576),
    "bursts, but none on a holiday": partial(bursts, without=4),
    "constant": lambda _, day_s, days: np.full(int(day_s * days), 8.0),
    "random walk": walk,
}
SIMULATED: Final = ("bursts at the same hour", "bursts, but none on a holiday", "constant", "random walk")


# --- measurements ---


def foreseen(load: str, seed: int, lead_s: float) -> tuple[Pair, Pair]:
    """Shares of the mean rate: how much too low both forecasts are on average, and how much too high."""
    rng = np.random.default_rng(seed)
    rates = RATES[load](rng, DAY_S, FORECAST_DAYS)[:: int(TICK_S)]
    forecaster, season = RateForecaster(), Season()
    ahead, errors = round(lead_s / TICK_S), []
    for tick, count in enumerate(rng.poisson(rates * TICK_S)):
        now_s = (tick + 1) * TICK_S
        forecaster = forecaster.observe(float(count), TICK_S, now_s)
        season = season.observe(float(count), TICK_S, now_s, forecaster, lead_s)
        if now_s > LEARNED_DAYS * DAY_S and tick % 6 == 0 and tick + ahead < len(rates):
            error = forecaster.expected(lead_s) - rates[tick + ahead]
            foretold = season.forecast(now_s, forecaster, lead_s)
            errors.append((error + (foretold.rise_per_s if foretold else 0.0), error))
    found, mean = np.array(errors), rates.mean()
    low, high = (np.round(np.clip(side, 0, None).mean(axis=0) / mean, 4).tolist() for side in (-found, found))
    return tuple(low), tuple(high)


def _trace(load: str, seed: int) -> Trace:
    """4000+250 tokens, as of ``step``."""
    rng = np.random.default_rng(seed)
    arrival_s = arrivals(rng, RATES[load](rng, SHORT_DAY_S, DAYS))
    prompts, outputs = (np.maximum(16, rng.gamma(16, mean / 16, len(arrival_s))).astype(int) for mean in (4000, 250))
    return Trace(load, arrival_s, prompts, outputs)


def simulated(load: str, seed: int) -> list[Pair]:
    """Share within objectives, that of the worst day, and GPU-hours, on the same requests, noise and starts."""
    service, trace, found = LOADS["step"].service(seed), _trace(load, seed), []
    begin_s, end_s = LEARNED_DAYS * SHORT_DAY_S, DAYS * SHORT_DAY_S
    for seasonal in (True, False):
        planner = Planner("Pointsman", decide, lambda: State(season=ShortDays()), damped=True)
        result = simulate(trace, service.simulation, replace(service.policy, seasonal=seasonal), planner)
        days = [result.met[result.arrival_s // SHORT_DAY_S == day] for day in range(LEARNED_DAYS, DAYS)]
        points = [point for point in result.timeline if begin_s <= point.at_s < end_s]
        busy = [p.prefill_active + p.decode_active + p.starting + p.switching + p.draining for p in points]
        share, worst_day = float(np.concatenate(days).mean()), min(float(day.mean()) for day in days)
        gpu_hours = fmean(busy) * (end_s - begin_s) / 3600
        found.append((round(share, 4), round(worst_day, 4), round(gpu_hours, 3)))
    return [*zip(*found, strict=True)]


# --- rows ---


def rows(load: str) -> Iterator[Row]:
    """Means over the seeds: the ratio with the season to that without."""
    for lead_s in LEADS_S:
        low, high = zip(*(foreseen(load, seed, lead_s) for seed in SEEDS), strict=True)
        yield _beside(f"{load}: rate foreseen too low, {lead_s:g} s ahead", "of the rate", low, at_most=1.0)
        yield _beside(f"{load}: rate foreseen too high, {lead_s:g} s ahead", "of the rate", high, at_most=1.1)
    if load in SIMULATED:
        share, worst_day, gpu_hours = zip(*(simulated(load, seed) for seed in SEEDS), strict=True)
        yield _beside(f"{load}: share of requests within objectives", "", share, at_least=0.999)
        yield _beside(f"{load}: share within objectives on the worst day", "", worst_day, at_least=0.99)
        yield _beside(f"{load}: GPU-hours", "h", gpu_hours, at_most=1.05)


def _beside(name: str, unit: str, pairs: Sequence[Pair], **target: Any) -> Row:
    ours, others = zip(*pairs, strict=True)
    beside = partial(row, peer_name="without", of_ratio=True, of_means=True, command=COMMAND)
    return beside(name, unit, ours, others, **target)


def main(argv: Sequence[str]) -> int:
    """Measure what is asked for again, and keep the other rows; 1 if a target is missed."""
    return measure_parts(RESULT, COMMAND, __doc__, argv, {load: partial(rows, load) for load in RATES})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
