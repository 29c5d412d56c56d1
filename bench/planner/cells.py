"""What one planner did in one cell, and how cells are kept."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

import numpy as np

from bench.pages import render
from bench.planner.sources import in_own_simulator
from bench.rows import RESULTS, Row, keep, kept, row
from pointsman.planner.simulator.baselines.causal import TRIED
from pointsman.planner.simulator.types import Result

CELLS = RESULTS / "planner_cells.json.xz"
OURS, STATIC, ORACLE, CAUSAL = "Pointsman", "best static", "clairvoyant", "causal"
ABLATION = "Pointsman without"
COMMAND = "make bench-planner"
KNOWING = (STATIC, CAUSAL, ORACLE)
BELOW_CAUSAL = 0.03  # of requests: less is as good as what can be had without foresight
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
    return [Run(**run) for run in kept(CELLS) or ()]


def write_cells(runs: Sequence[Run]) -> None:
    """Keep them."""
    found = [{k: v for k, v in asdict(run).items() if v or k not in ("goal", "layouts", "shares")} for run in runs]
    keep(CELLS, found)


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


# --- rows ---


def judged(
    name: str, ours: Sequence[Run], peer: Sequence[Run] | None = None, *, of: str = "attainment", **judged: Any
) -> Row:
    """A row of the mean of one figure, beside a peer's. ``judged``: see ``row``."""
    mine, theirs = ([float(getattr(run, of)) for run in runs] for runs in (ours, peer or ()))
    unit = judged.pop("unit", "")
    return row(name, unit, mine, None if peer is None else theirs, of_means=True, command=COMMAND, **judged)


def reversals(name: str, runs: Sequence[Run]) -> Row:
    """A row of all reversals of some runs."""
    return row(f"{name}, in all", "", [float(sum(run.reversals for run in runs))], at_most=0, command=COMMAND)


def lost(name: str, ours: Sequence[Run], reference: Sequence[Run], at_most: float) -> Row:
    """A row of the share within objectives that ours has less than a reference."""
    less = [a.attainment - b.attainment for a, b in zip(reference, ours, strict=True)]
    return row(name, "", less, at_most=at_most, of_means=True, command=COMMAND)


def beside_causal(name: str, ours: Sequence[Run], reference: Sequence[Run]) -> Iterator[Row]:
    """Ours beside what is to be had without foresight, where that was measured."""
    if reference:
        least = round(mean(run.attainment for run in reference) - BELOW_CAUSAL, 4)
        who = f"the best of {TRIED} that know the present exactly, {gpu_hours(reference):.2f} GPU-hours"
        name = f"{name}: share within objectives, causal reference"
        yield judged(name, ours, reference, peer_name=who, at_least=least)


def gpu_hours(runs: Sequence[Run]) -> float:
    """Their mean."""
    return mean(run.gpu_hours for run in runs)


def table(found: dict[str, list[Run]], *, marks_best: bool = True) -> list[str]:
    """Markdown: a line a planner, those that know the future last, ablations after the whole."""
    unknowing = [who for who in found if not who.startswith(KNOWING)]
    whole = [who for who in unknowing if "without" not in who]
    best = max(whole, key=lambda who: mean(run.attainment for run in found[who]))
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
