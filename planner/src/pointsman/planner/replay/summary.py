"""The figures of one replay, and the JSON document they are kept in.

The document is what ``--json`` writes, ``--compare`` reads and the HTML report shows: nothing is computed twice.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from pointsman.planner.core.types import Alternative, Objectives
from pointsman.planner.errors import CompareError
from pointsman.planner.replay.table import ENCODE, INSTANCE
from pointsman.planner.replay.trace_files import MOONCAKE_BLOCK_TOKENS
from pointsman.planner.simulator.elastic.types import GroupResult
from pointsman.planner.simulator.types import Floats, Outcome, PrefillPlace, Result, Served, Trace, reversals

FORMAT: Final = "pointsman-replay"
VERSION: Final = 1
WINDOWS: Final = 120  # points of a curve in the report
_PERCENTILES: Final = (50, 90, 95, 99)
_KEPT_ALTERNATIVES: Final = 4


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds; None when nothing was measured."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a replay comes to. Shares are of all arrived requests: a shed or unfinished one is a miss."""

    requests: int
    attainment: float
    ttft_attainment: float
    tpot_attainment: float
    goodput_per_s: float | None  # None: the trace is too short for a rate
    goodput_per_gpu_hour: float
    gpu_hours: float
    peak_gpus: int
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    itl_ms: Percentiles
    completed: int
    shed: int
    unfinished: int
    refused: int
    held: int
    longest_held_s: float
    prefilled_remotely: float
    preemptions: int
    switches: int
    reversals: int
    starts: int
    stops: int
    failed_transitions: int


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """The same of an elastic group. ``moved_tokens``: of KV, for instances that ended."""

    requests: int
    attainment: float
    ttft_attainment: float
    tpot_attainment: float
    goodput_per_s: float | None
    goodput_per_gpu_hour: float
    gpu_hours: float
    peak_gpus: int
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    completed: int
    shed: int
    unfinished: int
    refused: int
    reversals: int
    starts: int
    stops: int
    failed_transitions: int
    prefills_by_degree: dict[int, int]
    moved_tokens: int
    recomputed: int


def rounded_attainment(result: Served) -> float:
    """As in a document."""
    return round(result.attainment, 6)


def rounded_gpu_hours(result: Served) -> float:
    """As in a document."""
    return round(result.gpu_hours, 4)


def group_figures(result: GroupResult) -> GroupFigures:
    """The figures of an elastic group's result."""
    count = max(len(result.arrival_s), 1)
    return GroupFigures(
        requests=len(result.arrival_s),
        attainment=rounded_attainment(result),
        ttft_attainment=round(float(result.ttft_met.sum()) / count, 6),
        tpot_attainment=round(float(result.tpot_met.sum()) / count, 6),
        goodput_per_s=None if result.goodput_per_s is None else round(result.goodput_per_s, 4),
        goodput_per_gpu_hour=round(result.goodput_per_gpu_hour, 2),
        gpu_hours=rounded_gpu_hours(result),
        peak_gpus=result.peak_gpus,
        ttft_ms=_percentiles(result.ttft_s),
        tpot_ms=_percentiles(result.tpot_s),
        completed=int((result.outcome == Outcome.COMPLETED).sum()),
        shed=0,
        unfinished=int((result.outcome == Outcome.UNFINISHED).sum()),
        refused=int((result.outcome == Outcome.REFUSED).sum()),
        reversals=reversals(result.transitions),
        starts=sum(change.kind == "start" for change in result.transitions),
        stops=sum(change.kind == "stop" for change in result.transitions),
        failed_transitions=sum(not change.succeeded for change in result.transitions),
        prefills_by_degree={
            members: number for (phase, members), number in sorted(result.iterations.items()) if phase == "prefill"
        },
        moved_tokens=sum(result.moved_tokens.values()),
        recomputed=result.recomputed,
    )


def figures(result: Result) -> Figures:
    """The figures of a result."""
    count = max(len(result.arrival_s), 1)
    completed = result.outcome == Outcome.COMPLETED
    placed = result.prefilled != PrefillPlace.NOWHERE
    return Figures(
        requests=len(result.arrival_s),
        attainment=rounded_attainment(result),
        ttft_attainment=round(float(result.ttft_met.sum()) / count, 6),
        tpot_attainment=round(float(result.tpot_met.sum()) / count, 6),
        goodput_per_s=None if result.goodput_per_s is None else round(result.goodput_per_s, 4),
        goodput_per_gpu_hour=round(result.goodput_per_gpu_hour, 2),
        gpu_hours=rounded_gpu_hours(result),
        peak_gpus=result.peak_gpus,
        ttft_ms=_percentiles(result.ttft_s),
        tpot_ms=_percentiles(result.tpot_s),
        itl_ms=_itl(result),
        completed=int(completed.sum()),
        shed=int((result.outcome == Outcome.SHED).sum()),
        unfinished=int((result.outcome == Outcome.UNFINISHED).sum()),
        refused=int((result.outcome == Outcome.REFUSED).sum()),
        held=int((result.held_s > 0).sum()),
        longest_held_s=round(float(result.held_s.max(initial=0.0)), 1),
        prefilled_remotely=round(float((result.prefilled == PrefillPlace.REMOTE).sum()) / max(int(placed.sum()), 1), 4),
        preemptions=int(result.preemptions.sum()),
        switches=result.switches,
        reversals=result.reversals(),
        starts=sum(change.kind == "start" for change in result.transitions),
        stops=sum(change.kind == "stop" for change in result.transitions),
        failed_transitions=sum(not change.succeeded for change in result.transitions),
    )


