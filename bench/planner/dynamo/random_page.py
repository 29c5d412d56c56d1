"""What the kept runs on random traces come to: a section of ``docs/reports/planner-evaluation.md``."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean, mean
from typing import Any

from bench.pages import render
from bench.planner.dynamo.configurations import CONFIGURATIONS, DOCUMENTED
from bench.planner.dynamo.random_results import DEARER, EQUAL, Run, Trace, best, read_kept, value, wins
from bench.planner.sources import in_dynosim


def dynamo_wins() -> str:
    """On how many traces a configuration of Dynamo's has more goodput, and what it costs; nothing if none is measured.

    More by any amount that three digits show, as on the rest of the page, and on how many of these by ``EQUAL``.
    """
    traces = _traces()
    bounds = {"all, whatever they cost": math.inf, "those for at most Pointsman's GPU-hours (2 %)": DEARER}
    found = {which: _won(traces, most) for which, most in bounds.items()}
    figures = {"traces": len(traces), "configurations": len(CONFIGURATIONS), "bounds": found}
    return render("random-wins.md", **figures) if traces else ""


def _won(traces: Sequence[Trace], most: float) -> dict[str, float]:
    """How Dynamo's best configuration of each trace does that costs at most so many times ours; {}: there is none."""
    pairs = []
    for trace in traces:
        ours = trace["ours"]
        runs = {n: run for n, run in trace["dynamo"].items() if run["gpu_hours"] <= most * ours["gpu_hours"]}
        pairs += [(ours, best(runs))] if runs else []
    return (
        {}
        if not pairs
        else {
            "pairs": len(pairs),
            "more": sum(round(theirs["goodput"], 3) > round(ours["goodput"], 3) for ours, theirs in pairs),
            "clearly": sum(theirs["goodput"] >= ours["goodput"] + EQUAL for ours, theirs in pairs),
            "goodput": mean(theirs["goodput"] for _, theirs in pairs),
            "ours": mean(ours["goodput"] for ours, _ in pairs),
            "cost": geometric_mean(theirs["gpu_hours"] / ours["gpu_hours"] for ours, theirs in pairs),
        }
    )


def section() -> str:
    """Its Markdown; nothing if nothing is measured."""
    traces = _traces()
    return (
        ""
        if not traces
        else render(
            "random-traces.md",
            traces=traces,
            older=any(trace["planner"] != in_dynosim() for trace in traces),
            means=[(name, runs, _cost(runs, traces)) for name, runs in _sides(traces)],
            table=[(trace, [_beside(trace, trace[name]) for name in ("dynamo", "causal")]) for trace in traces],
            value=value,
        )
    )


def _traces() -> list[Trace]:
    """Those on which all have run, by seed."""
    kept = read_kept()
    return [kept[seed] for seed in sorted(kept, key=int) if kept[seed].get("dynamo") and kept[seed].get("causal")]


def _cost(runs: Sequence[Run], traces: Sequence[Trace]) -> float:
    return geometric_mean(r["gpu_hours"] / t["ours"]["gpu_hours"] for r, t in zip(runs, traces, strict=True))


def _sides(traces: Sequence[Trace]) -> Iterator[tuple[str, list[Run]]]:
    yield "Pointsman", [trace["ours"] for trace in traces]
    one = max(CONFIGURATIONS, key=lambda name: mean(trace["dynamo"][name]["goodput"] for trace in traces))
    yield f"Dynamo, {one}: the best single one", [trace["dynamo"][one] for trace in traces]
    documented = [{name: trace["dynamo"][name] for name in DOCUMENTED} for trace in traces]
    yield f"Dynamo, best of {len(DOCUMENTED)} documented of each trace", [best(runs) for runs in documented]
    yield f"Dynamo, best of {len(CONFIGURATIONS)} of each trace", [best(trace["dynamo"]) for trace in traces]
    yield "causal, best of 6 of each trace", [best(trace["causal"]) for trace in traces]


def _beside(trace: Trace, runs: Mapping[str, Run]) -> tuple[Any, Run]:
    """(the best of those that win, if one does; the best of all)."""
    winners = {name: run for name, run in runs.items() if wins(trace["ours"], run)}
    return winners and best(winners), best(runs)
