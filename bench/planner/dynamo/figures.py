"""What the kept runs come to: cells side by side, and the rows with their targets.

A cell is one workload with one start of a worker; its figures are means over the seeds. Of Dynamo's configurations the
best of a cell is the one with the highest mean goodput there, so a peer that had to choose one configuration beforehand
would do worse.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean, mean
from typing import Any

from bench.planner.dynamo.workloads import CONFIGURATIONS, LOADS, RANDOM, SETUP
from bench.rows import RESULTS, Row, kept

COMMAND = "make bench-planner-dynamo"
RUNS = RESULTS / "planner_dynamo_runs.json.xz"
GOOD_ENOUGH = 0.95  # the goodput whose cheapest clairvoyant run is the measure of cost
STRICT = 0.99  # the attainment that Pointsman is asked for beside the default
EQUAL = 0.01  # goodput that differs by less is equal: runs are not reproducible to the bit
Run = dict[str, float]
"""``goodput``, the share of requests within both objectives; ``gpu_hours``; ``changes`` of the layout."""
Kept = dict[str, dict[str, Any]]
"""By workload/start/seed: runs by part and name."""


@dataclass(frozen=True)
class Figure:
    """Several runs of one side."""

    name: str
    runs: Sequence[Run]

    def of(self, what: str) -> list[float]:
        """One figure of each run."""
        return [run[what] for run in self.runs]

    @property
    def goodput(self) -> float:
        return mean(self.of("goodput"))

    @property
    def gpu_hours(self) -> float:
        return mean(self.of("gpu_hours"))


def best(figures: Iterable[Figure]) -> Figure:
    """The one with most goodput; of equals the cheapest."""
    return max(figures, key=lambda each: (each.goodput, -each.gpu_hours))


@dataclass(frozen=True)
class Cell:
    """One workload and start, with what is kept of each seed: who came to what."""

    workload: str
    start_s: int
    kept: Sequence[dict[str, Any]]

    @property
    def name(self) -> str:
        return f"{self.workload}, {self.start_s} s"

    @property
    def sources(self) -> set[str]:
        """Digests of the planner in ours' runs."""
        return {each["planner"] for each in self.kept}

    @property
    def ours(self) -> Figure:
        return Figure("Pointsman", [run for each in self.kept for run in each["ours"].values()])

    @property
    def strict(self) -> Figure:
        """Pointsman, asked for ``STRICT``."""
        return Figure("strict", [run for each in self.kept for run in each["strict"].values()])

    @property
    def dynamo(self) -> dict[str, Figure]:
        """By configuration."""
        return {name: Figure(name, [each["dynamo"][name] for each in self.kept]) for name in CONFIGURATIONS}

    @property
    def documented(self) -> Figure:
        """Dynamo's best configuration among those its documentation leads to."""
        return best(self.dynamo[name] for name in SETUP["documented"])

    @property
    def tuned(self) -> Figure:
        """Dynamo's best configuration of all."""
        return best(self.dynamo.values())

    @property
    def causal(self) -> Figure:
        """The best reaction of each seed."""
        reactions = [[Figure(name, [run]) for name, run in each["causal"].items()] for each in self.kept]
        return Figure("causal", [best(of_seed).runs[0] for of_seed in reactions])

    @property
    def clairvoyant(self) -> Figure:
        """The cheapest schedule of each seed that is good enough."""
        good = [[run for run in each["clairvoyant"].values() if run["goodput"] >= GOOD_ENOUGH] for each in self.kept]
        return Figure("clairvoyant", [min(runs, key=lambda run: run["gpu_hours"]) for runs in good])

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
    """The cells that were measured whole, ours last."""
    found = []
    for name, start_s in product(LOADS, SETUP["starts_s"]):
        runs = [kept.get(f"{name}/{start_s}/{seed}", {}) for seed in LOADS[name]["seeds"]]
        if all(each.get("ours") and each.get("strict") for each in runs):
            found.append(Cell(name, start_s, runs))
    return found


def random_cells(kept: Kept) -> list[Cell]:
    """The random loads that were measured whole, one a cell, by seed."""
    runs = sorted((each for each in kept.values() if each["workload"] == RANDOM), key=lambda each: int(each["seed"]))
    return [Cell(each["shape"], each["start_s"], [each]) for each in runs if each.get("ours") and each.get("strict")]


