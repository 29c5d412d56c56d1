"""Pointsman's planner beside Dynamo's, in NVIDIA's simulator: ``make bench-planner-dynamo``.

Measured is what is published (``published.py``): workloads, starts of 45 and 120 s, the seeds of each, what an operator
believes wrongly. Runs are kept in ``bench/results/planner_dynamo_runs.json.xz`` and not made again, except
ours when the planner has changed, so the whole, hours of computing, can be made in pieces of ``--seconds``.

    ARGS="--parts ours"    # only our planner, wrong beliefs and pulses too, beside the others' kept runs
"""

import argparse
import json
import logging
import math
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

from bench.planner.dynamo import figures, policy, published, references  # noqa: E402
from bench.planner.dynamo.configurations import CONFIGURATIONS  # noqa: E402
from bench.planner.dynamo.dynamo_planner import run_dynamo  # noqa: E402
from bench.planner.dynamo.dynosim import Hold, Schedule, calibration, known_before, run  # noqa: E402
from bench.planner.dynamo.figures import COMMAND, RUNS, STARTS_S, WORKLOADS, WRONG, Kept, Run  # noqa: E402
from bench.planner.dynamo.workloads import Workload  # noqa: E402
from bench.planner.dynamo.workloads import make as make_workloads  # noqa: E402
from bench.planner.sources import in_dynosim as planner_digest  # noqa: E402
from bench.rows import RESULTS, finish, keep  # noqa: E402

DATA = RESULTS.parent / "data"
RESULT = "planner_dynamo"
Cell = dict[str, Any]


class OutOfTime(Exception):
    """The piece is over; what was measured is kept."""


class Measurements:
    """The kept runs, by workload file and start; written after each."""

    def __init__(self, seconds: float, again: Iterable[str]) -> None:
        self.cells: Kept = figures.kept_runs()
        self._until = time.monotonic() + seconds
        for cell in self.cells.values():
            _forget(cell, again)

    def known_by_another_seed(self, workload: Workload, seed: int, start_s: int) -> bool:
        """Whether this very trace, which no seed changes, is measured as one of another seed."""
        return any(
            cell["trace"] == workload.digest and cell["start_s"] == start_s and cell["seed"] != seed
            for cell in self.cells.values()
        )

    def cell(self, workload: Workload, seed: int, start_s: int) -> Cell:
        """Of one workload, seed and start."""
        key = f"{workload.name}/{start_s}/{seed}"
        if self.cells.get(key, {"trace": workload.digest})["trace"] != workload.digest:
            del self.cells[key]  # of another trace by the same name
        new: Cell = {"trace": workload.digest, "workload": workload.name, "start_s": start_s, "seed": seed}
        cell = self.cells.setdefault(key, new | {"complete": []})
        if cell.get("planner") != planner_digest():
            _forget(cell, published.OURS)
        cell["planner"] = planner_digest()
        return cell

    def measured(self, cell: Cell, part: str, name: str, measure: Callable[[], Run]) -> Run:
        """The kept result, or ``measure()`` kept. Raises OutOfTime."""
        kept = cell.get(part, {})
        if name not in kept:
            if time.monotonic() > self._until:
                raise OutOfTime
            kept[name] = measure()
            cell[part] = kept
            self._write()
            figures_of = f"goodput {kept[name]['goodput']} GPU-hours {kept[name]['gpu_hours']}"
            print(f"{cell['workload']}/{cell['start_s']}/{cell['seed']} {part} {name}: {figures_of}", flush=True)
        return dict(kept[name])

    def completed(self, cell: Cell, part: str) -> None:
        """Nothing is missing of that part."""
        if part in cell and part not in cell["complete"]:
            cell["complete"] = sorted([*cell["complete"], part])
            self._write()

    def _write(self) -> None:
        keep(RUNS, self.cells, in_order=True)


def _forget(cell: Cell, parts: Iterable[str]) -> None:
    for part in parts:
        cell.pop(part, None)
        cell["complete"] = [each for each in cell["complete"] if each != part]


