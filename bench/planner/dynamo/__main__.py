"""Pointsman's planner beside Dynamo's, in NVIDIA's simulator: ``make bench-planner-dynamo``.

Six workloads, starts of 45 and 120 s, several seeds of everything that is random. Runs that were made are kept in
``bench/results/planner_dynamo_runs.json`` and not made again, except ours when the planner has changed, so the whole,
more than an hour of computing, can be made in pieces of ``--seconds``.
"""

import argparse
import hashlib
import json
import logging
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")  # of the peer's statistics packages, thousands of lines
logging.disable(logging.WARNING)

from bench.planner.dynamo import references  # noqa: E402
from bench.planner.dynamo.dynamo_planner import CONFIGURATIONS, DOCUMENTED, run_dynamo  # noqa: E402
from bench.planner.dynamo.dynosim import calibration, known_before, run  # noqa: E402
from bench.planner.dynamo.policy import make  # noqa: E402
from bench.planner.dynamo.workloads import Workload  # noqa: E402
from bench.planner.dynamo.workloads import make as make_workloads  # noqa: E402
from bench.rows import RESULTS, Row, write  # noqa: E402

from pointsman.planner import core  # noqa: E402

COMMAND = "make bench-planner-dynamo"
DATA = RESULTS.parent / "data"
RUNS = RESULTS / "planner_dynamo_runs.json"
CELLS = ("step", "ramp", "burst", "mixshift", "azure_conv", "moon_conv")
STARTS_S = (45, 120)
PARTS = ("ours", "dynamo", "fixed", "clairvoyant", "causal")  # and "wrong": what the operator believes
WRONG = ("told start-up x2.5", "told start-up x0.4", "calibration x1.3", "calibration x0.7")
PEER = "Dynamo, best documented configuration of each cell"
GOOD_ENOUGH = 0.95  # the goodput whose cheapest clairvoyant run is the measure of cost
Cell = dict[str, Any]
Run = dict[str, Any]


class OutOfTime(Exception):
    """The piece is over; what was measured is kept."""


class Measurements:
    """The kept runs, by workload file and start; written after each."""

    def __init__(self, seconds: float, again: Iterable[str]) -> None:
        self.cells: dict[str, Cell] = json.loads(RUNS.read_text()) if RUNS.exists() else {}
        self._until = time.monotonic() + seconds
        for cell in self.cells.values():
            changed = ("ours", "wrong") if cell.get("planner") != planner_digest() else ()
            for part in (*again, *changed):
                cell.pop(part, None)

    def cell(self, workload: Workload, seed: int, start_s: int) -> Cell:
        """Of one workload, seed and start; a real trace that no seed changes has seed 0."""
        key = f"{workload.name}/{start_s}/{seed}"
        known = {"trace": workload.digest, "workload": workload.name, "start_s": start_s, "seed": seed}
        if self.cells.get(key, known)["trace"] != workload.digest:
            del self.cells[key]  # of another trace by the same name
        cell = self.cells.setdefault(key, known)
        cell["planner"] = planner_digest()
        return cell

    def measured(self, cell: Cell, part: str, name: str, measure: Callable[[], Any]) -> Any:
        """The kept result, or ``measure()`` kept. Raises OutOfTime."""
        kept = cell.setdefault(part, {})
        if name not in kept:
            if time.monotonic() > self._until:
                raise OutOfTime
            kept[name] = measure()
            RESULTS.mkdir(exist_ok=True)
            RUNS.write_text(json.dumps(self.cells, indent=1, sort_keys=True) + "\n")
            shown = kept[name] if isinstance(kept[name], dict) else {}
            words = " ".join(f"{key} {shown[key]}" for key in ("goodput", "gpu_hours") if key in shown)
            print(f"{cell['workload']}/{cell['start_s']}/{cell['seed']} {part} {name}: {words}", flush=True)
        return kept[name]


@cache
def planner_digest() -> str:
    """Of the planner's sources: a run of another planner is not one of this one."""
    folder = Path(core.__file__).parent
    sources = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(sources).hexdigest()[:16]


