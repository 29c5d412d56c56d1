"""The rows of our own simulator: what was measured, beside whom, and the target."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import mean
from typing import Any, Final

from bench.planner.loads import GROUPS, Load
from bench.planner.runs import ABLATION, ALL_GPUS, CAUSAL, KNOWING, ORACLE, OURS, STATIC, Found, Run, by_planner
from bench.rows import RESULTS, Row, read, row
from pointsman.planner.simulator.baselines.causal import TRIED

RESULT: Final = "planner"
COMMAND: Final = "make bench-planner"
SPEEDS: Final = ("simulator, ", "decide(), ")  # how the names of the rows of speed begin
ENGINES, HOURS = GROUPS["constant loads on random engines"], GROUPS["constant hours"]
EQUAL_GPU_HOURS: Final = 1.02  # what still counts as not dearer than ours
BELOW_CAUSAL: Final = 0.03  # of requests: less is as good as what can be had without foresight
UNITS: Final = {"attainment": "", "gpu_hours": "h", "goodput_per_gpu_hour": "requests"}
SEARCH: Final = "best static of the search"


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Of the runs of each load: means over the seeds."""
    for loads in GROUPS.values():
        if loads is ENGINES:
            yield from _of_engines([run for run in runs if run.scenario in loads])
        elif loads is HOURS:
            yield from _of_hours([run for run in runs if run.scenario in loads])
        else:
            for load in loads.values():
                others = by_planner(runs, load.name)
                if mine := others.pop(OURS, None):
                    beside = by_planner(runs, load.beside).get(OURS) if load.beside else others.get(CAUSAL)
                    yield from _of_load(load, mine, beside, others)
                    yield from (_of_budget if load.scaling else _of_fixed)(load.name, mine, others)


def _of_load(load: Load, mine: Sequence[Run], beside: Sequence[Run] | None, others: Found) -> Iterator[Row]:
    """Ours beside its target, beside itself on the load ``beside``, and beside what is to be had without foresight."""
    share, as_ = f"{load.name}: share within objectives", load.beside_as
    if load.target is not None:
        name = f"{share} after 5 minutes" if load.judged_from_s else f"{load.name}: share of requests within objectives"
        fixed = others.get(STATIC) if load.scaling else None
        yield _judged(name, mine, fixed, f"{SEARCH}, {_hours(fixed)}" if fixed else None, at_least=load.target)
    if load.each_seed:
        kept = float(sum(run.attainment >= (load.target or 0.0) for run in mine))
        yield row(f"{load.name}: seeds that keep the goal", "", [kept], at_least=len(mine), command=COMMAND)
    if beside and load.most_lost is not None:
        lost = [a.attainment - b.attainment for a, b in _pairs(beside, mine)]
        name = f"{share} lost to {as_}" if as_ else f"{share} lost"
        yield row(name, "", lost, at_most=load.most_lost, of_means=True, command=COMMAND)
    if beside and load.least_of_share is not None:
        yield _ratio(share, mine, beside, as_, at_least=load.least_of_share)
    if beside and load.most_of_gpu_hours is not None:
        yield _ratio(f"{load.name}: GPU-hours", mine, beside, as_, of="gpu_hours", at_most=load.most_of_gpu_hours)
    if beside and load.least_of_gpu_hours is not None:
        yield _ratio(f"{load.name}: GPU-hours", mine, beside, as_, of="gpu_hours", at_least=load.least_of_gpu_hours)
    if load.most_of_static is not None and (fixed := others.pop(STATIC, None)):
        who = f"{SEARCH}, {', '.join(sorted({run.note for run in fixed}))}"
        yield _ratio(f"{load.name}: GPU-hours", mine, fixed, who, of="gpu_hours", at_most=load.most_of_static)
    if load.judged_from_s or load.each_seed:
        yield _reversals(f"{load.name}: reversals", mine)
    if (causal := others.get(CAUSAL)) and (load.beside or not load.most_lost):
        least = round(mean(run.attainment for run in causal) - BELOW_CAUSAL, 4)
        who = f"the best of {TRIED} that know the present exactly, {_hours(causal)}"
        yield _judged(f"{share}, causal reference", mine, causal, who, at_least=least)


def _of_fixed(name: str, mine: Sequence[Run], others: Found) -> Iterator[Row]:
    """Everybody has the same GPUs."""
    for who, theirs in others.items():
        kind = "ablation" if who.startswith(ABLATION) else "same GPUs"
        yield _ratio(f"{name}: share within objectives, {kind}", mine, theirs, who, at_least=1.0)


