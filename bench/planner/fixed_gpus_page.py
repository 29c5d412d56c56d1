"""The part of ``docs/reports/planner-evaluation.md`` on six fixed GPUs, its pictures, and the table of README.md."""

from statistics import mean
from typing import Final

from bench.pages import render, write_picture
from bench.planner.cells import ABLATION, OURS, STATIC, Run, table
from bench.planner.fixed_gpus import GPUS, LOADS, PARTS, SHARE_S, SHORT_S, picture_name
from pointsman.planner.replay.axes import moments, tick_clock, tick_unit

BEGIN, END = "<!-- Six fixed GPUs: made by bench.planner.fixed_gpus_page -->", "<!-- until here -->"
_ORDER: Final = (OURS, *(f"{ABLATION} {part}" for part in PARTS), STATIC)
Found = dict[str, dict[str, list[Run]]]
"""By load, by planner, the runs."""


def section(found: Found) -> str:
    """The section; writes its pictures."""
    loads = []
    for name, load in LOADS.items():
        if of_load := found.get(name):
            drawn = picture(of_load)
            file = write_picture(picture_name(name), drawn) if drawn else ""
            loads.append((load.scenario, file, "\n".join(table(of_load))))
    return render(
        "fixed-gpus.md", gpus=GPUS, short_minutes=SHORT_S / 60, summary="\n".join([*summary(found), ""]), loads=loads
    )


def summary(found: Found) -> list[str]:
    """A line for each planner, a column for each load."""
    loads = [name for name in LOADS if found.get(name)]
    planners = sorted(
        dict.fromkeys(who for name in loads for who in found[name]),
        key=lambda who: _ORDER.index(who) if who in _ORDER else len(_ORDER),
    )
    shares = [(who, [mean(run.attainment for run in found[name][who]) for name in loads]) for who in planners]
    short = [name.removesuffix(f" on {GPUS} GPUs") for name in loads]
    return render("fixed-gpus-summary.md", loads=short, planners=shares).splitlines() if loads else []


def in_readme(readme: str, found: Found) -> str:
    """README.md with the table and the picture of the first load between its marks."""
    first = next(iter(LOADS))
    if BEGIN not in readme or not found.get(first):
        return readme
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    drawn = f"![{first}](docs/reports/pictures/{picture_name(first)})"
    return "\n".join([before + BEGIN, "", *summary(found), "", drawn, "", END + after])


def picture(of_load: dict[str, list[Run]]) -> str:
    """Over time, of the first seed: the workers of either role, and requests within objectives; "" if not kept."""
    ours, fixed = of_load[OURS][0], of_load[STATIC][0]
    if not ours.layouts or not fixed.shares:
        return ""
    end_s = len(ours.shares.split()) * SHARE_S
    return render(
        "fixed-gpus.svg",
        gpus=GPUS,
        load=ours.scenario,
        steps=_steps(ours.layouts, end_s),
        split=int(fixed.layouts.split()[1].partition("P")[0]),
        ours=_line(ours.shares, end_s),
        fixed=_line(fixed.shares, end_s),
        clock=[(at_s / end_s, tick_clock(at_s, end_s)) for at_s in moments(end_s)],
        unit=tick_unit(end_s),
        attainment=ours.attainment,
        fixed_attainment=fixed.attainment,
    )


def _steps(layouts: str, end_s: float) -> list[tuple[float, float, int, int]]:
    """(from, to, prefill, decode) of what ``Run.layouts`` says, from and to as shares of the time."""
    points = []
    for each in layouts.split(", "):
        at_s, layout = each.split()
        prefill, decode = layout.removesuffix("D").split("P")
        points.append((float(at_s) / end_s, int(prefill), int(decode)))
    ends = [at for at, _, _ in points[1:]] + [1.0]
    return [(at, min(to, 1.0), p, d) for (at, p, d), to in zip(points, ends, strict=True) if at < 1]


def _line(shares: str, end_s: float) -> list[tuple[float, float]]:
    """(time as a share of the whole, share of requests) of each half minute in which some arrived."""
    found = enumerate(shares.split())
    return [((number + 0.5) * SHARE_S / end_s, float(share)) for number, share in found if share != "-"]
