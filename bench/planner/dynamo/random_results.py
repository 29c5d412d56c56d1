"""What the kept runs on random traces come to: a section of ``docs/reports/planner-evaluation.md``."""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.planner.dynamo.configurations import CONFIGURATIONS, DOCUMENTED
from bench.planner.sources import in_dynosim
from bench.rows import RESULTS

KEPT = RESULTS / "planner_dynamo_random.json"
Run = Mapping[str, Any]
"""``goodput``, ``gpu_hours``, ``changes``."""
Trace = Mapping[str, Any]
"""A trace in short, with the runs on it: ``ours``, and ``dynamo`` and ``causal`` by name."""
HEAD = """\
### Traces nobody made it for

{count} traces from their seeds alone, which no constant was chosen on (`make bench-planner-dynamo-random
ARGS="{seeds}"`; what Pointsman did on seed 102 when it was first measured, .924, led to a mend: a batch larger than any
that was seen was expected to be quicker). Shapes, lengths, engines, objectives, start-ups and first layouts are random,
one in three is a piece of Azure's or Mooncake's trace, thinned and stretched. The same rules as above; the cost of a
planner is relative to Pointsman's on the same trace. *Of each trace* is the best of several chosen afterwards by its
goodput, whatever it cost. **Bold**: more goodput than Pointsman (by .01 and more) for no more GPU-hours (2 %)."""
EQUAL, DEARER = 0.01, 1.02


