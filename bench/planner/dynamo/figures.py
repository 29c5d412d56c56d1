"""What the kept runs come to: cells side by side, and the rows with their targets.

A cell is one workload with one start of a worker; its figures are means over the seeds in which all planners ran. Of
Dynamo's configurations the best of a cell is the one with the highest mean goodput there, so a peer that had to choose
one configuration beforehand would do worse.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.planner.dynamo.configurations import CONFIGURATIONS, DOCUMENTED
from bench.rows import RESULTS, Row, kept

COMMAND = "make bench-planner-dynamo"
RUNS = RESULTS / "planner_dynamo_runs.json.xz"
WORKLOADS = ("step", "ramp", "burst", "mixshift", "azure_conv", "moon_conv")
PULSES = ("pulses", "pulses_hour", "pulses_uneven")  # on/off bursts shorter than a start: judged by themselves
STARTS_S = (45, 120)
WRONG = ("told start-up x2.5", "told start-up x0.4", "calibration x1.3", "calibration x0.7")
GOOD_ENOUGH = 0.95  # the goodput whose cheapest clairvoyant run is the measure of cost
EQUAL = 0.01  # goodput that differs by less is equal: runs are not reproducible to the bit
DEVELOPMENT = (0, 1, 2, 3)  # seeds that were looked at while the planner was made: they count where no other ran
UNANNOUNCED = ("step", "mixshift")
RECORDED = ("azure_conv", "moon_conv")
RAMP_GOODPUT = {45: 0.99, 120: 0.96}
MOST_COST = {"step": 1.15, "mixshift": 1.15, "ramp": 1.2, "azure_conv": 1.12, "moon_conv": 1.12}
# By workload/start/seed: runs by part and name; ``complete`` names the parts of which nothing is missing.
Kept = dict[str, dict[str, Any]]
Run = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """``goodput``: share of requests within both objectives. The smallest and largest are of ours' single runs."""

    name: str
    goodput: float
    gpu_hours: float
    goodput_range: tuple[float, float]
    gpu_hours_range: tuple[float, float]
    runs: int


@dataclass(frozen=True)
class Cell:
    """One workload and start: who came to what."""

    workload: str
    start_s: int
    seeds: tuple[int, ...]
    ours: Figure
    dynamo: dict[str, Figure]  # by configuration; of pulses in the seeds where it ran, if in any …
    dynamo_seeds: tuple[int, ...]
    beside_dynamo: Figure  # … and ours in these
    fixed: Figure | None  # the cheapest layout with GOOD_ENOUGH
    clairvoyant: Figure  # the cheapest run with GOOD_ENOUGH, of schedules and fixed layouts
    causal: Figure | None  # None for pulses
    equal: Figure | None  # … for which this is the cheapest layout with ours' goodput, every one having been tried
    sources: frozenset[str]  # digests of the planner in ours' runs

    @property
    def name(self) -> str:
        return f"{self.workload}, {self.start_s} s"

    @property
    def documented(self) -> Figure:
        """Dynamo's best configuration among those its documentation leads to."""
        return _best(each for name, each in self.dynamo.items() if name in DOCUMENTED)

    @property
    def tuned(self) -> Figure:
        """Dynamo's best configuration of all."""
        return _best(self.dynamo.values())

    @property
    def beats_dynamo(self) -> bool:
        """At least the goodput of Dynamo's best for at most its GPU-hours."""
        return self.ours.goodput >= self.tuned.goodput and self.ours.gpu_hours <= self.tuned.gpu_hours

    def cost(self, of: Figure) -> float:
        """GPU-hours relative to the clairvoyant's."""
        return of.gpu_hours / self.clairvoyant.gpu_hours


def kept_runs() -> Kept:
    """All that were kept; none if there is no file."""
    return dict(kept(RUNS) or {})


def cells(kept: Kept) -> list[Cell]:
    """The cells where everything ran in at least one seed, in the order of ``WORKLOADS``."""
    found = []
    for workload in (*WORKLOADS, *PULSES):
        for start_s in STARTS_S:
            cell = [each for each in kept.values() if (each["workload"], each["start_s"]) == (workload, start_s)]
            whole = [each for each in cell if _whole(kept, each)]
            whole = [each for each in whole if each["seed"] not in DEVELOPMENT] or whole
            if whole:
                found.append(_cell(kept, workload, start_s, sorted(whole, key=lambda each: int(each["seed"]))))
    return found


def _whole(kept: Kept, run: Run) -> bool:
    """Everything ran that is compared. Without fixed layouts the clairvoyant is the cheapest of its schedules."""
    if run["workload"] in PULSES:
        return "ours" in run["complete"] and _cheapest(_layouts(kept, run)) is not None
    return {"ours", "dynamo", "clairvoyant", "causal"} <= set(run["complete"]) and _clairvoyant(kept, run) is not None