def main(argv: list[str]) -> int:
    """Measure what is missing, write the rows of what is there; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with azure-llm-2023/ and mooncake/")
    parser.add_argument("--seeds", type=_numbers, default=(), help="instead of the published ones of each workload")
    known = (*WORKLOADS, *figures.PULSES)
    parser.add_argument("--only", type=_words, default=(), help=f"workloads, of {', '.join(known)}")
    parser.add_argument("--starts", type=_numbers, default=STARTS_S, help="seconds a worker takes to start")
    parts = ", ".join((*published.OURS, *published.PEERS))
    parser.add_argument("--parts", type=_words, default=(), help=f"of {parts}; ours: with what is believed wrongly")
    parser.add_argument("--again", type=_words, default=(), help="parts whose kept runs are forgotten")
    parser.add_argument("--runs", type=int, help="of ours per cell, instead of the published number")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long; the next call goes on")
    parser.add_argument("--tuning", default="{}", help="JSON: fields of the policy to vary; runs are printed, not kept")
    options = parser.parse_args(argv)
    tuning = json.loads(options.tuning)
    for name, asked, there in (("only", options.only, known), ("parts", options.parts, parts.split(", "))):
        if unknown := sorted({*asked} - {*there}):
            parser.error(f"--{name}: there is no {', '.join(unknown)}; known: {', '.join(there)}")
    measurements = Measurements(options.seconds, options.again)
    traces = cache(lambda seed: make_workloads(Path(__file__).with_name("traces") / str(seed), seed, options.data))
    try:
        for piece in published.wanted(options.only, options.seeds, options.parts, options.runs):
            for seed in piece.seeds:
                for name in piece.workloads:
                    _measure(measurements, traces(seed)[name], seed, piece, options.starts, tuning)
    except OutOfTime:
        print(f"not all was measured within {options.seconds:.0f} s: call again")
    if tuning:
        return 0
    return finish(RESULT, [*figures.rows(figures.kept_runs())])  # not of a cell that time ended in before anything ran


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _measure(
    measurements: Measurements,
    workload: Workload,
    seed: int,
    piece: published.Piece,
    starts_s: Iterable[int],
    tuning: dict[str, Any],
) -> None:
    """Every wanted run of one workload and seed."""
    samples = cache(lambda: calibration(workload))
    demand = cache(lambda: references.demand_of(workload))

    def ours(start_s: int, wrong: str | None = None) -> Run:
        known = known_before(workload, start_s, samples())
        return asdict(run(workload, policy.make(_wrong(known, wrong) if wrong else known, **tuning), start_s))

    def dynamo(start_s: int, name: str) -> Run:
        return asdict(run_dynamo(workload, start_s, name, samples()))

    def fixed(prefill: int, decode: int) -> Run:
        return asdict(run(workload, Hold(), STARTS_S[0], (prefill, decode)))

    def clairvoyant(start_s: int, plan: Callable[[], references.Plan]) -> Run:
        schedule = plan()
        return asdict(run(workload, Schedule(schedule), start_s, schedule[0][1:]))

    def causal(start_s: int, plan: Callable[[], references.Plan]) -> Run:
        return asdict(run(workload, Schedule(plan()), start_s))

    for start_s in starts_s:
        if tuning:
            print(f"{workload.name}/{start_s}/{seed} {tuning}: {ours(start_s)}", flush=True)
            continue
        if measurements.known_by_another_seed(workload, seed, start_s):
            continue
        cell = measurements.cell(workload, seed, start_s)
        ahead = references.clairvoyant(workload, start_s, demand)
        reactions = references.causal(workload, start_s, demand)
        wanted: dict[str, dict[str, Callable[[], Run]]] = {
            "ours": {f"run {n + 1}": partial(ours, start_s) for n in range(piece.runs)},
            "wrong": {name: partial(ours, start_s, name) for name in WRONG},
            "dynamo": {name: partial(dynamo, start_s, name) for name in CONFIGURATIONS},
            "clairvoyant": {how: partial(clairvoyant, start_s, plan) for how, plan in ahead.items()},
            "causal": {how: partial(causal, start_s, plan) for how, plan in reactions.items()},
        }
        for part in piece.parts:
            if part in published.PEERS and part in cell["complete"]:
                continue  # what is tried of them may have grown since: it is measured by --again
            if part == "fixed" and start_s == STARTS_S[0]:
                search = references.search_every if workload.name in figures.PULSES else references.search_fixed
                search(partial(_goodput, measurements, cell, fixed))
            for name, measure in wanted.get(part, {}).items():
                measurements.measured(cell, part, name, measure)
            measurements.completed(cell, part)


def _goodput(measurements: Measurements, cell: Cell, fixed: Callable[[int, int], Run], p: int, d: int) -> float:
    return float(measurements.measured(cell, "fixed", f"{p}P{d}D", partial(fixed, p, d))["goodput"])


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
