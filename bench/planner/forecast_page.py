"""The forecast's part of ``docs/reports/planner-evaluation.md``: its errors beside plain forecasts, a picture."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final

from bench.planner.forecast_accuracy import (
    AHEAD_S,
    HORIZONS_S,
    LAST,
    LEAD_S,
    LOADS,
    MEAN,
    NOMINAL,
    TICK_S,
    Accuracy,
    ahead,
    of_load,
)
from bench.planner.scenarios import HALF_HOUR_S
from pointsman.planner.core.workload.arrival_forecast import MIN_ERRORS, RECENT_S
from pointsman.planner.replay.axes import Axis

PICTURE: Final = "planner-forecast.svg"
OURS, KNOWN = "Pointsman", "true rate"
HEAD: Final = f"""\
## How good the forecast is

Measured by `make bench-forecast` over arrivals alone, those of the loads above and constant ones; figures in
`bench/results/forecast_cells.json`. The production forecaster, with its shipped constants, is shown the count of each
tick of {TICK_S:g} s and asked each time for what the planner asks for: the rate *now*, which switches answer, and the
rate *{AHEAD_S:g} s ahead*, which starts answer ({LEAD_S:g} s are what the policy's default says a start takes, and one
tick more; in the simulations above what a start takes is learned).

* **The error** is the mean absolute percentage error (MAPE) beside the rate that then came: of the {RECENT_S:g} s that
  end at {AHEAD_S:g} s, as long as the planner itself compares, and for *now* of the {RECENT_S:g} s that follow. A tick
  in which nobody came is a count of zero. Where nobody came in all {RECENT_S:g} s there is nothing to be a share
  of: the forecast is left out. What was said of the time after the last arrival is compared with nothing. Too little
  is never more than 100 % off, too much may be: after a burst most is.
* **Beside it** are two plain forecasts of the same counts: the {LAST} is that of the last tick, the {MEAN} that of
  the {RECENT_S:g} s before. Who knew the **{KNOWN}** would be off by what counts of {RECENT_S:g} s differ by chance.
* **The bound** is the {NOMINAL:.3f} quantile (one standard deviation), *{AHEAD_S:g} s ahead* only: elastic groups are
  sized by such a bound, services by the forecast itself. It is a bound of the rate: what counts differ by chance is
  left out on purpose, since queues are sized for it. So {100 * NOMINAL:.1f} % of the true rates should be within it,
  and fewer of the counts; of a real trace there are only counts. Until {MIN_ERRORS} forecasts have come due, some
  {LEAD_S + MIN_ERRORS * TICK_S:.0f} s, it knows of chance alone; that time is counted, too. The target
  has no tolerance, though forecasts of neighbouring ticks are
  judged by nearly the same counts, and half an hour has only {HALF_HOUR_S / RECENT_S:.0f} half minutes.
