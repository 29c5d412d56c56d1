"""What one planner did in one cell, and how cells are kept."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from bench.pages import render
from bench.planner.sources import in_own_simulator
from bench.rows import RESULTS
from pointsman.planner.simulator.types import Result

CELLS = RESULTS / "planner_cells.json"
OURS, STATIC, ORACLE, CAUSAL = "Pointsman", "best static", "clairvoyant", "causal"
ABLATION = "Pointsman without"
COMMAND = "make bench-planner"
KNOWING = (STATIC, CAUSAL, ORACLE)
STEADY = "steady"  # the load nothing should be moved for


@dataclass(frozen=True)
class Run:
    """One planner on one load with one seed."""

    scenario: str
    seed: int
    planner: str
    attainment: float
    gpu_hours: float
    goodput_per_gpu_hour: float
    ttft_p99_s: float
    tpot_p99_ms: float
    switches: int
    reversals: int
    peak_gpus: int
    note: str = ""
    learned_s: float | None = (
        None  # until what was believed wrongly is within a tenth of the truth, where that is asked
    )
    sources: str = ""  # digest of what ran, of ours; "": of the others, or not known
    goal: float | None = None  # the policy's attainment, where it differs from run to run
    layouts: str = ""  # over time, where a picture shows them: "0 4P2D, 155 3P2D", seconds and the workers that serve
    shares: str = ""  # beside it: within objectives, of each half minute of arrivals


Measurement = tuple[str, Callable[[], Run]]
"""Whose run it is, and how to get it."""


def run_of(scenario: str, seed: int, planner: str, result: Result, note: str = "") -> Run:
    """The figures of a simulation."""
    return Run(
        scenario=scenario,
        seed=seed,
        planner=planner,
        attainment=round(result.attainment, 4),
        gpu_hours=round(result.gpu_hours, 4),
        goodput_per_gpu_hour=round(result.goodput_per_gpu_hour, 1),
        ttft_p99_s=round(float(np.nanquantile(result.ttft_s, 0.99)), 3),
        tpot_p99_ms=round(float(np.nanquantile(result.tpot_s, 0.99)) * 1000, 2),
        switches=result.switches,
        reversals=result.reversals(),
        peak_gpus=result.peak_gpus,
        note=note,
        sources=in_own_simulator() if result.planner.startswith(OURS) else "",
    )


def read_cells() -> list[Run]:
    """All that were kept; none if there is no file."""
    return [Run(**run) for run in json.loads(CELLS.read_text())] if CELLS.exists() else []


def write_cells(runs: Sequence[Run]) -> None:
    """Keep them."""
    kept = [{k: v for k, v in asdict(run).items() if v or k not in ("goal", "layouts", "shares")} for run in runs]
    CELLS.write_text(json.dumps(kept, indent=1) + "\n")


def by_planner(runs: Sequence[Run], scenario: str) -> dict[str, list[Run]]:
    """The runs of one load, by planner, in the order of seeds: of the seeds that all planners but ablations have."""
    here = sorted((run for run in runs if run.scenario == scenario), key=lambda run: run.seed)
    whole = {run.planner for run in here if not run.planner.startswith(ABLATION)}
    seeds = {run.seed for run in here}
    for planner in whole:
        seeds &= {run.seed for run in here if run.planner == planner}
    found: dict[str, list[Run]] = {}
    for run in here:
        if run.seed in seeds:
            found.setdefault(run.planner, []).append(run)
    return found


def table(found: dict[str, list[Run]], *, marks_best: bool = True) -> list[str]:
    """Markdown: a line a planner, those that know the future last, ablations after the whole."""
    unknowing = [who for who in found if not who.startswith(KNOWING)]
    whole = [who for who in unknowing if "without" not in who]
    best = max(whole, key=lambda who: sum(run.attainment for run in found[who]) / len(found[who]))
    knowing = [who for name in KNOWING for who in found if who.startswith(name)]
    planners = [
        (
            who,
            sorted({run.note for run in runs if run.note}),
            marks_best and who == best and len(unknowing) > 1,
            runs,
            [run.learned_s for run in runs if run.learned_s is not None],
        )
        for who in [*unknowing, *knowing]
        for runs in [found[who]]
    ]
    learned = any(seconds for *_, seconds in planners)
    return render("planners.md", planners=planners, learned=learned).splitlines()
