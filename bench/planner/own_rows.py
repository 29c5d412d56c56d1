"""The rows of our own simulator: what was measured, beside whom, and the target."""

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Final

from bench.planner import constant_loads, fixed_gpus, robust, sight
from bench.planner.cells import (
    ABLATION,
    CAUSAL,
    COMMAND,
    ORACLE,
    OURS,
    STATIC,
    STEADY,
    Run,
    beside_causal,
    by_planner,
    gpu_hours,
    judged,
    reversals,
)  # fmt: skip
from bench.planner.scenarios import FAST, RETURNING, SCENARIOS, STEADY_LOADS
from bench.planner.speed import SPEEDS
from bench.rows import RESULTS, Row, read, row

RESULT: Final = "planner"
TARGET_ATTAINMENT: Final = {"step": 0.97, "mixshift": 0.99, "burst": 0.85}
EQUAL_GPU_HOURS: Final = 1.02  # what still counts as not dearer than ours
SEARCH: Final = "best static of the search"


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    """The design's table from the cells: means over the seeds."""
    wrong = by_planner(runs, robust.ROBUST)
    fixed = {name: by_planner(runs, name) for name in fixed_gpus.LOADS}
    yield from fixed_gpus.rows(fixed, wrong.get(robust.ONLY_CHANGING, []))
    for name in SCENARIOS:
        found = by_planner(runs, name)
        if {OURS, STATIC, ORACLE} <= found.keys():
            yield from _of_load(name, found)
    for name in FAST:
        found = by_planner(runs, name)
        if OURS in found:
            target = TARGET_ATTAINMENT[name.split()[0]]
            yield judged(f"{name}: share of requests within objectives", found[OURS], at_least=target)
            yield from beside_causal(name, found[OURS], found.get(CAUSAL, []))
    for name in RETURNING:
        found = by_planner(runs, name)
        if {OURS, CAUSAL} <= found.keys():
            yield from beside_causal(name, found[OURS], found[CAUSAL])
            yield from _ablated(name, found)
    yield from robust.rows(wrong)
    yield from sight.rows(by_planner(runs, sight.SIGHT) | by_planner(runs, sight.SIGHT_LARGE))
    yield from constant_loads.rows(runs)
    steady = by_planner(runs, STEADY).get(OURS)
    if steady is not None:
        halves = f"{len(steady) * len(STEADY_LOADS)} half hours of {len(STEADY_LOADS)} constant loads"
        yield reversals(f"{halves}: reversals within twice the lead", steady)
        most = float(max(run.switches for run in steady))
        yield row("constant loads: most switches in 10 minutes", "", [most], at_most=6, command=COMMAND)


def _of_load(name: str, found: dict[str, list[Run]]) -> Iterator[Row]:
    mine, fixed = found[OURS], found[STATIC]
    yield judged(
        f"{name}: share of requests within objectives", mine, fixed,
        peer_name=f"{SEARCH}, {gpu_hours(fixed):.2f} GPU-hours", at_least=TARGET_ATTAINMENT.get(name, 0.95),
    )  # fmt: skip
    yield from beside_causal(name, mine, found.get(CAUSAL, []))
    for peer, who, least in ((found[ORACLE], ORACLE, 0.9), (fixed, SEARCH, 0.99)):
        yield judged(
            f"{name}: goodput per GPU-hour, {who}", mine, peer, of="goodput_per_gpu_hour", unit="requests",
            peer_name=who, of_ratio=True, at_least=least,
        )  # fmt: skip
    if rival := _best_rival(found):
        yield judged(
            f"{name}: share within objectives, best causal planner that is not dearer", mine, found[rival],
            peer_name=f"{rival}, {gpu_hours(found[rival]):.2f} GPU-hours", of_ratio=True, at_least=1.0,
        )  # fmt: skip
    yield from _ablated(name, found)


def _ablated(name: str, found: dict[str, list[Run]]) -> Iterator[Row]:
    """Ours beside ours without each part, in the seeds that this ran in."""
    for planner, theirs in found.items():
        if planner.startswith(ABLATION):
            seeds = {run.seed for run in theirs}
            who, mine = f"{planner}, {gpu_hours(theirs):.2f} GPU-hours", [r for r in found[OURS] if r.seed in seeds]
            name_of_row = f"{name}: share within objectives, ablation"
            yield judged(name_of_row, mine, theirs, peer_name=who, of_ratio=True, at_least=1.0)


def _best_rival(found: dict[str, list[Run]]) -> str | None:
    """Of the causal planners whose mean GPU-hours are ours at most, the one that serves most requests well."""
    limit = EQUAL_GPU_HOURS * gpu_hours(found[OURS])
    rivals = [
        name
        for name, theirs in found.items()
        if name not in (OURS, STATIC, ORACLE, CAUSAL, "static")
        and not name.startswith(ABLATION)
        and gpu_hours(theirs) <= limit
    ]
    return max(rivals, key=lambda name: mean(run.attainment for run in found[name]), default=None)


def kept_speed_rows() -> Iterator[Row]:
    """As they were last measured."""
    path = RESULTS / f"{RESULT}.json"
    return (each for each in (read(path) if path.exists() else ()) if each.name.startswith(SPEEDS))