def main(argv: list[str]) -> int:
    """Measure what is missing, write the rows of what is there; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with azure-llm-2023/ and mooncake/")
    parser.add_argument("--seeds", default="1,2,3", help="default: 1,2,3")
    parser.add_argument("--only", default=",".join(CELLS), help="workloads")
    parser.add_argument("--starts", default="45,120", help="seconds a worker takes to start")
    parser.add_argument("--parts", default=",".join(PARTS), help="what is measured")
    parser.add_argument("--again", default="", help="parts whose kept runs are forgotten")
    parser.add_argument("--runs", type=int, default=3, help="of ours per cell: its results vary by some thousandths")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long; the next call goes on")
    parser.add_argument("--tuning", default="{}", help="JSON: constants to vary; runs are printed, not kept")
    options = parser.parse_args(argv)
    tuning = json.loads(options.tuning)
    measurements = Measurements(options.seconds, options.again.split(",") if options.again else ())
    try:
        for seed in map(int, options.seeds.split(",")):
            workloads = make_workloads(Path(__file__).with_name("traces") / str(seed), seed, options.data)
            for name in options.only.split(","):
                if name in workloads:
                    _measure(measurements, workloads[name], seed, options, tuning)
    except OutOfTime:
        print(f"not all was measured within {options.seconds:.0f} s: call again")
    if tuning:
        return 0
    rows = [*figures(measurements.cells)]
    path = write("planner_dynamo", rows)
    for each in rows:
        print(f"{'met   ' if each.met else 'MISSED'} {each.name}: {each.ours:g} {each.unit} (target {each.target})")
    print(f"wrote {path}")
    return 0 if all(each.met for each in rows) else 1


def _measure(
    measurements: Measurements, workload: Workload, seed: int, options: argparse.Namespace, tuning: dict[str, Any]
) -> None:
    """Every wanted run of one workload and seed."""
    parts = options.parts.split(",")
    samples = cache(lambda: calibration(workload))
    demand = cache(lambda: references.demand_of(workload))

    def ours(start_s: int, wrong: str | None = None) -> Run:
        known = known_before(workload, start_s, samples())
        return asdict(run(workload, make(_wrong(known, wrong) if wrong else known, **tuning), start_s))

    def dynamo(start_s: int, name: str) -> Run:
        return asdict(run_dynamo(workload, start_s, name, samples()))

    for start_s in map(int, options.starts.split(",")):
        if tuning:
            print(f"{workload.name}/{start_s}/{seed} {tuning}: {ours(start_s)}", flush=True)
            continue
        cell = measurements.cell(workload, seed, start_s)
        wanted: dict[str, dict[str, Callable[[], Any]]] = {
            "ours": {f"run {n + 1}": partial(ours, start_s) for n in range(options.runs)},
            "wrong": {name: partial(ours, start_s, name) for name in WRONG},
            "dynamo": {name: partial(dynamo, start_s, name) for name in CONFIGURATIONS},
            "fixed": {"layouts": partial(references.fixed_layouts, workload)} if start_s == STARTS_S[0] else {},
            "clairvoyant": {"schedules": partial(_clairvoyant, workload, start_s, demand)},
            "causal": {"best": partial(_causal, workload, start_s, demand)},
        }
        for part in parts:
            for name, measure in wanted[part].items():
                measurements.measured(cell, part, name, measure)


def _clairvoyant(workload: Workload, start_s: int, demand: Callable[[], references.Demand]) -> list[Run]:
    return references.clairvoyant(workload, start_s, demand())


def _causal(workload: Workload, start_s: int, demand: Callable[[], references.Demand]) -> Run:
    return references.causal(workload, start_s, demand())


def _wrong(known: dict[str, Any], name: str) -> dict[str, Any]:
    """What the operator believes, wrong by a factor."""
    what, factor = name.rsplit(" x", 1)
    if what == "told start-up":
        return known | {"startup_s": known["startup_s"] * float(factor)}
    scaled = {
        role: [dict(sample, wall_time=sample["wall_time"] * float(factor)) for sample in known[role]]
        for role in ("prefill_samples", "decode_samples")
    }
    return known | scaled


# --- figures ---


def figures(cells: dict[str, Cell]) -> Iterable[Row]:
    """The rows: the means over all cells with everything measured, then each cell."""
    measured = [c for _, c in sorted(cells.items()) if {"ours", "clairvoyant"} <= c.keys() and c["workload"] in CELLS]
    least = {id(c): cheapest["gpu_hours"] for c in measured if (cheapest := _cheapest(cells, c)) is not None}
    whole = [c for c in measured if id(c) in least]
    if not whole:
        return
    seeds = len({c["seed"] for c in whole})
    goodput = [_mean(c["ours"].values(), "goodput") for c in whole]
    cost = [_mean(c["ours"].values(), "gpu_hours") / least[id(c)] for c in whole]
    beside = [(c, _best(c["dynamo"], DOCUMENTED)) for c in whole if "dynamo" in c]
    peer_goodput = statistics.mean(b["goodput"] for _, b in beside) if beside else None
    peer_cost = _geometric(b["gpu_hours"] / least[id(c)] for c, b in beside) if beside else None
    yield _row(
        "mean goodput of all cells", "of requests", statistics.mean(goodput), peer_goodput, PEER, ">= 0.9",
        statistics.mean(goodput) >= 0.9, seeds, (min(goodput), max(goodput)),
    )  # fmt: skip
    yield _row(
        "GPU-hours of all cells", "x the clairvoyant's", _geometric(cost), peer_cost, PEER, "<= 1.13",
        _geometric(cost) <= 1.13, seeds, (min(cost), max(cost)),
    )  # fmt: skip
    for name in CELLS:
        for start_s in STARTS_S:
            group = [c for c in whole if c["workload"] == name and c["start_s"] == start_s]
            if group:
                yield from _of_cell(f"{name}, {start_s} s", group)


def _of_cell(name: str, group: list[Cell]) -> Iterable[Row]:
    """Goodput and GPU-hours of one workload and start, means over seeds, beside Dynamo's best of all configurations."""
    for key, unit, up in (("goodput", "of requests", True), ("gpu_hours", "GPU-hours", False)):
        ours = [_mean(c["ours"].values(), key) for c in group]
        beside = [_best(c["dynamo"], CONFIGURATIONS)[key] for c in group if "dynamo" in c]
        peer = statistics.mean(beside) if beside else None
        mean = statistics.mean(ours)
        met = peer is None or (mean >= peer - 0.01 if up else mean <= peer)
        yield _row(
            f"{name}: {'goodput' if up else 'cost'}", unit, mean, peer, f"Dynamo, best of {len(CONFIGURATIONS)}",
            "ratio >= 0.99" if up else "ratio <= 1", met, len(group), (min(ours), max(ours)),
        )  # fmt: skip


