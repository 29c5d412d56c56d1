"""The part of ``docs/reports/planner-evaluation.md`` on six fixed GPUs, its pictures, and the table of README.md."""

import statistics
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Final

from bench.planner.cells import ABLATION, OURS, STATIC, Run
from bench.planner.fixed_gpus import GPUS, LOADS, PARTS, SHARE_S, SHORT_S
from pointsman.planner.replay.axes import moments, tick_clock, tick_unit

HEAD: Final = f"""\
## Six GPUs, and a mix that moves

The number of GPUs is fixed, and what requests need of prefill and decode changes. No worker starts or stops. Pointsman
switches roles, moves the threshold of remote prefill, and queues at the gateway what would be late. All planners begin
with the same layout, and get the same requests.

* **best static** is the fixed split that keeps most requests within objectives, chosen afterwards for each seed, with
  all prompts computed by prefill workers or with the default threshold. **static** is the first layout, unchanged.
* **Arrow-like** switches roles. **Dynamo-like** cannot: on the same {GPUS} GPUs it stops a worker of one role and
  starts one of the other. It also stops workers that it does not need, and so uses fewer GPU-hours.
* *Without role switch*, *threshold* and *flow control* are Pointsman with this action off in the policy.
* **Good per GPU-hour** counts requests within both objectives. **Reversals** are changes of a pool's size, by a switch
  or by a start or stop, that are undone within ten minutes.
* Pictures show the first seed. The share of *real traces* counts requests. Most of them come in the
  {SHORT_S / 60:.0f} minutes of Azure's short conversations.
"""
BEGIN, END = "<!-- Six fixed GPUs: made by bench.planner.fixed_gpus_page -->", "<!-- until here -->"
_WIDTH, _LEFT, _LEGEND = 660, 60, 206
_PLOT: Final = _WIDTH - _LEFT - _LEGEND
_LAYOUT_TOP, _SHARE_TOP, _PANEL, _HEIGHT = 34, 176, 108, 330
_PREFILL, _DECODE, _STATIC, _GRID = "#2f6fb2", "#f0b37e", "#222222", "#e1e4e8"

Found = dict[str, dict[str, list[Run]]]
"""By load, by planner, the runs."""
Table = Callable[[dict[str, list[Run]]], list[str]]
"""A load's figures in a table."""


def section(found: Found, table: Table, reports: Path) -> list[str]:
    """The section; writes its pictures below ``reports``."""
    parts = [HEAD, *summary(found), ""]
    for name, load in LOADS.items():
        of_load = found.get(name)
        if not of_load:
            continue
        objectives = load.scenario.objectives
        each = objectives.ttft_ms_per_prompt_token
        ttft = f"{objectives.ttft_ms:g} ms" + (f" and {each:g} ms for each prompt token" if each else "")
        parts += [
            f"### {name[0].upper()}{name[1:]}",
            "",
            f"{load.scenario.note}. TTFT {ttft}, TPOT {objectives.tpot_ms:g} ms, on {load.scenario.gpu}; begins with "
            f"{load.scenario.layout[0]}P{load.scenario.layout[1]}D.",
            "",
        ]
        drawn = picture(of_load)
        if drawn:
            path = reports / "pictures" / picture_name(name)
            path.write_text(drawn)
            parts += [f"![{name}](pictures/{path.name})", ""]
        parts += [*table(of_load), ""]
    return parts


def picture_name(load: str) -> str:
    """Of a load's picture."""
    return f"planner-{load.lower().replace(' ', '-')}.svg"


