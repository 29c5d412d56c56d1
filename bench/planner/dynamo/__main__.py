"""Pointsman's planner beside Dynamo's, in NVIDIA's simulator: ``make bench-planner-dynamo``.

Measured is what ``bench/data/dynamo.yaml`` lists: loads, starts of 45 and 120 s, the seeds of each, and random loads.
Runs are kept in ``bench/results/planner_dynamo_runs.json.xz`` and not made again, except ours when the planner has
changed, so the whole, hours of computing, can be made in pieces of ``--seconds``.

    ARGS="--parts strict ours"    # only our planner, beside the others' kept runs
"""

import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

warnings.filterwarnings("ignore")  # of the peer's statistics packages, thousands of lines
logging.disable(logging.WARNING)

from bench.planner.dynamo import references  # noqa: E402
from bench.planner.dynamo.dynamo_planner import run_dynamo  # noqa: E402
from bench.planner.dynamo.dynosim import Schedule, calibration, run  # noqa: E402
from bench.planner.dynamo.figures import COMMAND, RUNS, STRICT, Kept, Run, kept_runs, rows  # noqa: E402
from bench.planner.dynamo.policy import PointsmanPolicy  # noqa: E402
from bench.planner.dynamo.random_traces import random_trace  # noqa: E402
from bench.planner.dynamo.workloads import CONFIGURATIONS, LOADS, RANDOM, SETUP, Workload, workload  # noqa: E402
from bench.planner.sources import in_dynosim  # noqa: E402
from bench.rows import finish, keep, options  # noqa: E402

PARTS = ("dynamo", "clairvoyant", "causal", "strict", "ours")  # ours last: a cell that has it has the others


def main(argv: list[str]) -> int:
    """Measure what is missing, write the rows of what is there; 1 if a target was missed."""
    asked = options(
        COMMAND, __doc__, argv, only=((*LOADS, RANDOM), "loads"), parts=(PARTS, "whose runs"),
        seeds=(tuple(SETUP["random"]["seeds"]), "of random loads: the first, and the one after the last"),
        seconds=(math.inf, "after which no run is begun; the next call goes on"),
    )  # fmt: skip
    if unknown := {*asked.only} - {*LOADS, RANDOM} | {*asked.parts} - {*PARTS}:
        sys.exit(f"there is no {', '.join(unknown)}; loads: {', '.join((*LOADS, RANDOM))}; parts: {', '.join(PARTS)}")
    until, kept = time.monotonic() + asked.seconds, kept_runs()
    for at, start_s in _wanted(asked.only, range(*asked.seeds)):
        for cell, part, name, measure in _missing(kept, at, start_s, asked.parts):
            if time.monotonic() > until:
                sys.exit(f"not all was measured within {asked.seconds:.0f} s: call again")
            cell.setdefault(part, {})[name] = measure()
            keep(RUNS, kept, in_order=True)
            print(f"{at.name}/{start_s}/{at.seed} {part} {name}: {cell[part][name]}", flush=True)
    return finish("planner_dynamo", [*rows(kept)])


def _wanted(names: Sequence[str], random_seeds: Iterable[int]) -> Iterator[tuple[Workload, int]]:
    """Each with what a worker takes to start."""
    for name in names:
        if name == RANDOM:
            yield from filter(None, map(random_trace, random_seeds))
        else:
            yield from product((workload(name, seed) for seed in LOADS[name]["seeds"]), SETUP["starts_s"])


def _missing(
    kept: Kept, at: Workload, start_s: int, parts: Sequence[str]
) -> Iterator[tuple[dict[str, Any], str, str, Callable[[], Run]]]:
    """What is not kept of a cell: (the cell, the part, the name in it, its measurement)."""
    key, trace = f"{at.name}/{start_s}/{at.seed}", at.write()
    if kept.get(key, {}).get("trace") != trace:
        kept[key] = {"trace": trace, "workload": at.name, "start_s": start_s, "seed": at.seed}
        kept[key] |= {"shape": at.shape, "requests": len(at.requests)}
    cell = kept[key]
    if {"strict", "ours"} & {*parts} and cell.get("planner") != in_dynosim():
        cell |= {"planner": in_dynosim(), "strict": {}, "ours": {}}
    for part, runs in _runs(at, start_s).items():
        for name, measure in runs.items():
            if part in parts and name not in cell.get(part, {}):
                yield cell, part, name, measure


def _runs(at: Workload, start_s: int) -> dict[str, dict[str, Callable[[], Run]]]:
    """Every run of a cell, by part and name."""

    def ahead(grid: tuple[float, float], window: tuple[float, float]) -> Run:
        plan = references.clairvoyant(at, start_s, grid, window)
        return run(at, Schedule(plan), start_s, plan[0][1:])

    def reacting(hold_s: float, boost: float) -> Run:
        return run(at, Schedule(references.causal(at, start_s, hold_s, boost)), start_s)

    def ours(*attainment: float) -> Run:
        return run(at, PointsmanPolicy(at, start_s, calibration(at), *attainment), start_s)

    return {
        "dynamo": {name: partial(run_dynamo, at, start_s, name) for name in CONFIGURATIONS},
        "clairvoyant": {
            f"use {grid[0]}/{grid[1]}, {window[0]} s": partial(ahead, grid, window)
            for grid, window in product(references.GRID, at.smoothings)
        },
        "causal": {
            f"hold {hold_s} s, boost {boost}": partial(reacting, hold_s, boost)
            for hold_s, boost in product((start_s, 300, 1200), (1.0, 1.6))
        },
        "strict": {f"attainment {STRICT:g}": partial(ours, STRICT)},
        "ours": {f"run {number + 1}": ours for number in range(LOADS.get(at.name, {}).get("runs", 1))},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