def _cell(kept: Kept, workload: str, start_s: int, runs: Sequence[Run]) -> Cell:
    fixed = [layout for run in runs if (layout := _cheapest(_layouts(kept, run))) is not None]
    pulses = workload in PULSES
    ours = _ours(runs)
    beside = [run for run in runs if "dynamo" in run["complete"]]
    enough = min(ours.goodput - EQUAL, GOOD_ENOUGH)
    return Cell(
        workload,
        start_s,
        tuple(int(run["seed"]) for run in runs),
        ours=ours,
        dynamo={name: _figure(name, [run["dynamo"][name] for run in beside]) for name in CONFIGURATIONS if beside},
        dynamo_seeds=tuple(int(run["seed"]) for run in beside),
        beside_dynamo=_ours(beside) if beside else ours,
        fixed=_layout_figure(fixed) if fixed else None,
        clairvoyant=_figure("clairvoyant", [_known(_clairvoyant(kept, run)) for run in runs]),
        causal=None if pulses else _figure("causal", [_most(run["causal"].values()) for run in runs]),
        equal=_layout_figure([_known(_cheapest(_layouts(kept, run), enough)) for run in runs]) if pulses else None,
        sources=frozenset(run.get("planner", "") for run in runs),
    )


def _ours(runs: Sequence[Run]) -> Figure:
    return _figure("Pointsman", [each for run in runs for each in run["ours"].values()])


def _layout_figure(layouts: Sequence[Run]) -> Figure:
    return _figure(" or ".join(sorted({each["layout"] for each in layouts})), layouts)


def _clairvoyant(kept: Kept, run: Run) -> Run | None:
    """The cheapest that is good enough, of schedules made with the trace in hand and layouts that never change."""
    return _cheapest([*run.get("clairvoyant", {}).values(), *_layouts(kept, run)])


def _figure(name: str, runs: Sequence[Run]) -> Figure:
    goodput, hours = ([float(run[key]) for run in runs] for key in ("goodput", "gpu_hours"))
    means = statistics.mean(goodput), statistics.mean(hours)
    return Figure(name, *means, (min(goodput), max(goodput)), (min(hours), max(hours)), len(runs))


def _best(figures: Iterable[Figure]) -> Figure:
    return max(figures, key=lambda each: (each.goodput, -each.gpu_hours))


def _layouts(kept: Kept, run: Run) -> list[Run]:
    """Fixed layouts of the same trace; no start matters to what never changes, so they are kept with the first one."""
    beside = kept.get(f"{run['workload']}/{STARTS_S[0]}/{run['seed']}", {})
    return [each | {"layout": layout} for layout, each in beside.get("fixed", {}).items()]


def _cheapest(runs: Sequence[Run], goodput: float = GOOD_ENOUGH) -> Run | None:
    good = [each for each in runs if each["goodput"] >= goodput]
    return min(good, key=lambda each: float(each["gpu_hours"])) if good else None


def _most(runs: Iterable[Run]) -> Run:
    return max(runs, key=lambda each: (float(each["goodput"]), -float(each["gpu_hours"])))


def _known(run: Run | None) -> Run:
    assert run is not None  # _whole has looked
    return run


# --- rows ---


def rows(kept: Kept) -> Iterator[Row]:
    """Of the whole, then of each cell, then of what the operator may believe wrongly."""
    found = [cell for cell in cells(kept) if cell.workload in WORKLOADS]
    if found:
        yield from _of_all(found)
    for cell in found:
        yield from _of_cell(cell)
    for cell in cells(kept):
        if cell.workload in PULSES:
            yield from _of_pulses(cell)
    yield from _of_wrong_beliefs(kept)


def _of_all(found: Sequence[Cell]) -> Iterator[Row]:
    number = f"{len(found)} cells"
    sides: tuple[tuple[str, Callable[[Cell], Figure]], ...] = (
        ("Dynamo, best documented configuration of each cell", lambda cell: cell.documented),
        (f"Dynamo, best of {len(CONFIGURATIONS)} configurations of each cell", lambda cell: cell.tuned),
    )
    goodput = [cell.ours.goodput for cell in found]
    cost = [cell.cost(cell.ours) for cell in found]
    runs = sum(cell.ours.runs for cell in found)
    for peer_name, peer in sides:
        theirs = statistics.mean(peer(cell).goodput for cell in found)
        dear = statistics.geometric_mean(cell.cost(peer(cell)) for cell in found)
        ours = statistics.mean(goodput), (min(goodput), max(goodput)), runs
        yield _row(f"mean goodput of {number}", "of requests", *ours, at_least=0.9, peer=theirs, peer_name=peer_name)
        ours = statistics.geometric_mean(cost), (min(cost), max(cost)), runs
        name = f"GPU-hours of {number}, geometric mean"
        yield _row(name, "x the clairvoyant's", *ours, at_most=1.13, peer=dear, peer_name=peer_name)
    steady = [cell for cell in found if cell.workload != "burst"]
    better = sum(cell.beats_dynamo for cell in steady)
    name = (
        f"cells of {len(steady)} (all but burst) with at least the goodput of Dynamo's best of {len(CONFIGURATIONS)} "
        "for at most its GPU-hours"
    )
    yield _row(name, "cells", better, (better, better), runs, at_least=8)