def read_kept() -> dict[str, Any]:
    """By seed; empty before anything was measured."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def best(runs: Mapping[str, Run]) -> Run:
    """The one with most goodput; of equals the cheapest."""
    return max(runs.values(), key=lambda run: (run["goodput"], -run["gpu_hours"]))


def wins(ours: Run, other: Run) -> bool:
    """Whether the other has clearly more goodput and is not dearer."""
    return bool(other["goodput"] >= ours["goodput"] + EQUAL and other["gpu_hours"] <= DEARER * ours["gpu_hours"])


def in_words(trace: Trace) -> str:
    """One line of what was measured."""
    sides = [f"Pointsman {_value(trace['ours'])}"]
    sides += [f"best {name} {_value(best(trace[name]))}" for name in ("dynamo", "causal") if trace.get(name)]
    return f"seed {trace['seed']}, {trace['load']}, start {trace['start_s']} s: {', '.join(sides)}"


def dynamo_wins() -> list[str]:
    """On how many traces a configuration of Dynamo's has more goodput, and what it costs; nothing if none is measured.

    More by any amount that three digits show, as on the rest of the page, and on how many of these by ``EQUAL``.
    """
    traces = _traces()
    if not traces:
        return []
    lines = [
        f"On the {len(traces)} [traces nobody made it for](#traces-nobody-made-it-for), where of Dynamo's "
        f"{len(CONFIGURATIONS)} configurations that with most goodput is chosen for each trace afterwards:",
        "",
        "| of Dynamo's configurations | more goodput | by .01 and more | mean goodput | Pointsman | cost |",
        "|---|---|---|---|---|---|",
    ]
    bounds = {"all, whatever they cost": math.inf, "those for at most Pointsman's GPU-hours (2 %)": DEARER}
    for which, most in bounds.items():
        pairs = []
        for trace in traces:
            ours = trace["ours"]
            runs = {n: run for n, run in trace["dynamo"].items() if run["gpu_hours"] <= most * ours["gpu_hours"]}
            if runs:
                pairs.append((ours, best(runs)))
        if not pairs:
            lines.append(f"| {which} | there is none | | | | |")
            continue
        more = sum(round(theirs["goodput"], 3) > round(ours["goodput"], 3) for ours, theirs in pairs)
        clearly = sum(theirs["goodput"] >= ours["goodput"] + EQUAL for ours, theirs in pairs)
        goodput = statistics.mean(theirs["goodput"] for _, theirs in pairs)
        our_goodput = statistics.mean(ours["goodput"] for ours, _ in pairs)
        cost = statistics.geometric_mean(theirs["gpu_hours"] / ours["gpu_hours"] for ours, theirs in pairs)
        counted = f"{more} of {len(pairs)} | {clearly}"
        lines.append(f"| {which} | {counted} | {goodput:.3f} | {our_goodput:.3f} | {cost:.2f}× |")
    return lines


def _traces() -> list[Trace]:
    """Those on which all have run, by seed."""
    kept = read_kept()
    return [kept[seed] for seed in sorted(kept, key=int) if kept[seed].get("dynamo") and kept[seed].get("causal")]


def section() -> list[str]:
    """The lines of it; nothing if nothing is measured."""
    traces = _traces()
    if not traces:
        return []
    seeds = f"{traces[0]['seed']} {traces[-1]['seed'] + 1}"
    return [
        *HEAD.format(count=len(traces), seeds=seeds).splitlines(),
        "",
        *_older(traces),
        *_means(traces),
        "",
        *_table(traces),
        "",
    ]


def _older(traces: Sequence[Trace]) -> list[str]:
    if all(trace["planner"] == in_dynosim() for trace in traces):
        return []
    return ["**Pointsman's figures are of an earlier state of its planner**: `--ours` measures them again.", ""]


def _sides(traces: Sequence[Trace]) -> Iterator[tuple[str, list[Run]]]:
    yield "Pointsman", [trace["ours"] for trace in traces]
    one = max(CONFIGURATIONS, key=lambda name: statistics.mean(t["dynamo"][name]["goodput"] for t in traces))
    yield f"Dynamo, {one}: the best single one", [trace["dynamo"][one] for trace in traces]
    documented = [{name: trace["dynamo"][name] for name in DOCUMENTED} for trace in traces]
    yield f"Dynamo, best of {len(DOCUMENTED)} documented of each trace", [best(runs) for runs in documented]
    yield f"Dynamo, best of {len(CONFIGURATIONS)} of each trace", [best(trace["dynamo"]) for trace in traces]
    yield "causal, best of 6 of each trace", [best(trace["causal"]) for trace in traces]


def _means(traces: Sequence[Trace]) -> list[str]:
    lines = [
        f"| mean of {len(traces)} traces | goodput | worst | cost (geometric mean) | changes of the layout |",
        "|---|---|---|---|---|",
    ]
    for name, runs in _sides(traces):
        goodput = [run["goodput"] for run in runs]
        cost = statistics.geometric_mean(
            run["gpu_hours"] / trace["ours"]["gpu_hours"] for run, trace in zip(runs, traces, strict=True)
        )
        changes = statistics.mean(run["changes"] for run in runs)
        lines.append(f"| {name} | {statistics.mean(goodput):.3f} | {min(goodput):.3f} | {cost:.2f}× | {changes:.0f} |")
    return lines


def _table(traces: Sequence[Trace]) -> list[str]:
    lines = [
        "| seed | load | start | requests | Pointsman | Dynamo, best of all | causal |",
        "|---|---|---|---|---|---|---|",
    ]
    for trace in traces:
        others = [_beside(trace, trace[name]) for name in ("dynamo", "causal")]
        load, start = trace["load"].replace("_", "\\_"), f"{trace['start_s']} s"
        values = [f"{trace['requests']}", _value(trace["ours"]), *others]
        lines.append(f"| {trace['seed']} | {load} | {start} | {' | '.join(values)} |")
    return lines


def _beside(trace: Trace, runs: Mapping[str, Run]) -> str:
    """The best of them, and the best of those that win, if one does."""
    winners = {name: run for name, run in runs.items() if wins(trace["ours"], run)}
    if not winners:
        return _value(best(runs))
    won, most = best(winners), best(runs)
    return f"**{_value(won)}**" + ("" if won is most else f" ({_value(most)})")


def _value(run: Run) -> str:
    """Goodput and GPU-hours."""
    return f"{run['goodput']:.3f} / {run['gpu_hours']:.2f}"
