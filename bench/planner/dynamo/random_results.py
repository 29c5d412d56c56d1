"""The kept runs on random traces."""

from collections.abc import Mapping
from typing import Any

from bench.rows import RESULTS, kept

KEPT = RESULTS / "planner_dynamo_random.json.xz"
Run = Mapping[str, Any]
"""``goodput``, ``gpu_hours``, ``changes``."""
Trace = Mapping[str, Any]
"""A trace in short, with the runs on it: ``ours``, and ``dynamo`` and ``causal`` by name."""
EQUAL, DEARER = 0.01, 1.02


def read_kept() -> dict[str, Any]:
    """By seed; empty before anything was measured."""
    return dict(kept(KEPT) or {})


def best(runs: Mapping[str, Run]) -> Run:
    """The one with most goodput; of equals the cheapest."""
    return max(runs.values(), key=lambda run: (run["goodput"], -run["gpu_hours"]))


def wins(ours: Run, other: Run) -> bool:
    """Whether the other has clearly more goodput and is not dearer."""
    return bool(other["goodput"] >= ours["goodput"] + EQUAL and other["gpu_hours"] <= DEARER * ours["gpu_hours"])


def in_words(trace: Trace) -> str:
    """One line of what was measured."""
    sides = [f"Pointsman {value(trace['ours'])}"]
    sides += [f"best {name} {value(best(trace[name]))}" for name in ("dynamo", "causal") if trace.get(name)]
    return f"seed {trace['seed']}, {trace['load']}, start {trace['start_s']} s: {', '.join(sides)}"


def value(run: Run) -> str:
    """Goodput and GPU-hours."""
    return f"{run['goodput']:.3f} / {run['gpu_hours']:.2f}"
