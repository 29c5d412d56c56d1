"""Local or remote by an estimate for each prompt, beside the shipped threshold and queue: ``make bench-per-prompt``.

The planner, the router, scaling and switching are as shipped; only where a prompt is computed is decided otherwise
(``bench.planner.placing``). Each load and seed is the same for all rules. Six to seven minutes of a core; the runs are
written to ``bench/results/per_prompt_runs.json``, and the rows made of them to ``bench/results/per_prompt.json``.

    python -m bench.planner.per_prompt --only mixshift --seeds 21,22     # printed only, nothing is written
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

import numpy as np

from bench.planner.per_prompt_results import (
    IF_LATE,
    KEPT,
    RESULT,
    SHIPPED,
    SHORTEST,
    SPARED,
    PlacedRun,
    made_with,
    rows,
    write_runs,
)
from bench.planner.placing import Rule, simulate_with
from bench.planner.scenarios import CHAT, RETURNING, SCENARIOS, Scenario, Synthetic
from bench.rows import write
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.replay.requests import Arrived, trace_of
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import PrefillPlace, Result, Trace

SEEDS: Final = (11, 12, 13)
RULES: Final = (
    Rule(SHORTEST),
    Rule(KEPT, 1.0),
    Rule(SPARED, 0.8),
    Rule(IF_LATE, 0.8, if_late=True),
)


def documents(seed: int) -> Trace:
    """Short prompts all the time, and beside them long ones that come in waves."""
    shapes = (
        "steady:rate=10,prompt_tokens=500,output_tokens=250,duration_s=1200",
        "onoff:low=0.4,high=3,on_s=60,off_s=90,prompt_tokens=8000,output_tokens=250,duration_s=1200",
    )
    traces = [generate(named_shape(shape), seed) for shape in shapes]
    columns = [(t.arrival_s.tolist(), t.prompt_tokens.tolist(), t.output_tokens.tolist()) for t in traces]
    return trace_of("documents", (Arrived(*each) for of_one in columns for each in zip(*of_one, strict=True)))


MIXED: Final = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "all lengths",
            "4 to 14 requests/s and back, prompts of 2500 tokens in the mean: half shorter than 970, a tenth longer "
            "than 6900",
            Synthetic("step:low=4,high=14,prompt_tokens=2500,length_cv=1.5"),
            "a100_sxm",
            CHAT,
            (2, 2),
        ),
        Scenario(
            "documents",
            "10 requests/s of 500+250, and beside them 0.4, in waves 3, of 8000+250",
            documents,
            "a100_sxm",
            CHAT,
            (3, 3),
        ),
    )
}
LOADS: Final = {**SCENARIOS, **RETURNING, **MIXED}
NEAR_ITS_EDGE: Final = ("step", "mixshift")
"""Loads that show what becomes of streams where nothing of the TPOT objective is left."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all and write the rows; or some, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="loads, separated by commas; nothing is written")
    parser.add_argument("--seeds", help="others than those of the rows, separated by commas; nothing is written")
    asked = parser.parse_args(arguments)
    loads = asked.only.split(",") if asked.only else [*LOADS]
    if unknown := sorted({*loads} - {*LOADS}):
        parser.error(f"--only: there is no {', '.join(unknown)}; known: {', '.join(LOADS)}")
    seeds = [int(seed) for seed in asked.seeds.split(",")] if asked.seeds else SEEDS
    runs = [run for load, seed in product(loads, seeds) for run in measured(LOADS[load], seed)]
    if asked.only or asked.seeds:
        return 0
    order = [SHIPPED, *(rule.name for rule in RULES)]
    runs.sort(key=lambda run: (loads.index(run.load), order.index(run.rule), run.seed))
    write_runs(runs)
    print(f"wrote {write(RESULT, [*rows(runs)])}")
    return 0


def measured(scenario: Scenario, seed: int) -> Iterator[PlacedRun]:
    """All rules on one load, the shipped one first."""
    trace, simulation, policy = scenario.trace(seed), scenario.simulation(seed), scenario.policy()

    def run_of(rule: str, result: Result, errors: Sequence[float] = ()) -> PlacedRun:
        computed = result.prefilled[result.prefilled != int(PrefillPlace.NOWHERE)]
        return PlacedRun(
            load=scenario.name,
            seed=seed,
            rule=rule,
            attainment=round(result.attainment, 4),
            gpu_hours=round(result.gpu_hours, 4),
            ttft_p50_s=round(float(np.nanquantile(result.ttft_s, 0.5)), 3),
            ttft_p90_s=round(float(np.nanquantile(result.ttft_s, 0.9)), 3),
            remote_share=round(float((computed == int(PrefillPlace.REMOTE)).mean()), 4),
            estimate_error=round(float(np.median(np.abs(errors))), 4) if errors else None,
            sources=made_with(),
        )

    def shown(run: PlacedRun, began_s: float) -> PlacedRun:
        print(f"{time.process_time() - began_s:5.1f} s {run}", flush=True)
        return run

    began_s = time.process_time()
    yield shown(run_of(SHIPPED, simulate(trace, simulation, policy, ours())), began_s)
    for rule in RULES:
        if rule.name != KEPT or scenario.name in NEAR_ITS_EDGE:
            began_s = time.process_time()
            result, errors = simulate_with(trace, simulation, policy, ours(), rule)
            yield shown(run_of(rule.name, result, errors), began_s)


if __name__ == "__main__":
    sys.exit(main())
