"""Our planner beside all others in our own simulator: ``make bench-planner``.

All planners of a load and seed, ablations of ours among them, see the same trace, noise and starts. Runs are written to
``bench/results/planner_cells.json.xz`` as they are done, and the rows made of them to ``bench/results/planner.json``.
"""

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

from bench.planner.evaluation_page import write_page
from bench.planner.evaluation_rows import COMMAND, RESULT, kept_speed_rows, rows
from bench.planner.loads import LOADS, Load
from bench.planner.random_loads import best_layout, drawn
from bench.planner.runs import (
    ABLATION,
    ALL_GPUS,
    ARROW,
    CAUSAL,
    ORACLE,
    OURS,
    PICTURED,
    STATIC,
    Run,
    read_cells,
    run_of,
    write_cells,
)
from bench.planner.speed import speed_rows
from bench.rows import options, write
from pointsman.planner.core.state import State
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Load as Arriving
from pointsman.planner.core.workload.request_lengths import Lengths
from pointsman.planner.simulator.baselines import PLANNERS, best_static, causal, clairvoyant
from pointsman.planner.simulator.baselines.layouts import ALL_REMOTE
from pointsman.planner.simulator.baselines.pointsman import without
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import FIRST_ROUTING, Result

MAKERS: Final = {make().name: make for make in PLANNERS.values()}
DYNAMO: Final = "Dynamo-like"
REMEMBERED_RATE: Final = 3.0  # requests a second of what is remembered from before a pause


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is asked for, and write the rows of all there are."""
    asked = options(
        COMMAND, __doc__, argv,
        only=(("*",), "loads that are measured, with * for any text; 'speed' for speed"),
        seeds=(("own",), "instead of each load's own"),
        resume=(False, "keep the runs that were measured before"),
        ours=(False, "run only ours again, beside the others' earlier runs"),
        jobs=(1, "processes that measure side by side"),
    )  # fmt: skip
    names = [name for name in (*LOADS, "speed") if any(fnmatchcase(name, each) for each in asked.only)]
    if not names:
        sys.exit(f"--only: there is no {', '.join(asked.only)}; known: speed, {', '.join(LOADS)}")
    done = [run for run in read_cells() if run.scenario in LOADS and run.planner in LOADS[run.scenario].planners]
    if len(names) > len(LOADS) and not (asked.resume or asked.ours):
        done = []
    kept = {_key(run) for run in done if asked.resume or (asked.ours and not run.planner.startswith(OURS))}
    with ProcessPoolExecutor(asked.jobs) as processes:
        measured = [
            processes.submit(measure, load, int(seed), planners)
            for load in (LOADS[name] for name in names if name in LOADS)
            for seed in (load.seeds if asked.seeds == ("own",) else asked.seeds)
            if (planners := [who for who in load.planners if (load.name, int(seed), who) not in kept])
        ]
        for ended in as_completed(measured):
            new = {_key(run): run for run in ended.result()}
            done = [*(run for run in done if _key(run) not in new), *new.values()]
            write_cells(sorted(done, key=_place))
    done.sort(key=_place)
    write(RESULT, [*rows(done), *(speed_rows() if "speed" in names else kept_speed_rows())])
    print(f"wrote {write_page(done)}")
    return 0


def _key(run: Run) -> tuple[str, int, str]:
    return run.scenario, run.seed, run.planner


def _place(run: Run) -> tuple[int, int, int]:
    return [*LOADS].index(run.scenario), run.seed, LOADS[run.scenario].planners.index(run.planner)


def measure(load: Load, seed: int, planners: Sequence[str]) -> list[Run]:
    """What these made of it."""
    cell, found = Cell(load, seed), []
    for who in planners:
        began = time.perf_counter()
        found.append(cell.run(who))
        print(f"{time.perf_counter() - began:6.1f} s {found[-1]}", flush=True)
    return found


class Cell:
    """One load with one seed, and who serves it how."""

    def __init__(self, load: Load, seed: int) -> None:
        self.load, self.seed = load, seed
        self.at = drawn(seed)[0] if load.drawn else load.service(seed)

    def run(self, who: str) -> Run:
        """Of one planner, by the name that it has in tables."""
        result, note = self._result(who)
        pictured = not self.load.scaling and who in PICTURED
        run = run_of(self.load.name, self.seed, who, result, note, self.load.judged_from_s, pictured=pictured)
        if self.load.drawn and who.startswith(OURS):
            last, goal = result.timeline[-1], self.at.policy.objectives.attainment
            ended = f"{self.at.note}, at the end {last.prefill_active}P{last.decode_active}D"
            return replace(run, note=ended, goal=goal)
        return run

    def _result(self, who: str) -> tuple[Result, str]:
        at, begins, policy = self.at, self.at.simulation, self.at.policy
        if who == STATIC:
            return self._best_fixed
        if who == ALL_GPUS:
            return drawn(self.seed)[1:]
        if who == CAUSAL:
            return causal.search(at.trace, begins, policy), ""
        if who == ORACLE:
            return bound((clairvoyant.search(at.trace, begins, policy), ""), self._best_fixed)
        if who == ARROW and self.load.scaling:
            # It cannot scale: it gets the GPUs of the best fixed layout.
            first = self._best_fixed[0].timeline[0]
            begins = replace(begins, prefill_workers=first.prefill_active, decode_workers=first.decode_active)
        if who == DYNAMO:
            # It has no role switch: it removes a worker of one role and starts one of the other on the freed GPU.
            policy = replace(policy, scale_out=True, scale_in=True)
        if who.startswith(ABLATION):
            planner = without(who.removeprefix(f"{ABLATION} "))
        elif who == OURS and not self.load.table:
            planner = without("a table")
        else:
            planner = MAKERS[who]()
        if self.load.remembered_tokens is not None:
            state = remembering(*self.load.remembered_tokens, window_s=policy.interval_s)
            planner = replace(planner, first_state=lambda: state)
        return simulate(at.trace, begins, policy, planner), ""

    @cached_property
    def _best_fixed(self) -> tuple[Result, str]:
        """Of six GPUs the split that keeps most; else the cheapest layout that keeps enough."""
        at, gpus = self.at, self.load.max_gpus
        if not self.load.scaling:
            splits = [(prefill, gpus - prefill) for prefill in range(1, gpus)]
            return best_layout(at, splits, routings=(ALL_REMOTE, FIRST_ROUTING))
        found = best_static.search(at.trace, at.simulation, at.policy, at.policy.objectives.attainment)
        return found.result, f"{found.prefill}P{found.decode}D"


def bound(schedule: tuple[Result, str], fixed: tuple[Result, str], attainment: float = 0.95) -> tuple[Result, str]:
    """Who knows the trace also knows when no schedule is better than the best fixed layout."""
    enough = [each for each in (schedule, fixed) if each[0].attainment >= attainment]
    by_share = max(schedule, fixed, key=lambda each: each[0].attainment)
    best = min(enough, key=lambda each: each[0].gpu_hours) if enough else by_share
    return best if best is schedule else (fixed[0], f"no schedule is better than {fixed[1]}")


def remembering(prompt_tokens: float, output_tokens: float, window_s: float) -> State:
    """What a planner remembers of lengths from before a pause; of rates nothing."""
    lengths = Lengths()
    measured = REMEMBERED_RATE * window_s
    load = Arriving(REMEMBERED_RATE, prompt_tokens, output_tokens=output_tokens, measured=measured)
    for number in range(-int(SHIPPED.length_window_s / window_s), 0):
        lengths = lengths.observe(load, window_s, number * window_s)
    return State(lengths=lengths)


if __name__ == "__main__":
    sys.exit(main())
