"""Renders what the planner's benchmarks kept to ``docs/reports/planner-evaluation.md`` and its pictures."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from bench import pages
from bench.pages import render, texts, write, write_picture
from bench.planner import evaluation_rows, parts, random_loads
from bench.planner.dynamo import figures
from bench.planner.dynamo import page as beside_dynamo
from bench.planner.loads import GROUPS, LEADS, LOADS, TRUTH
from bench.planner.runs import (
    ABLATION,
    ARROW,
    KNOWING,
    NO_SWITCH,
    OURS,
    SHARE_S,
    STATIC,
    Found,
    Run,
    by_planner,
    read_cells,
)
from bench.planner.sources import in_own_simulator
from bench.rows import Row
from pointsman.planner.core.types import Policy
from pointsman.planner.replay.axes import moments, tick_clock, tick_unit
from pointsman.planner.simulator.baselines.causal import TRIED

FIXED: Final = GROUPS["six fixed GPUs"]
GPUS: Final = 6
BEGIN, END = "<!-- Six fixed GPUs: made by bench.planner.evaluation_page -->", "<!-- until here -->"


class NoReason(Exception):
    """A target is missed and nobody has written why."""


def write_page(runs: Sequence[Run]) -> Path:
    """The page, its pictures, and the table of six fixed GPUs in README.md.

    Raises NoReason, before anything but pictures is written, for a missed target that has no reason.
    """
    found = {name: of_load for name in LOADS if (of_load := by_planner(runs, name))}
    kept = figures.kept_runs()
    beside, random = figures.cells(kept), figures.random_cells(kept)
    ours = [*evaluation_rows.rows(runs), *evaluation_rows.kept_speed_rows()]
    page = render(
        "planner-evaluation.md",
        groups={group: [(load, found[load.name]) for load in loads.values() if load.name in found]
                for group, loads in GROUPS.items()},
        wrong={
            load.name if who == OURS else f"{who}, {load.name}": runs_of_one
            for load in GROUPS["what goes wrong"].values()
            for who, runs_of_one in found.get(load.name, {}).items()
            if not who.startswith(ABLATION)
        },
        table=table,
        pictures={name: write_picture(picture_name(name), picture(found[name])) for name in FIXED if name in found},
        older=older(runs),
        gpus=GPUS,
        summary=summary(found),
        drawing=random_loads,
        sight={name: found[name] for name in GROUPS["sight"] if name in found},
        worths=parts.worths(found),
        least=parts,
        truth=TRUTH,
        leads=LEADS,
        tried=TRIED,
        default_start_s=Policy().start_s,
        dynamo=beside_dynamo.section(beside, random),
        others_win=others_win({name: found[name] for name in (*FIXED, *GROUPS["budget of 16 GPUs"]) if name in found}),
        dynamo_wins=[*dynamo_wins(beside)],
        random_wins=beside_dynamo.dynamo_wins(random),
        missed=missed([*ours, *figures.rows(kept)], texts("reasons")),
    )  # fmt: skip
    write_picture(beside_dynamo.PICTURE, beside_dynamo.picture(beside))
    readme = pages.REPORTS.parents[1] / "README.md"
    if readme.exists():
        readme.write_text(in_readme(readme.read_text(), found))
    return write("planner-evaluation.md", page)


def older(runs: Sequence[Run]) -> list[str]:
    """The groups of loads where ours was not measured again since the planner or the simulator changed."""
    before = {run.scenario for run in runs if run.planner.startswith(OURS) and run.sources != in_own_simulator()}
    return [group for group, loads in GROUPS.items() if before & loads.keys()]


def table(found: Found, *, marks_best: bool = True) -> str:
    """Markdown: a line a planner, those that know the future last."""
    found = {who: runs for who, runs in found.items() if not parts.is_inner(who)}
    unknowing = [who for who in found if not who.startswith(KNOWING)]
    whole = [who for who in unknowing if not who.startswith(ABLATION)]
    best = max(whole, key=lambda who: mean(run.attainment for run in found[who]))
    best = best if marks_best and len(unknowing) > 1 else ""
    knowing = [who for name in KNOWING for who in found if who.startswith(name)]
    planners = [(who, sorted({run.note for run in found[who]} - {""}), found[who]) for who in [*unknowing, *knowing]]
    return render("planners.md", planners=planners, best=best).rstrip()


# --- what the page has to admit ---


def missed(rows: Iterable[Row], reasons: Sequence[Mapping[str, str]]) -> list[tuple[str, list[Row]]]:
    """All missed rows by reason, the first whose pattern matches. Raises NoReason naming those that have none."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if not row.met:
            named = f"{row.name} | {row.peer_name or ''}"
            why = next((each["why"] for each in reasons if re.fullmatch(each["pattern"], named)), None)
            if why is None:
                raise NoReason(f"missed, and no reason is written in bench/templates/reasons.yaml: {named}")
            found.setdefault(why, []).append(row)
    return [*found.items()]