def _of_budget(name: str, mine: Sequence[Run], others: Found) -> Iterator[Row]:
    """Beside the bounds, the best rival, and ours without each part."""
    for who, peer, least in ((ORACLE, ORACLE, 0.9), (STATIC, SEARCH, 0.99)):
        if who in others:
            what = f"{name}: goodput per GPU-hour, {peer}"
            yield _ratio(what, mine, others[who], peer, of="goodput_per_gpu_hour", at_least=least)
    share, limit = f"{name}: share within objectives", EQUAL_GPU_HOURS * mean(run.gpu_hours for run in mine)
    whole = {who: theirs for who, theirs in others.items() if not who.startswith((ABLATION, *KNOWING, "static"))}
    rivals = [each for each in whole.items() if mean(run.gpu_hours for run in each[1]) <= limit]
    if rivals:
        who, theirs = max(rivals, key=lambda each: mean(run.attainment for run in each[1]))
        what = f"{share}, best causal planner that is not dearer"
        yield _ratio(what, mine, theirs, f"{who}, {_hours(theirs)}", at_least=1.0)
    for who, theirs in others.items():
        if who.startswith(ABLATION):
            yield _ratio(f"{share}, ablation", mine, theirs, f"{who}, {_hours(theirs)}", at_least=1.0)


def _of_engines(runs: Sequence[Run]) -> Iterator[Row]:
    """Each engine's share beside its goal, and how many keep it, with its table and without."""
    ample = {run.seed: run for run in runs if run.planner == ALL_GPUS}
    for who, as_ in ((OURS, ""), (f"{ABLATION} a table", ", no table")):
        if engines := [run for run in runs if run.planner == who and run.seed in ample]:
            what, after = f"constant loads on {len(engines)} random engines{as_}", "after 5 minutes"  # ``SETTLED_S``
            kept = float(sum(run.attainment >= (run.goal or 0.0) for run in engines))
            yield row(f"{what}: those that keep their goal {after}", "", [kept], at_least=len(engines), command=COMMAND)
            for run in engines if who == OURS else ():
                fixed, name = ample[run.seed], f"{run.scenario} {run.seed}: share within objectives {after}"
                yield _judged(name, [run], [fixed], f"fixed {fixed.note}", at_least=run.goal)
            yield _reversals(f"{what}: reversals", engines)
            if who != OURS:
                tables, hours = [run for run in runs if run.planner == OURS], f"{what}: GPU-hours"
                yield _ratio(hours, engines, tables, "with tables", of="gpu_hours", at_most=EQUAL_GPU_HOURS)


def _of_hours(hours: Sequence[Run]) -> Iterator[Row]:
    """No pool may go one way and back."""
    if hours:
        yield _reversals(f"{len(hours)} constant hours: reversals", hours)
        yield _judged(f"{len(hours)} constant hours: share within objectives", hours, at_least=0.95)


def _judged(
    name: str, ours: Sequence[Run], peer: Sequence[Run] | None = None, peer_name: str | None = None, *,
    of: str = "attainment", **judged: Any,
) -> Row:  # fmt: skip
    """A row of the mean of one figure, beside a peer's of the same seeds. ``judged``: see ``row``."""
    both = [(run, run) for run in ours] if peer is None else _pairs(ours, peer)
    mine, theirs = ([float(getattr(run, of)) for run in side] for side in zip(*both, strict=True))
    others, judged = None if peer is None else theirs, {"peer_name": peer_name, **judged}
    return row(name, UNITS[of], mine, others, of_means=True, command=COMMAND, **judged)


_ratio = partial(_judged, of_ratio=True)


def _pairs(ours: Sequence[Run], theirs: Sequence[Run]) -> list[tuple[Run, Run]]:
    return [(a, b) for a in ours for b in theirs if a.seed == b.seed]


def _reversals(name: str, runs: Sequence[Run]) -> Row:
    return row(f"{name}, in all", "", [float(sum(run.reversals for run in runs))], at_most=0, command=COMMAND)


def _hours(runs: Sequence[Run]) -> str:
    return f"{mean(run.gpu_hours for run in runs):.2f} GPU-hours"


def kept_speed_rows() -> Iterator[Row]:
    """As they were last measured."""
    return (each for each in read(RESULTS / f"{RESULT}.json") if each.name.startswith(SPEEDS))