def _of_cell(cell: Cell) -> Iterator[Row]:
    """Goodput against Dynamo's best; goodput and cost against what this kind of change leaves possible."""
    ours, causal, tuned = cell.ours, cell.causal, cell.tuned
    assert causal is not None  # only pulses have none
    best = f"Dynamo, best of {len(CONFIGURATIONS)}: {tuned.name}"
    yield _goodput(f"{cell.name}: goodput", ours, tuned.goodput - EQUAL, tuned, f"{best}; less {EQUAL:g} is equal")
    reactive = "a reactive schedule that knows this moment's demand"
    name = f"{cell.name}: goodput beside causal"
    if cell.workload == "burst":
        yield _goodput(name, ours, causal.goodput - 0.03, causal, reactive)
        yield _hours(f"{cell.name}: cost beside causal", ours, 1.2 * causal.gpu_hours, causal, reactive)
        return
    if cell.workload in UNANNOUNCED:
        yield _goodput(name, ours, causal.goodput - 0.015, causal, reactive)
    else:
        least = 0.98 if cell.workload in RECORDED else RAMP_GOODPUT[cell.start_s]
        yield _goodput(f"{cell.name}: goodput, bound", ours, least)
    few, many = (hours / cell.clairvoyant.gpu_hours for hours in ours.gpu_hours_range)
    yield _row(
        f"{cell.name}: cost", "x the clairvoyant's", cell.cost(ours), (few, many), ours.runs,
        at_most=MOST_COST[cell.workload], peer=cell.cost(tuned), peer_name=best,
    )  # fmt: skip


def _of_pulses(cell: Cell) -> Iterator[Row]:
    """Goodput beside Dynamo's best, and the cost beside the cheapest fixed layout that serves as well."""
    if cell.dynamo:
        tuned = cell.tuned
        best = f"Dynamo, best of {len(CONFIGURATIONS)}: {tuned.name}, {tuned.gpu_hours:.2f} GPU-hours"
        least, best = tuned.goodput - EQUAL, f"{best}; less {EQUAL:g} is equal"
        yield _goodput(f"{cell.name}: goodput", cell.beside_dynamo, least, tuned, best)
    equal = cell.equal
    assert equal is not None  # only others have none
    name = f"{cell.name}: cost at equal goodput ({cell.ours.goodput:.3f})"
    layout = f"cheapest fixed layout, {equal.name}, goodput {equal.goodput:.3f}"
    yield _hours(name, cell.ours, equal.gpu_hours, equal, layout)


def _of_wrong_beliefs(kept: Kept) -> Iterator[Row]:
    told = [run for run in kept.values() if "ours" in run and set(run.get("wrong", ())) >= set(WRONG)]
    for name in WRONG if told else ():
        lost = [_ours([run]).goodput - run["wrong"][name]["goodput"] for run in told]
        name = f"{name}: goodput lost, mean of {len(lost)} runs"
        yield _row(name, "of requests", statistics.mean(lost), (min(lost), max(lost)), len(lost), at_most=0.03)


def _goodput(name: str, ours: Figure, least: float, peer: Figure | None = None, peer_name: str | None = None) -> Row:
    theirs = None if peer is None else peer.goodput
    figures = ours.goodput, ours.goodput_range, ours.runs
    return _row(name, "of requests", *figures, at_least=least, peer=theirs, peer_name=peer_name)


def _hours(name: str, ours: Figure, most: float, peer: Figure, peer_name: str) -> Row:
    figures = ours.gpu_hours, ours.gpu_hours_range, ours.runs
    return _row(name, "GPU-hours", *figures, at_most=most, peer=peer.gpu_hours, peer_name=peer_name)


def _row(
    name: str, unit: str, ours: float, spread: tuple[float, float], runs: int, *, at_least: float | None = None,
    at_most: float | None = None, peer: float | None = None, peer_name: str | None = None,
) -> Row:  # fmt: skip
    """A row whose value is a mean of means, unlike those of ``bench.rows.row``."""
    sign, bound = (">=", at_least) if at_least is not None else ("<=", at_most)
    assert bound is not None
    ours, bound = round(ours, 4), round(bound, 4)
    theirs, ratio = (None, None) if not peer else (round(peer, 4), round(ours / peer, 4))
    met = ours >= bound if at_least is not None else ours <= bound
    ranged = round(spread[0], 4), round(spread[1], 4)
    return Row(name, unit, ours, theirs, peer_name, ratio, f"{sign} {bound:g}", met, runs, ranged, COMMAND)