Figures = tuple[float, float]
"""Share of requests within objectives, and GPU-hours."""
Win = tuple[str, str, Figures | None, Figures]
"""On what, who, its figures, and ours; ``none`` and None where nobody wins."""


def winners(name: str, ours: Figures, others: Mapping[str, Figures]) -> list[Win]:
    """Those with more within objectives, whatever it cost, or with as much (as runs of one planner differ) for less."""
    found: list[Win] = []
    for who, theirs in sorted(others.items(), key=lambda each: (-each[1][0], each[1][1])):
        more, as_much = round(theirs[0], 3) > round(ours[0], 3), theirs[0] > ours[0] - figures.EQUAL
        if more or (as_much and round(theirs[1], 2) < round(ours[1], 2)):
            found.append((name, who, theirs, ours))
    return found or [(name, "none", None, ours)]


def others_win(loads: Mapping[str, Found]) -> Iterator[Win]:
    """Of each load those that know no future."""
    for load, found in loads.items():
        means = {
            who: (mean(r.attainment for r in runs), mean(r.gpu_hours for r in runs)) for who, runs in found.items()
        }
        if ours := means.pop(OURS, None):
            others = {who: each for who, each in means.items() if not who.startswith((*KNOWING, ABLATION))}
            yield from winners(load, ours, others)


def dynamo_wins(cells: Iterable[figures.Cell]) -> Iterator[Win]:
    """The same of Dynamo's configurations in NVIDIA's simulator, of each cell the best of them."""
    for cell in cells:
        others = {name: (figure.goodput, figure.gpu_hours) for name, figure in cell.dynamo.items()}
        (name, who, theirs, ours), *more = winners(cell.name, (cell.ours.goodput, cell.ours.gpu_hours), others)
        yield name, f"{who} (and {len(more)} more)" if more else who, theirs, ours


# --- six fixed GPUs ---


def summary(found: Mapping[str, Found]) -> str:
    """A line for each planner, a column for each load; nothing if none was measured."""
    loads = {name.removesuffix(f" on {GPUS} GPUs"): found[name] for name in FIXED if name in found}
    if not loads:
        return ""
    whole = [who for who in next(iter(loads.values())) if not parts.is_inner(who)]
    planners = sorted(whole, key=lambda who: (not who.startswith(OURS), who != STATIC))
    return render("fixed-gpus-summary.md", loads=loads, planners=planners)


def in_readme(readme: str, found: Mapping[str, Found]) -> str:
    """README.md with the table and the picture of the first load between its marks."""
    first = next(iter(FIXED))
    if BEGIN not in readme or first not in found:
        return readme
    before, rest = readme.split(BEGIN)
    drawn = f"![{first}](docs/reports/pictures/{picture_name(first)})"
    return "\n".join([before + BEGIN, "", summary(found).rstrip(), "", drawn, "", END + rest.split(END)[1]])


def picture_name(load: str) -> str:
    """Of a load's picture."""
    return f"planner-{load.lower().replace(' ', '-')}.svg"


def picture(of_load: Found) -> str:
    """Over time, of the first seed: the workers of either role, and requests within objectives."""
    ours, fixed = of_load[OURS][0], of_load[STATIC][0]
    others = [of_load[who][0] for who in (NO_SWITCH, ARROW) if who in of_load and of_load[who][0].shares]
    end_s = len(ours.shares) * SHARE_S
    clock = [(at_s / end_s, tick_clock(at_s, end_s)) for at_s in moments(end_s)]
    drawn = {"ours": ours, "others": others, "fixed": fixed}
    return render("fixed-gpus.svg", gpus=GPUS, **drawn, end_s=end_s, clock=clock, unit=tick_unit(end_s))


if __name__ == "__main__":
    print(f"wrote {write_page(read_cells())}")