def _itl(result: Result) -> Percentiles:
    """Of all gaps. The simulator counts the decode step of a first token, too; answers of one token have no gap."""
    if (result.outcome == Outcome.COMPLETED).any() and np.isnan(result.tpot_s).all():
        return Percentiles(None, None, None, None)
    return Percentiles(*(_known(result.itl_s.quantile(share / 100) * 1000) for share in _PERCENTILES))


def document(
    result: Result | GroupResult,
    *,
    trace: Mapping[str, object],
    policy: Mapping[str, object],
    simulation: Mapping[str, object],
    command: str,
) -> dict[str, Any]:
    """Everything about one replay, as JSON values. ``trace``, ``policy``, ``simulation``: what it was run with."""
    is_group = isinstance(result, GroupResult)
    made = {
        "format": FORMAT,
        "version": VERSION,
        "command": command,
        "trace": dict(trace),
        "policy": dict(policy),
        "simulation": dict(simulation),
        "objectives": asdict(result.objectives),
        "figures": asdict(group_figures(result) if isinstance(result, GroupResult) else figures(result)),
        "windows": _windows(result),
        "timeline": [asdict(point) for point in result.timeline],
        "decisions": [_decision(record.at_s, asdict(record.decision)) for record in result.decisions],
        "transitions": [
            {**asdict(change), "role": INSTANCE if is_group else change.role or ENCODE} for change in result.transitions
        ],
    }
    cleaned: dict[str, Any] = _without_nan(made)
    return cleaned


def read_document(path: Path) -> dict[str, Any]:
    """A document that ``--json`` wrote. Raises CompareError if it is none."""
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CompareError(f"{path}: it cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise CompareError(f"{path}: it is no JSON: {error}") from None
    if not isinstance(made, dict) or made.get("format") != FORMAT or made.get("version") != VERSION:
        raise CompareError(f"{path}: it is no result of 'pointsman replay --json' of this version")
    broken = _broken(made)
    if broken is not None:
        raise CompareError(f"{path}: {broken} is not as 'pointsman replay --json' writes it")
    return made


def _broken(made: Mapping[str, Any]) -> str | None:
    """The field that cannot be compared with; None if all can."""
    for name in ("trace", "simulation", "objectives", "figures"):
        if not isinstance(made.get(name), dict):
            return name
    numbers = {f"figures.{name}": made["figures"].get(name) for name in ("attainment", "gpu_hours")}
    numbers |= {f"objectives.{field.name}": made["objectives"].get(field.name) for field in fields(Objectives)}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return name
    return "objectives" if len(made["objectives"]) > len(fields(Objectives)) else None


def digest(trace: Trace) -> str:
    """Tells one trace from another by its requests, whatever the file is called."""
    blocks = json.dumps(trace.prefix_blocks).encode() if trace.prefix_blocks is not None else b""
    if blocks and trace.block_tokens != MOONCAKE_BLOCK_TOKENS:
        blocks += f" of {trace.block_tokens}".encode()
    images = trace.images.tobytes() if trace.images is not None else b""
    parts = (
        trace.arrival_s.round(6).tobytes(), trace.prompt_tokens.tobytes(), trace.output_tokens.tobytes(), blocks, images
    )  # fmt: skip
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _percentiles(seconds: Floats) -> Percentiles:
    known = seconds[~np.isnan(seconds)]
    if not len(known):
        return Percentiles(None, None, None, None)
    return Percentiles(*(_known(value * 1000) for value in np.percentile(known, _PERCENTILES)))


def _windows(result: Served) -> list[dict[str, Any]]:
    """Arrivals, attainment and P95 of TTFT by time of arrival, in ``WINDOWS`` pieces of at least a second."""
    if not len(result.arrival_s):
        return []
    end_s = max(float(result.arrival_s[-1]), 1.0)
    width_s = max(end_s / WINDOWS, 1.0)
    index = np.minimum((result.arrival_s / width_s).astype(int), math.ceil(end_s / width_s) - 1)
    found, met = [], result.met
    for number in range(int(index.max()) + 1):
        inside = index == number
        ttft_s = result.ttft_s[inside]
        ttft_s = ttft_s[~np.isnan(ttft_s)]
        found.append(
            {
                "at_s": round(number * width_s, 3),
                "width_s": round(width_s, 3),
                "arrivals": int(inside.sum()),
                "met": int(met[inside].sum()),
                "ttft_p95_ms": _known(float(np.percentile(ttft_s, 95)) * 1000) if len(ttft_s) else None,
            }
        )
    return found


def _decision(at_s: float, decision: dict[str, Any]) -> dict[str, Any]:
    kept: list[Alternative] = decision["alternatives"][:_KEPT_ALTERNATIVES]
    return {"at_s": round(at_s, 3), **decision, "inputs": dict(decision["inputs"]), "alternatives": list(kept)}


def _known(value: float) -> float | None:
    return round(float(value), 3) if math.isfinite(value) else None


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
