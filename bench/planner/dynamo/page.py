"""Dynamo's part of ``docs/reports/planner-evaluation.md``: all cells, one a cell, random loads, and a picture."""

from collections.abc import Sequence
from math import inf
from statistics import geometric_mean, mean

from bench.pages import render
from bench.planner.dynamo.figures import EQUAL, GOOD_ENOUGH, STRICT, Cell, Figure, best
from bench.planner.dynamo.workloads import CONFIGURATIONS, LOADS, SETUP
from bench.planner.sources import in_dynosim

from pointsman.planner.core.types import Objectives

PICTURE = "planner-beside-dynamo.svg"
DEARER = 1.02  # in times Pointsman's GPU-hours: more is dearer


def section(cells: Sequence[Cell], random: Sequence[Cell]) -> str:
    """Its Markdown; nothing if nothing is measured."""
    if not cells:
        return ""
    of_random = [[cell.dynamo[name] for cell in random] for name in CONFIGURATIONS]
    return render(
        "dynamo.md",
        good_enough=GOOD_ENOUGH,
        default=Objectives().attainment,
        strict=STRICT,
        equal=EQUAL,
        documented=SETUP["documented"],
        configurations={name: [cell.dynamo[name] for cell in cells] for name in CONFIGURATIONS},
        now={in_dynosim()},
        picture=PICTURE,
        cells=cells,
        loads=LOADS,
        value=_value,
        times=_times,
        traces=random,
        best_single=max(of_random, key=lambda figures: mean(each.goodput for each in figures)) if random else [],
    )


def _times(figures: Sequence[Figure], reference: Sequence[Figure]) -> float:
    """GPU-hours in times a reference's, the geometric mean."""
    return geometric_mean(a.gpu_hours / b.gpu_hours for a, b in zip(figures, reference, strict=True))


def _value(cell: Cell, figure: Figure) -> str:
    """Goodput and cost."""
    costs = [hours / cell.clairvoyant.gpu_hours for hours in figure.of("gpu_hours")]
    return f"{_ranged(figure.goodput, figure.of('goodput'), '.3f')} / {_ranged(cell.cost(figure), costs, '.2f')}×"


def _ranged(middle: float, of: Sequence[float], form: str) -> str:
    text, least, most = (f"{value:{form}}" for value in (middle, min(of), max(of)))
    return text if least == most else f"{text} ({least}–{most})"


def picture(cells: Sequence[Cell]) -> str:
    """One small plot a cell: goodput over cost."""
    return render("dynamo.svg", cells=cells, documented=SETUP["documented"], value=_value)


def dynamo_wins(cells: Sequence[Cell]) -> str:
    """On how many random loads a configuration of Dynamo's has more goodput, and its cost; nothing if there are none.

    More by any amount that three digits show, as on the rest of the page, and on how many of these by ``EQUAL``.
    """
    found = []
    for which, most in (("all, whatever they cost", inf), ("those for at most Pointsman's GPU-hours (2 %)", DEARER)):
        pairs = [
            (best(figures), cell.ours)
            for cell in cells
            if (figures := [each for each in cell.dynamo.values() if each.gpu_hours <= most * cell.ours.gpu_hours])
        ]
        more = sum(round(theirs.goodput, 3) > round(ours.goodput, 3) for theirs, ours in pairs)
        clearly = sum(theirs.goodput >= ours.goodput + EQUAL for theirs, ours in pairs)
        found.append((which, more, clearly, [*zip(*pairs, strict=True)]))
    return render("random-wins.md", traces=len(cells), configurations=len(CONFIGURATIONS), found=found, times=_times)
