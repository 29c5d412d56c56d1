"""Dynamo's part of ``docs/reports/planner-evaluation.md``: a table over all cells, one a cell, and a picture of all."""

import statistics
from collections.abc import Callable, Sequence

from bench.pages import render
from bench.planner.dynamo import random_page
from bench.planner.dynamo.configurations import CONFIGURATIONS, DOCUMENTED
from bench.planner.dynamo.figures import EQUAL, GOOD_ENOUGH, PULSES, WORKLOADS, Cell, Figure
from bench.planner.sources import in_dynosim

PICTURE = "planner-beside-dynamo.svg"
LOADS = {
    "step": "3 to 14 requests/s of 4000+250 and back, unannounced",
    "ramp": "3 to 18 requests/s over 10 minutes, back in 5",
    "burst": "1.6 requests/s, 16 for one minute",
    "mixshift": "7.5 requests/s of 4000+100, then 15 of 500+600",
    "azure_conv": "Azure's conversations of 2023, two copies shifted by 10 minutes",
    "moon_conv": "Mooncake's long conversations with shared prefixes, an hour",
    "pulses": "1.5 requests/s, 12 for half a minute every two and a half, half an hour",
    "pulses_hour": "the same for an hour",
    "pulses_uneven": "1.5 requests/s, 12 for 15 to 40 s after pauses of one to three minutes, an hour",
}
SIDES: dict[str, Callable[[Cell], Figure | None]] = {
    "Pointsman": lambda cell: cell.ours,
    "Dynamo, documented": lambda cell: cell.documented,
    "Dynamo, best of all": lambda cell: cell.tuned,
    "causal": lambda cell: cell.causal,
    "fixed": lambda cell: cell.fixed,
    "clairvoyant": lambda cell: cell.clairvoyant,
}


def section(cells: Sequence[Cell]) -> str:
    """Its Markdown; nothing if nothing is measured."""
    whole = [cell for cell in cells if cell.workload in WORKLOADS]
    if not whole:
        return ""
    sides = {name: [(cell, figure) for cell in whole if (figure := side(cell))] for name, side in SIDES.items()}
    older = [cell.name for cell in cells if cell.sources != {in_dynosim()}]
    return render(
        "dynamo.md",
        good_enough=GOOD_ENOUGH,
        equal=EQUAL,
        documented=len(DOCUMENTED),
        tuned=len(CONFIGURATIONS) - len(DOCUMENTED),
        older="all cells" if older and len(older) == len(cells) else ", ".join(older),
        picture=PICTURE,
        means=[(name, _over_cells(found)) for name, found in sides.items() if len(found) == len(whole)],
        cells=[(cell, cell.beats_dynamo) for cell in whole],
        sides=SIDES,
        loads=LOADS,
        value=_value,
        configurations=[
            (name, name in DOCUMENTED, _over_cells([(cell, cell.dynamo[name]) for cell in whole]))
            for name in CONFIGURATIONS
        ],
        pulses=[cell for cell in cells if cell.workload in PULSES],
        plain=_plain,
        random_traces=random_page.section(),
    )


def _plain(figure: Figure | None) -> str:
    """Goodput and GPU-hours."""
    if figure is None:
        return "not run"
    hours = _ranged(figure.gpu_hours, figure.gpu_hours_range, ".2f")
    return f"{_ranged(figure.goodput, figure.goodput_range, '.3f')} / {hours}"


def _ranged(mean: float, over: tuple[float, float], form: str) -> str:
    middle, least, most = (f"{value:{form}}" for value in (mean, *over))
    return middle if least == most else f"{middle} ({least}–{most})"


def _over_cells(figures: Sequence[tuple[Cell, Figure]]) -> str:
    goodput = [figure.goodput for _, figure in figures]
    cost = statistics.geometric_mean(cell.cost(figure) for cell, figure in figures)
    return f"{statistics.mean(goodput):.3f} | {min(goodput):.3f} | {cost:.2f}×"


def _value(cell: Cell, figure: Figure | None) -> str:
    """Goodput and cost."""
    if figure is None:
        return "not run"
    goodput = _ranged(figure.goodput, figure.goodput_range, ".3f")
    least, most = (hours / cell.clairvoyant.gpu_hours for hours in figure.gpu_hours_range)
    return f"{goodput} / {_ranged(cell.cost(figure), (least, most), '.2f')}×"


def picture(cells: Sequence[Cell]) -> str:
    """One small plot a cell: goodput over cost."""
    whole = [cell for cell in cells if cell.workload in WORKLOADS]
    return render("dynamo.svg", cells=whole, documented=DOCUMENTED, value=_value)
