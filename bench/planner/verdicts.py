"""What the evaluation's page has to admit: every target that is missed, with its reason, and where others do better."""

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Final, NamedTuple

from bench.pages import texts
from bench.planner import fixed_gpus
from bench.planner.cells import ABLATION, KNOWING, OURS, Run
from bench.planner.dynamo.figures import EQUAL, Cell
from bench.rows import Row

Reasons = Sequence[tuple[str, str]]
"""(pattern of a row's name, and of its peer's after `` | ``; why it is missed), the first that matches counts."""

ARROW: Final = "Arrow-like"
GIVEN: Final = "is given the best fixed layout's GPUs"  # but on fixed GPUs, where all have the same


class NoReason(Exception):
    """A target is missed and nobody has written why."""


def reasons() -> Reasons:
    """Those that are written."""
    return [(each["pattern"], each["why"]) for each in texts("reasons")]


def missed(rows: Iterable[Row], reasons: Reasons) -> list[str]:
    """All missed rows under their reasons. Raises NoReason naming those that have none."""
    found: dict[str | None, list[Row]] = {}
    for row in rows:
        if not row.met:
            found.setdefault(reason_of(row, reasons), []).append(row)
    if without := "; ".join(map(_named, found.get(None, []))):
        raise NoReason(f"missed, and no reason is written: {without}. Write it in bench/templates/reasons.yaml")
    return [
        line for reason, here in found.items() for line in (f"* {reason}", *(f"  * {_figures(row)}" for row in here))
    ]


def reason_of(row: Row, reasons: Reasons) -> str | None:
    """Why a row is missed, if somebody wrote it."""
    return next((why for pattern, why in reasons if re.fullmatch(pattern, _named(row))), None)


def _named(row: Row) -> str:
    return f"{row.name} | {row.peer_name or ''}"


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


class Result(NamedTuple):
    """Share of requests within objectives, and GPU-hours."""

    share: float
    gpu_hours: float

    def wins(self, ours: "Result") -> bool:
        """More within objectives, whatever it cost; or as much (as runs of one planner differ) for less."""
        more, as_much = round(self.share, 3) > round(ours.share, 3), self.share > ours.share - EQUAL
        return more or (as_much and round(self.gpu_hours, 2) < round(ours.gpu_hours, 2))

    def beside(self, ours: "Result") -> str:
        """Both, as cells of a table."""
        return f"{self.share:.3f} | {ours.share:.3f} | {self.gpu_hours:.2f} | {ours.gpu_hours:.2f}"


def others_win(loads: Mapping[str, dict[str, list[Run]]]) -> list[str]:
    """Per load the planners that know no future and had more within objectives, or as much for fewer GPU-hours."""
    lines = []
    for load, found in loads.items():
        means = {
            who: Result(mean(run.attainment for run in runs), mean(run.gpu_hours for run in runs))
            for who, runs in found.items()
        }
        if OURS not in means:
            continue
        ours = means.pop(OURS)
        better = [
            who for who, theirs in means.items() if not who.startswith((*KNOWING, ABLATION)) and theirs.wins(ours)
        ]
        for who in sorted(better, key=lambda who: -means[who].share):
            name = f"{who} ({GIVEN})" if who == ARROW and load not in fixed_gpus.LOADS else who
            lines.append(f"| {load} | {name} | {means[who].beside(ours)} |")
        if not better:
            lines.append(f"| {load} | none | | {ours.share:.3f} | | {ours.gpu_hours:.2f} |")
    return lines


def dynamo_wins(cells: Sequence[Cell]) -> list[str]:
    """The same of Dynamo's configurations in NVIDIA's simulator, of each cell the best of them."""
    lines, nowhere = [], []
    for cell in cells:
        ours = Result(cell.ours.goodput, cell.ours.gpu_hours)
        better = {name: Result(each.goodput, each.gpu_hours) for name, each in cell.dynamo.items()}
        better = {name: theirs for name, theirs in better.items() if theirs.wins(ours)}
        if not better:
            nowhere.append(cell.name)
            continue
        best = max(better, key=lambda name: (better[name].share, -better[name].gpu_hours))
        more = f" (and {len(better) - 1} more)" if len(better) > 1 else ""
        lines.append(f"| {cell.name} | {best}{more} | {better[best].beside(ours)} |")
    return [*lines, "", f"None in {'; '.join(nowhere)}."] if nowhere else lines