* **Seeds** are those of the loads above (Azure's arrivals are the same for each), and of the constant loads of
  [benchmarks.md](benchmarks.md#planner). No constant was chosen on these figures.
"""
Side = Callable[[Accuracy], float | None]
SIDES: Final[dict[str, Side]] = {
    OURS: lambda cell: cell.ours,
    LAST: lambda cell: cell.last,
    MEAN: lambda cell: cell.mean,
    KNOWN: lambda cell: cell.known,
}
PLAIN: Final = (LAST, MEAN)


def section(cells: Sequence[Accuracy]) -> list[str]:
    """The lines of it; nothing if nothing is measured."""
    if not cells:
        return []
    return [
        HEAD,
        f"![The forecast's error](pictures/{PICTURE})",
        "",
        "MAPE, means over the seeds (their ranges are in [benchmarks.md](benchmarks.md#forecast)); bold: the least "
        "that can be had.",
        "",
        *_errors(cells),
        "",
        f"Left out because nobody came: {sum(cell.empty for cell in cells)} of "
        f"{sum(cell.forecasts for cell in cells)} forecasts. **A plain forecast is better** {_better(cells)}.",
        "",
        f"The bound {ahead(AHEAD_S)}: what share was within it, and how far it is above the forecast on average.",
        "",
        *_bounds(cells),
        "",
    ]


def _mean(side: Side, cells: Sequence[Accuracy]) -> float | None:
    """Over the seeds; None: not known of one of them."""
    values = [value for cell in cells if (value := side(cell)) is not None]
    return statistics.fmean(values) if values and len(values) == len(cells) else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def _errors(cells: Sequence[Accuracy]) -> Iterator[str]:
    heads = [f"{name}, {ahead(horizon_s)}" for horizon_s in HORIZONS_S for name in SIDES]
    yield f"| load | {' | '.join(heads)} |"
    yield "|---" * (1 + len(heads)) + "|"
    for load in LOADS:
        values = []
        for horizon_s in HORIZONS_S:
            means = {name: _mean(side, of_load(cells, load, horizon_s)) for name, side in SIDES.items()}
            least = min(value for name, value in means.items() if name != KNOWN and value is not None)
            for name, value in means.items():
                values.append(f"**{_percent(value)}**" if name != KNOWN and value == least else _percent(value))
        yield f"| {_escaped(load)} | {' | '.join(values)} |"


def _better(cells: Sequence[Accuracy]) -> str:
    """Where a plain forecast errs less, in words."""
    found = []
    for load in LOADS:
        for horizon_s in HORIZONS_S:
            here = of_load(cells, load, horizon_s)
            ours = _mean(SIDES[OURS], here)
            for name in PLAIN:
                plain = _mean(SIDES[name], here)
                if ours is not None and plain is not None and plain < ours:
                    found.append(
                        f"on {_escaped(load)}, {ahead(horizon_s)} (the {name}: {_percent(plain)}, {OURS}: "
                        f"{_percent(ours)})"
                    )
    return "; ".join(found) if found else "nowhere"


def _bounds(cells: Sequence[Accuracy]) -> Iterator[str]:
    yield "| load | true rates | of those, where the rate does not rise | counts | above the forecast | forecasts |"
    yield "|---|---|---|---|---|---|"
    for load in LOADS:
        here = of_load(cells, load, AHEAD_S)
        sides: tuple[Side, ...] = (
            lambda cell: cell.covered_true,
            lambda cell: cell.covered_calm,
            lambda cell: cell.covered_came,
            lambda cell: cell.above,
        )
        shares = [_percent(_mean(side, here)) for side in sides]
        yield f"| {_escaped(load)} | {' | '.join(shares)} | {sum(cell.forecasts for cell in here)} |"


def _escaped(load: str) -> str:
    return load.replace("_", r"\_")


# --- picture ---

_LEFT, _PLOT_WIDTH, _GAP, _TOP, _ROW, _BELOW = 150, 300, 36, 66, 30, 42
_AXIS: Final = Axis((0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0), log=True)
# No two marks are alike in colour and shape: colours alone are not told apart by everybody.
_COLOURS: Final = {OURS: "#2f6fb2", LAST: "#c4682d", MEAN: "#00806a", KNOWN: "#222222"}
_LOWER: Final = {OURS: -7, LAST: 7, MEAN: 0, KNOWN: 0}  # so that none hides another that errs as much
_SIZE: Final = 4.5


def picture(cells: Sequence[Accuracy]) -> str:
    """Every forecast's error, a line a load and a panel a horizon: left is better."""
    names = [load for load in LOADS if of_load(cells, load, AHEAD_S)]
    width = _LEFT + len(HORIZONS_S) * (_PLOT_WIDTH + _GAP)
    bottom = _TOP + _ROW * len(names)
    height = bottom + _BELOW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img" '
        'aria-label="Mean absolute percentage error of each forecast, by load and horizon">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, name in enumerate(SIDES):
        x = _LEFT + 130 * number
        lines += [_mark(name, x, 16), f'<text x="{x + 11}" y="20">{escape(name)}</text>']
    for row, load in enumerate(names):
        lines.append(f'<text x="{_LEFT - 12}" y="{_y(row) + 4}" text-anchor="end">{escape(load)}</text>')
    for panel, horizon_s in enumerate(HORIZONS_S):
        left = _LEFT + panel * (_PLOT_WIDTH + _GAP)
        lines.append(f'<text x="{left}" y="{_TOP - 18}" font-weight="600">MAPE, {ahead(horizon_s)}</text>')
        for tick in _AXIS.ticks:
            at = left + _PLOT_WIDTH * _AXIS.share(tick)
            lines.append(f'<line x1="{at:.0f}" x2="{at:.0f}" y1="{_TOP - 8}" y2="{bottom}" stroke="#e1e4e8"/>')
            lines.append(f'<text x="{at:.0f}" y="{bottom + 18}" text-anchor="middle">{100 * tick:g} %</text>')
        for row, load in enumerate(names):
            here = of_load(cells, load, horizon_s)
            lines.append(
                f'<line x1="{left}" x2="{left + _PLOT_WIDTH}" y1="{_y(row)}" y2="{_y(row)}" stroke="#e1e4e8"/>'
            )
            for name, side in SIDES.items():
                value = _mean(side, here)
                if value is not None:
                    title = f"{load}, {ahead(horizon_s)}: {name} {_percent(value)}"
                    lines.append(_mark(name, left + _PLOT_WIDTH * _AXIS.share(value), _y(row) + _LOWER[name], title))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _y(row: int) -> int:
    return _TOP + _ROW * row + _ROW // 2


def _mark(name: str, x: float, y: float, title: str = "") -> str:
    look = f'fill="{_COLOURS[name]}" stroke="white"'
    told = f"<title>{escape(title)}</title>" if title else ""
    if name == OURS:
        return f'<circle {look} cx="{x:.1f}" cy="{y:.1f}" r="{_SIZE}">{told}</circle>'
    if name == KNOWN:
        return f'<rect {look} x="{x - 2:.1f}" y="{y - 9:.1f}" width="4" height="18">{told}</rect>'
    corners = {
        LAST: ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
        MEAN: ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    }[name]
    path = " ".join(f"{x + _SIZE * right:.1f},{y + _SIZE * down:.1f}" for right, down in corners)
    return f'<polygon {look} points="{path}">{told}</polygon>'