def _row(
    name: str, unit: str, ours: float, peer: float | None, peer_name: str, target: str, met: bool, runs: int,
    spread: tuple[float, float],
) -> Row:  # fmt: skip
    return Row(
        name=name, unit=unit, ours=round(ours, 4), peer=None if peer is None else round(peer, 4),
        peer_name=None if peer is None else peer_name, ratio=None if not peer else round(ours / peer, 4),
        target=target, met=met, runs=runs, spread=(round(spread[0], 4), round(spread[1], 4)), command=COMMAND,
    )  # fmt: skip


def _cheapest(cells: dict[str, Cell], cell: Cell) -> dict[str, Any] | None:
    """The clairvoyant's cheapest run that is good enough: a schedule, or a layout that never changes."""
    runs = list(cell["clairvoyant"].get("schedules", ()))
    beside = cells.get(f"{cell['workload']}/{STARTS_S[0]}/{cell['seed']}", {})
    runs += beside.get("fixed", {}).get("layouts", {}).values()
    return references.cheapest(runs, GOOD_ENOUGH)


def _best(runs: dict[str, dict[str, Any]], names: Iterable[str]) -> dict[str, Any]:
    return max((runs[name] for name in names if name in runs), key=lambda each: (each["goodput"], -each["gpu_hours"]))


def _mean(runs: Iterable[dict[str, Any]], key: str) -> float:
    return statistics.mean(float(each[key]) for each in runs)


def _geometric(ratios: Iterable[float]) -> float:
    return statistics.geometric_mean(ratios)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
