"""The forecast's part of ``docs/reports/planner-evaluation.md``: its errors beside plain forecasts, a picture."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from bench.pages import render
from bench.planner.forecast_accuracy import (
    AHEAD_S,
    HORIZONS_S,
    LAST,
    LEAD_S,
    LOADS,
    MEAN,
    NOMINAL,
    RECENT_S,
    TICK_S,
    Accuracy,
    ahead,
    of_load,
)  # fmt: skip
from bench.planner.scenarios import HALF_HOUR_S
from pointsman.planner.core.workload.arrival_forecast import MIN_ERRORS
from pointsman.planner.replay.axes import Axis

PICTURE: Final = "planner-forecast.svg"
OURS, KNOWN = "Pointsman", "true rate"
SIDES: Final = {OURS: "ours", LAST: "last", MEAN: "mean", KNOWN: "known"}
"""Fields of Accuracy by whose forecast it is."""
BOUNDS: Final = ("covered_true", "covered_calm", "covered_came", "above")
Figure = Callable[[str, str, float], float | None]


def section(cells: Sequence[Accuracy]) -> str:
    """Its Markdown."""
    of = _figures(cells)
    errors = {load: [*_errors(of, load)] for load in LOADS}
    numbers = {"tick_s": TICK_S, "ahead_s": AHEAD_S, "lead_s": LEAD_S, "recent_s": RECENT_S, "nominal": NOMINAL}
    return render(
        "forecast.md",
        **numbers,
        min_errors=MIN_ERRORS,
        warm_s=LEAD_S + MIN_ERRORS * TICK_S,
        half_minutes=round(HALF_HOUR_S / RECENT_S),
        picture=PICTURE,
        heads=[f"{name}, {ahead(horizon_s)}" for horizon_s in HORIZONS_S for name in SIDES],
        errors=errors,
        empty=sum(cell.empty for cell in cells),
        forecasts=sum(cell.forecasts for cell in cells),
        better=[*_better(of)],
        ahead=ahead(AHEAD_S),
        bounds=[
            (
                load,
                [of(field, load, AHEAD_S) for field in BOUNDS],
                sum(c.forecasts for c in of_load(cells, load, AHEAD_S)),
            )
            for load in LOADS
        ],
    )


def _figures(cells: Sequence[Accuracy]) -> Figure:
    """(field, load, horizon) -> its mean over the seeds; None: not known of one of them."""

    def mean(field: str, load: str, horizon_s: float) -> float | None:
        values = [getattr(cell, field) for cell in of_load(cells, load, horizon_s)]
        return None if None in values or not values else statistics.fmean(values)

    return mean


def _errors(of: Figure, load: str) -> Iterator[tuple[float | None, bool]]:
    """(MAPE, whether it is the least that can be had) of each horizon and side."""
    for horizon_s in HORIZONS_S:
        errors = {name: of(field, load, horizon_s) for name, field in SIDES.items()}
        least = min((value for name, value in errors.items() if name != KNOWN and value is not None), default=None)
        yield from ((value, name != KNOWN and value == least) for name, value in errors.items())


def _better(of: Figure) -> Iterator[tuple[str, str, str, float, float]]:
    """(load, horizon, plain forecast, its error, ours) where a plain forecast errs less."""
    for load in LOADS:
        for horizon_s in HORIZONS_S:
            ours = of("ours", load, horizon_s)
            for name in (LAST, MEAN):
                plain = of(SIDES[name], load, horizon_s)
                if ours is not None and plain is not None and plain < ours:
                    yield load, ahead(horizon_s), name, plain, ours


def picture(cells: Sequence[Accuracy]) -> str:
    """Every forecast's error, a line a load and a panel a horizon: left is better."""
    of, loads = _figures(cells), [load for load in LOADS if of_load(cells, load, AHEAD_S)]
    panels = {
        ahead(horizon_s): [[of(field, load, horizon_s) for field in SIDES.values()] for load in loads]
        for horizon_s in HORIZONS_S
    }
    axis = Axis((0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0), log=True)
    return render("forecast.svg", sides=[*SIDES], loads=loads, panels=panels, axis=axis)
