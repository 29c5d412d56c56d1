"""What one planner did on one load with one seed, and how such runs are kept."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from bench.planner.random_loads import within
from bench.planner.sources import in_own_simulator
from bench.rows import RESULTS, keep, kept
from pointsman.planner.simulator.types import Result

CELLS: Final = RESULTS / "planner_cells.json.xz"
OURS, STATIC, ORACLE, CAUSAL = "Pointsman", "best static", "clairvoyant", "causal"
ALL_GPUS: Final = "all GPUs"
ABLATION: Final = "Pointsman without"
ARROW, NO_SWITCH = "Arrow-like", f"{ABLATION} role switch"
PICTURED: Final = (OURS, NO_SWITCH, ARROW, STATIC)  # on six fixed GPUs
KNOWING: Final = (STATIC, CAUSAL, ORACLE)
SHARE_S: Final = 30.0  # of a picture: requests within objectives are counted over so many seconds of arrivals


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
    sources: str = ""  # digest of what ran, of ours; "": of the others, or not known
    goal: float | None = None  # the policy's attainment, where it differs from run to run
    layouts: Sequence[tuple[float, int, int]] = ()  # where a picture shows them: since when, workers of either role
    shares: Sequence[float | None] = ()  # beside it: within objectives, of each half minute of arrivals


Found = dict[str, list[Run]]
"""The runs of one load, by planner, in the order of seeds."""


def run_of(
    scenario: str, seed: int, planner: str, result: Result, note: str, judged_from_s: float, *, pictured: bool
) -> Run:
    """The figures of a simulation."""
    return Run(
        scenario=scenario,
        seed=seed,
        planner=planner,
        attainment=round(within(result, judged_from_s), 4),
        gpu_hours=round(result.gpu_hours, 4),
        goodput_per_gpu_hour=round(result.goodput_per_gpu_hour, 1),
        ttft_p99_s=round(float(np.nanquantile(result.ttft_s, 0.99)), 3),
        tpot_p99_ms=round(float(np.nanquantile(result.tpot_s, 0.99)) * 1000, 2),
        switches=result.switches,
        reversals=result.reversals(),
        peak_gpus=result.peak_gpus,
        note=note,
        sources=in_own_simulator() if planner.startswith(OURS) else "",
        layouts=_layouts(result) if pictured else (),
        shares=_shares(result) if pictured else (),
    )


def _layouts(result: Result) -> list[tuple[float, int, int]]:
    """When other workers serve than before: seconds, prefill and decode workers."""
    kept = itertools.groupby(result.timeline, lambda point: (point.prefill_active, point.decode_active))
    starts = [(next(points).at_s, *layout) for layout, points in kept]
    return [(0.0, *starts[0][1:]), *starts[1:]]


def _shares(result: Result) -> list[float | None]:
    """Of each ``SHARE_S`` of arrivals, within objectives; None where none arrived."""
    met, slot = result.met, (result.arrival_s // SHARE_S).astype(int)
    slots = [met[slot == number] for number in range(int(slot.max()) + 1)]
    return [float(f"{here.mean():.3g}") if len(here) else None for here in slots]


def read_cells() -> list[Run]:
    """All that were kept; none if there is no file."""
    return [Run(**run) for run in kept(CELLS) or ()]


def write_cells(runs: Iterable[Run]) -> None:
    """Keep them."""
    keep(CELLS, [{k: v for k, v in asdict(run).items() if v or k not in ("goal", "layouts", "shares")} for run in runs])


def by_planner(runs: Sequence[Run], scenario: str) -> Found:
    """The runs of one load, of the seeds that all planners but ablations have."""
    here = sorted((run for run in runs if run.scenario == scenario), key=lambda run: run.seed)
    seeds = {run.seed for run in here}
    for planner in {run.planner for run in here if not run.planner.startswith(ABLATION)}:
        seeds &= {run.seed for run in here if run.planner == planner}
    found: Found = {}
    for run in here:
        if run.seed in seeds:
            found.setdefault(run.planner, []).append(run)
    return found