def summary(found: Found) -> list[str]:
    """A line for each planner, a column for each load."""
    loads = [name for name in LOADS if found.get(name)]
    if not loads:
        return []
    planners = [*dict.fromkeys(who for name in loads for who in found[name])]
    short = [name.removesuffix(f" on {GPUS} GPUs") for name in loads]
    lines = ["| | " + " | ".join(short) + " |", "|---" * (len(loads) + 1) + "|"]
    for who in sorted(planners, key=_place):
        shares = [statistics.mean(run.attainment for run in found[name][who]) for name in loads]
        lines.append(f"| {who} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    return lines


def _place(who: str) -> int:
    order = (OURS, *(f"{ABLATION} {part}" for part in PARTS), STATIC)
    return order.index(who) if who in order else len(order)


def in_readme(readme: str, found: Found) -> str:
    """README.md with the table and the picture of the first load between its marks."""
    first = next(iter(LOADS))
    if BEGIN not in readme or not found.get(first):
        return readme
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    drawn = f"![{first}](docs/reports/pictures/{picture_name(first)})"
    return "\n".join([before + BEGIN, "", *summary(found), "", drawn, "", END + after])


# --- picture ---


def picture(of_load: dict[str, list[Run]]) -> str:
    """Over time, of the first seed: the workers of either role, and requests within objectives; "" if not kept."""
    ours, fixed = of_load[OURS][0], of_load[STATIC][0]
    if not ours.layouts or not fixed.shares:
        return ""
    end_s = len(ours.shares.split()) * SHARE_S
    split = int(fixed.layouts.split()[1].partition("P")[0])
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img" '
        f'aria-label="Prefill and decode workers of {GPUS} GPUs, and requests within objectives, over time">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-weight="600">workers of either role, {ours.scenario}</text>',
        *_areas(_steps(ours.layouts, end_s), end_s),
        *(_level(f"{count}", _LAYOUT_TOP, count / GPUS) for count in (0, 2, 4, 6)),
        _dashes(split / GPUS),
        f'<text x="{_LEFT}" y="{_SHARE_TOP - 14}" font-weight="600">requests within objectives</text>',
        *(_level(f"{share:.0%}", _SHARE_TOP, share) for share in (0.0, 0.5, 1.0)),
        _line(fixed.shares, end_s, _STATIC, 1.5),
        _line(ours.shares, end_s, _PREFILL, 2.5),
    ]
    low = _SHARE_TOP + _PANEL
    for at_s in moments(end_s):
        lines.append(
            f'<text x="{_x(at_s, end_s):.1f}" y="{low + 18}" text-anchor="middle">{tick_clock(at_s, end_s)}</text>'
        )
    lines.append(
        f'<text x="{_LEFT + _PLOT / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle" font-weight="600">'
        f"time ({tick_unit(end_s)})</text>"
    )
    legend = (
        (_LAYOUT_TOP, _DECODE, 10, "decode, Pointsman"),
        (_LAYOUT_TOP + 20, _PREFILL, 10, "prefill, Pointsman"),
        (_LAYOUT_TOP + 40, _STATIC, 2, f"split of best static, {split}P{GPUS - split}D"),
        (_SHARE_TOP, _PREFILL, 3, f"Pointsman: {ours.attainment:.1%} in all"),
        (_SHARE_TOP + 20, _STATIC, 2, f"best static: {fixed.attainment:.1%}"),
    )
    for y, colour, thick, text in legend:
        x = _LEFT + _PLOT + 14
        lines += [
            f'<rect x="{x}" y="{y + 6 - thick / 2:.1f}" width="12" height="{thick}" fill="{colour}"/>',
            f'<text x="{x + 18}" y="{y + 10}">{escape(text)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _steps(layouts: str, end_s: float) -> list[tuple[float, float, int, int]]:
    """(from, to, prefill, decode) of what ``Run.layouts`` says."""
    points = []
    for each in layouts.split(", "):
        at_s, layout = each.split()
        prefill, decode = layout.removesuffix("D").split("P")
        points.append((float(at_s), int(prefill), int(decode)))
    ends_s = [at_s for at_s, _, _ in points[1:]] + [end_s]
    return [(at_s, min(to_s, end_s), p, d) for (at_s, p, d), to_s in zip(points, ends_s, strict=True) if at_s < end_s]


def _areas(steps: list[tuple[float, float, int, int]], end_s: float) -> Iterator[str]:
    """Prefill from below, decode from above; between them is the worker that switches."""
    low = _LAYOUT_TOP + _PANEL
    for at_s, to_s, prefill, decode in steps:
        x, width = _x(at_s, end_s), _x(to_s, end_s) - _x(at_s, end_s)
        for y, count, colour in ((low - _PANEL * prefill / GPUS, prefill, _PREFILL), (_LAYOUT_TOP, decode, _DECODE)):
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{_PANEL * count / GPUS:.1f}" '
                f'fill="{colour}" shape-rendering="crispEdges"/>'
            )


def _level(label: str, top: int, share: float) -> str:
    y = top + _PANEL * (1 - share)
    return (
        f'<line x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>'
        f'<text x="{_LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _dashes(share: float) -> str:
    y = _LAYOUT_TOP + _PANEL * (1 - share)
    return (
        f'<line x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_STATIC}" stroke-width="2" '
        'stroke-dasharray="6 4"/>'
    )


def _line(shares: str, end_s: float, colour: str, width: float) -> str:
    points = [
        f"{_x((number + 0.5) * SHARE_S, end_s):.1f},{_SHARE_TOP + _PANEL * (1 - float(share)):.1f}"
        for number, share in enumerate(shares.split())
        if share != "-"
    ]
    return f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def _x(at_s: float, end_s: float) -> float:
    return _LEFT + _PLOT * at_s / end_s