# --- rows ---


def rows(kept: Kept) -> Iterator[Row]:
    """Of the whole, then of each cell."""
    found = cells(kept)
    if found:
        yield from _of_all(found)
    for cell in found:
        yield from _of_cell(cell)


def _of_all(found: Sequence[Cell]) -> Iterator[Row]:
    number, best = f"{len(found)} cells", f"Dynamo, best of {len(CONFIGURATIONS)} configurations"
    goodput, cost = [cell.ours.goodput for cell in found], [cell.cost(cell.ours) for cell in found]
    runs = sum(len(cell.ours.runs) for cell in found)
    yield _row(
        f"mean goodput of {number}", "of requests", mean(goodput), goodput, runs, at_least=0.9,
        peer=mean(cell.tuned.goodput for cell in found), peer_name=f"{best} of each cell",
    )  # fmt: skip
    yield _row(
        f"GPU-hours of {number}, geometric mean", "x the clairvoyant's", geometric_mean(cost), cost, runs, at_most=1.13,
        peer=geometric_mean(cell.cost(cell.tuned) for cell in found), peer_name=f"{best} of each cell",
    )  # fmt: skip
    steady = [cell for cell in found if cell.workload != "burst"]
    better = sum(cell.beats_dynamo for cell in steady)
    name = f"cells of {len(steady)} (all but burst) with at least the goodput of Dynamo's best of {len(CONFIGURATIONS)}"
    yield _row(f"{name} for at most its GPU-hours", "cells", better, [better], runs, at_least=8)


def _of_cell(cell: Cell) -> Iterator[Row]:
    """Goodput against Dynamo's best; goodput and cost against what this kind of change leaves possible."""
    ours, causal, tuned, targets = cell.ours, cell.causal, cell.tuned, LOADS[cell.workload]["targets"]
    best = f"Dynamo, best of {len(CONFIGURATIONS)}: {tuned.name}"
    reactive = "a reactive schedule that knows this moment's demand"

    def goodput(name: str, least: float, peer: float | None = None, peer_name: str | None = None) -> Row:
        each, name = ours.of("goodput"), f"{cell.name}: {name}"
        return _row(name, "of requests", mean(each), each, len(each), at_least=least, peer=peer, peer_name=peer_name)

    def cost(name: str, unit: str, of: float, most: float, peer: float, peer_name: str) -> Row:
        each, name = [hours / of for hours in ours.of("gpu_hours")], f"{cell.name}: {name}"
        return _row(name, unit, mean(each), each, len(each), at_most=most, peer=peer / of, peer_name=peer_name)

    yield goodput("goodput", tuned.goodput - EQUAL, tuned.goodput, f"{best}; less {EQUAL:g} is equal")
    if less := targets.get("below_causal"):
        yield goodput("goodput beside causal", causal.goodput - less, causal.goodput, reactive)
    else:
        yield goodput("goodput, bound", targets["goodput"][cell.start_s])
    if most := targets.get("cost"):
        yield cost("cost", "x the clairvoyant's", cell.clairvoyant.gpu_hours, most, tuned.gpu_hours, best)
    else:
        most = targets["cost_of_causal"] * causal.gpu_hours
        yield cost("cost beside causal", "GPU-hours", 1.0, most, causal.gpu_hours, reactive)


def _row(
    name: str, unit: str, ours: float, each: Sequence[float], runs: int, *, at_least: float | None = None,
    at_most: float | None = None, peer: float | None = None, peer_name: str | None = None,
) -> Row:  # fmt: skip
    """A row whose value is a mean of means, unlike those of ``bench.rows.row``."""
    sign, bound = (">=", at_least) if at_least is not None else ("<=", at_most)
    assert bound is not None
    ours, bound = round(ours, 4), round(bound, 4)
    theirs, ratio = (None, None) if not peer else (round(peer, 4), round(ours / peer, 4))
    met = ours >= bound if at_least is not None else ours <= bound
    spread = round(min(each), 4), round(max(each), 4)
    return Row(name, unit, ours, theirs, peer_name, ratio, f"{sign} {bound:g}", met, runs, spread, COMMAND)
