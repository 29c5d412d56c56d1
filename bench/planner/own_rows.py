"""The rows of our own simulator: what was measured, beside whom, and the target; and why one is missed, if it is."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from bench.planner import constant_loads, fixed_gpus, robust, sight
from bench.planner.cells import ABLATION, CAUSAL, COMMAND, ORACLE, OURS, STATIC, STEADY, Run, by_planner
from bench.planner.scenarios import FAST, RETURNING, SCENARIOS, STEADY_LOADS
from bench.planner.speed import SPEEDS
from bench.rows import RESULTS, Row, read, row
from pointsman.planner.simulator.baselines import causal

RESULT: Final = "planner"
TARGET_ATTAINMENT: Final = {"step": 0.97, "mixshift": 0.99, "burst": 0.85}
BELOW_CAUSAL: Final = 0.03  # of requests: less is as good as what can be had without foresight
EQUAL_GPU_HOURS: Final = 1.02  # what still counts as not dearer than ours


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    """The design's table from the cells: means over the seeds."""
    yield from fixed_gpus.rows(
        {name: by_planner(runs, name) for name in fixed_gpus.LOADS},
        by_planner(runs, robust.ROBUST).get(robust.ONLY_CHANGING, []),
    )
    for name in SCENARIOS:
        found = by_planner(runs, name)
        if not {OURS, STATIC, ORACLE} <= found.keys():
            continue
        mine, fixed, oracle = found[OURS], found[STATIC], found[ORACLE]
        yield row(
            f"{name}: share of requests within objectives",
            "",
            [run.attainment for run in mine],
            peer=[run.attainment for run in fixed],
            peer_name=f"best static of the search, {_gpu_hours(fixed):.2f} GPU-hours",
            at_least=TARGET_ATTAINMENT.get(name, 0.95),
            of_means=True,
            command=COMMAND,
        )
        yield from _beside_causal(name, mine, found.get(CAUSAL, []))
        for peer, name_of_peer, least in ((oracle, ORACLE, 0.9), (fixed, "best static of the search", 0.99)):
            yield row(
                f"{name}: goodput per GPU-hour, {name_of_peer}",
                "requests",
                [run.goodput_per_gpu_hour for run in mine],
                peer=[run.goodput_per_gpu_hour for run in peer],
                peer_name=name_of_peer,
                of_ratio=True,
                of_means=True,
                at_least=least,
                command=COMMAND,
            )
        rival, values = _best_rival(found)
        if rival is not None:
            yield row(
                f"{name}: share within objectives, best causal planner that is not dearer",
                "",
                [run.attainment for run in mine],
                peer=values,
                peer_name=rival,
                of_ratio=True,
                of_means=True,
                at_least=1.0,
                command=COMMAND,
            )
        yield from _ablated(name, found)
    for name in FAST:
        found = by_planner(runs, name)
        if OURS in found:
            target = TARGET_ATTAINMENT[name.split()[0]]
            shares = [run.attainment for run in found[OURS]]
            yield row(
                f"{name}: share of requests within objectives",
                "",
                shares,
                at_least=target,
                of_means=True,
                command=COMMAND,
            )
            yield from _beside_causal(name, found[OURS], found.get(CAUSAL, []))
    for name in RETURNING:
        found = by_planner(runs, name)
        if {OURS, CAUSAL} <= found.keys():
            yield from _beside_causal(name, found[OURS], found[CAUSAL])
            yield from _ablated(name, found)
    yield from robust.rows(by_planner(runs, robust.ROBUST), _beside_causal)
    yield from sight.rows(by_planner(runs, sight.SIGHT) | by_planner(runs, sight.SIGHT_LARGE))
    yield from constant_loads.rows(runs)
    steady = by_planner(runs, STEADY).get(OURS)
    if steady is not None:
        halves = f"{len(steady) * len(STEADY_LOADS)} half hours of {len(STEADY_LOADS)} constant loads"
        moves = float(sum(run.reversals for run in steady))
        yield row(f"{halves}: reversals within twice the lead, in all", "", [moves], at_most=0, command=COMMAND)
        most = float(max(run.switches for run in steady))
        yield row("constant loads: most switches in 10 minutes", "", [most], at_most=6, command=COMMAND)


def _ablated(name: str, found: dict[str, list[Run]]) -> Iterator[Row]:
    """Ours beside ours without each part, in the seeds that this ran in."""
    for planner, theirs in found.items():
        if planner.startswith(ABLATION):
            seeds = {run.seed for run in theirs}
            yield row(
                f"{name}: share within objectives, ablation",
                "",
                [run.attainment for run in found[OURS] if run.seed in seeds],
                peer=[run.attainment for run in theirs],
                peer_name=f"{planner}, {_gpu_hours(theirs):.2f} GPU-hours",
                of_means=True,
                of_ratio=True,
                at_least=1.0,
                command=COMMAND,
            )


def _beside_causal(name: str, mine: Sequence[Run], reference: Sequence[Run]) -> Iterator[Row]:
    """Ours beside what is to be had without foresight, where that was measured."""
    if reference:
        shares = [run.attainment for run in reference]
        who = f"the best of {causal.TRIED} that know the present exactly"
        yield row(
            f"{name}: share within objectives, causal reference",
            "",
            [run.attainment for run in mine],
            peer=shares,
            peer_name=f"{who}, {_gpu_hours(reference):.2f} GPU-hours",
            at_least=round(statistics.mean(shares) - BELOW_CAUSAL, 4),
            of_means=True,
            command=COMMAND,
        )


def _best_rival(found: dict[str, list[Run]]) -> tuple[str | None, list[float]]:
    """Of the causal planners whose mean GPU-hours are ours at most, the one that serves most requests well."""
    limit = EQUAL_GPU_HOURS * _gpu_hours(found[OURS])
    rivals = {
        name: theirs
        for name, theirs in found.items()
        if name not in (OURS, STATIC, ORACLE, CAUSAL, "static")
        and not name.startswith(ABLATION)
        and _gpu_hours(theirs) <= limit
    }
    if not rivals:
        return None, []
    best = max(rivals, key=lambda name: statistics.mean(run.attainment for run in rivals[name]))
    return f"{best}, {_gpu_hours(rivals[best]):.2f} GPU-hours", [run.attainment for run in rivals[best]]


def _gpu_hours(runs: Sequence[Run]) -> float:
    return statistics.mean(run.gpu_hours for run in runs)


def kept_speed_rows() -> Iterator[Row]:
    """As they were last measured."""
    path = RESULTS / f"{RESULT}.json"
    return (each for each in (read(path) if path.exists() else ()) if each.name.startswith(SPEEDS))
