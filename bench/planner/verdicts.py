"""What the evaluation's page has to admit: every target that is missed, with its reason, and where others do better."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bench.planner import fixed_gpus
from bench.planner.cells import ABLATION, CAUSAL, ORACLE, OURS, STATIC, Run
from bench.planner.dynamo.figures import EQUAL, Cell, Figure
from bench.rows import Row

Reasons = Sequence[tuple[str, str]]
"""(pattern of a row's name, and of its peer's after `` | ``; why it is missed), the first that matches counts."""

KNOWING: Final = (STATIC, CAUSAL, ORACLE)
ARROW: Final = "Arrow-like"
SAME_GPUS: Final = fixed_gpus.LOADS.keys()  # there Arrow-like has what all have
GIVEN: Final = "is given the best fixed layout's GPUs"


class NoReason(Exception):
    """A target is missed and nobody has written why."""


def missed(rows: Iterable[Row], reasons: Reasons) -> list[str]:
    """All missed rows under their reasons. Raises NoReason naming those that have none."""
    found: dict[str, list[Row]] = {}
    without: list[str] = []
    for row in rows:
        if not row.met:
            reason = reason_of(row, reasons)
            if reason is None:
                without.append(f"{row.name} | {row.peer_name or ''}")
            else:
                found.setdefault(reason, []).append(row)
    if without:
        raise NoReason(
            "missed, and no reason is written: " + "; ".join(without) + ". Write it beside the row: WHY in "
            "bench/planner/own_rows.py, robust.py, forecast_accuracy.py or "
            "bench/planner/dynamo/figures.py"
        )
    lines = []
    for reason, here in found.items():
        lines += [f"* {reason}", *(f"  * {_figures(row)}" for row in here)]
    return lines


def reason_of(row: Row, reasons: Reasons) -> str | None:
    """Why a row is missed, if somebody wrote it."""
    what = f"{row.name} | {row.peer_name or ''}"
    return next((why for pattern, why in reasons if re.fullmatch(pattern, what)), None)


def _figures(row: Row) -> str:
    few, much = row.spread
    spread = f" ({few:g} to {much:g})" if few != much else ""
    peer = "" if row.peer is None else f", {row.peer_name}: {row.peer:g}"
    if row.peer is not None and (row.peer_name or "").startswith(ABLATION):
        peer += f", {row.peer - row.ours:.3f} more"
    ratio = f", ratio {row.ratio:g}" if row.target.startswith("ratio") else ""
    ours = f"{row.name}: {row.ours:g} {row.unit}".rstrip()
    return f"{ours}{spread}{peer}{ratio} (target {row.target})"


# --- where another planner wins ---


def others_win(loads: Mapping[str, dict[str, list[Run]]]) -> list[str]:
    """Per load the planners that know no future and had more within objectives, or as much for fewer GPU-hours."""
    lines = [
        "| load | planner | within objectives | Pointsman | GPU-hours | Pointsman |",
        "|---|---|---|---|---|---|",
    ]
    for load, found in loads.items():
        if OURS not in found:
            continue
        share, hours = _means(found[OURS])
        better = [
            (who, *_means(theirs))
            for who, theirs in found.items()
            if who != OURS and not who.startswith((*KNOWING, ABLATION)) and _wins(*_means(theirs), share, hours)
        ]
        for who, their_share, their_hours in sorted(better, key=lambda each: -each[1]):
            name = f"{who} ({GIVEN})" if who == ARROW and load not in SAME_GPUS else who
            lines.append(f"| {load} | {name} | {their_share:.3f} | {share:.3f} | {their_hours:.2f} | {hours:.2f} |")
        if not better:
            lines.append(f"| {load} | none | | {share:.3f} | | {hours:.2f} |")
    return lines


def _means(runs: Sequence[Run]) -> tuple[float, float]:
    return statistics.mean(run.attainment for run in runs), statistics.mean(run.gpu_hours for run in runs)


def _wins(share: float, hours: float, our_share: float, our_hours: float) -> bool:
    """More within objectives, whatever it cost; or as much (as runs of one planner differ) for less."""
    more, as_much = round(share, 3) > round(our_share, 3), share > our_share - EQUAL
    return more or (as_much and round(hours, 2) < round(our_hours, 2))


def dynamo_wins(cells: Sequence[Cell]) -> list[str]:
    """The same of Dynamo's configurations in NVIDIA's simulator, of each cell the best of them."""
    lines = [
        "| cell | Dynamo's configuration | goodput | Pointsman | GPU-hours | Pointsman |",
        "|---|---|---|---|---|---|",
    ]
    nowhere = []
    for cell in cells:
        ours = cell.beside_dynamo
        better = [each for each in cell.dynamo.values() if _better(each, ours)]
        if not better:
            nowhere.append(cell.name)
            continue
        best = max(better, key=lambda each: (each.goodput, -each.gpu_hours))
        more = f" (and {len(better) - 1} more)" if len(better) > 1 else ""
        lines.append(f"| {cell.name} | {best.name}{more} | {_of(best, ours)} |")
    return [*lines, "", f"None in {'; '.join(nowhere)}."] if nowhere else lines


def _better(theirs: Figure, ours: Figure) -> bool:
    return _wins(theirs.goodput, theirs.gpu_hours, ours.goodput, ours.gpu_hours)


def _of(theirs: Figure, ours: Figure) -> str:
    return f"{theirs.goodput:.3f} | {ours.goodput:.3f} | {theirs.gpu_hours:.2f} | {ours.gpu_hours:.2f}"
