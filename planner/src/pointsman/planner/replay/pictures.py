"""Pictures of a replay over time, as SVG: panels under each other with one time axis.

Colours are CSS classes with their own style sheet, so that a picture is readable alone, in a page, and in the dark.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from pointsman.planner.replay.axes import (
    Axis,
    labels,
    linear,
    logarithmic,
    moments,
    number,
    tick_clock,
    tick_unit,
)
from pointsman.planner.replay.table import is_group

_WIDTH: Final = 960
_LEFT, _RIGHT = 64, 28
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_HEIGHT, _GAP, _TOP = 120, 34, 26
_STRIP: Final = 14  # above a plot, for the numbers of the decisions
_DIGIT: Final = 6.5  # its width, in letters of 11
_LOG_FROM: Final = 100.0  # times the least value: below, a linear axis shows both

_Points = list[tuple[float, float | None]]
_Windows = Sequence[Mapping[str, Any]]
_Place = Callable[[float], float]
"""From a value to its place in the picture."""

# Told apart by those who see no red or no green: what does not serve is grey, and neighbours differ in lightness.
STYLE: Final = """
.bg{fill:#fff}.ink{fill:#24292f}.dim{fill:#57606a}.grid{stroke:#d8dee4;stroke-width:1}.goal{stroke:#57606a;stroke-width:1;stroke-dasharray:4 3}
.mark{stroke:#8250df;stroke-width:1;opacity:.55}.line{fill:none;stroke-width:1.6;stroke-linejoin:round}
.f-blue{fill:#2f6fb2}.f-orange{fill:#e39552}.f-grey{fill:#c3cad1}.f-purple{fill:#8250df}.f-slate{fill:#57606a}.f-green{fill:#1f883d}.f-pale{fill:#cfe0f2}
.s-blue{stroke:#2f6fb2}.s-orange{stroke:#c4682d}.s-purple{stroke:#8250df}.s-slate{stroke:#57606a}.s-green{stroke:#1f883d}.s-amber{stroke:#e39552}.s-grey{stroke:#c3cad1}.s-pale{stroke:#cfe0f2}.key{stroke-width:6}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#8b949e}.grid{stroke:#30363d}.goal{stroke:#8b949e}.mark{stroke:#a371f7}
.f-blue{fill:#4184c9}.f-purple{fill:#a371f7}.f-slate{fill:#7d8590}.f-green{fill:#3fb950}.f-pale{fill:#1f3a57}
.s-blue{stroke:#4184c9}.s-purple{stroke:#a371f7}.s-slate{stroke:#7d8590}.s-green{stroke:#3fb950}.s-pale{stroke:#1f3a57}}
"""  # noqa: E501 - a style sheet


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over time. ``kind``: ``line``, ``steps`` (a value holds until the next), ``area`` (filled steps).

    A value of None breaks the curve: what is not known is not drawn.
    """

    name: str
    colour: str
    points: Sequence[tuple[float, float | None]]
    kind: str = "line"


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot; its title names the unit. ``stacked``: areas upon each other, with the numbers of the decisions.

    ``goal``: a dashed line with its name. ``percent``: shares of 0 to 1. ``whole``: what is counted, no fractions.
    ``wide``: values that may lie so far apart that their logarithms are drawn.
    """

    title: str
    curves: Sequence[Curve]
    stacked: bool = False
    goal: tuple[float, str] | None = None
    percent: bool = False
    whole: bool = False
    wide: bool = False


def panels(document: Mapping[str, Any]) -> list[Panel]:
    """The panels of a replay's document."""
    if is_group(document):
        return _group_panels(document)
    windows, timeline = document["windows"], document["timeline"]
    encodes = "encode_workers" in document["simulation"]
    return [
        _requests(windows),
        Panel(
            "workers by role",
            [
                Curve(name, colour, [(point["at_s"], point[key]) for point in timeline], "area")
                for name, key, colour in (
                    ("prefill", "prefill_active", "blue"),
                    ("decode", "decode_active", "orange"),
                    ("switching", "switching", "purple"),
                    ("starting", "starting", "grey"),
                    ("draining", "draining", "slate"),
                )
            ],
            stacked=True,
            whole=True,
        ),
        *(_encoding(timeline) if encodes else ()),
        *_met(document),
        Panel(
            "threshold of remote prefill (new tokens)",
            [
                Curve(
                    "threshold",
                    "purple",
                    [(point["at_s"], point["max_local_prefill_tokens"]) for point in timeline],
                    "steps",
                )
            ],
            whole=True,
        ),
        Panel(
            "requests waiting",
            [
                Curve("for prefill", "blue", [(p["at_s"], p["prefill_queue"]) for p in timeline], "steps"),
                Curve("for decode", "orange", [(p["at_s"], p["decode_waiting"]) for p in timeline], "steps"),
                Curve("queued", "slate", [(p["at_s"], p["held"]) for p in timeline], "steps"),
            ],
            whole=True,
        ),
    ]


def _group_panels(document: Mapping[str, Any]) -> list[Panel]:
    timeline = document["timeline"]
    kinds = (("serving", "green"), ("starting", "grey"), ("draining", "slate"))
    return [
        _requests(document["windows"]),
        Panel(
            "instances",
            [
                Curve(name, colour, [(point["at_s"], point[name]) for point in timeline], "area")
                for name, colour in kinds
            ],
            stacked=True,
            whole=True,
        ),
        Panel(
            "instances of the largest group",
            [Curve("degree", "purple", [(point["at_s"], point["degree"]) for point in timeline], "steps")],
            whole=True,
        ),
        *_met(document),
        Panel(
            "requests",
            [
                Curve("running", "orange", [(point["at_s"], point["running"]) for point in timeline], "steps"),
                Curve("waiting", "blue", [(point["at_s"], point["waiting"]) for point in timeline], "steps"),
            ],
            whole=True,
        ),
    ]


def _requests(windows: _Windows) -> Panel:
    return Panel(
        "requests per second",
        [
            Curve("arrived", "pale", _windowed(windows, lambda w: w["arrivals"] / w["width_s"]), "area"),
            Curve("within objectives", "green", _windowed(windows, lambda w: w["met"] / w["width_s"]), "steps"),
        ],
    )


def _met(document: Mapping[str, Any]) -> tuple[Panel, Panel]:
    windows, objectives = document["windows"], document["objectives"]
    return (
        Panel(
            "share within objectives",
            [Curve("of arrivals", "green", _windowed(windows, _share), "steps")],
            goal=(objectives["attainment"], f"goal {objectives['attainment']:.0%}"),
            percent=True,
        ),
        Panel(
            "time to first token, P95, seconds",
            [Curve("P95", "blue", _windowed(windows, lambda w: _seconds(w["ttft_p95_ms"])), "steps")],
            goal=(objectives["ttft_ms"] / 1000, f"objective {objectives['ttft_ms'] / 1000:g} s")
            if not objectives["ttft_ms_per_prompt_token"]
            else None,
            wide=True,
        ),
    )


def _encoding(timeline: Sequence[Mapping[str, Any]]) -> tuple[Panel, Panel]:
    workers = (("serving", "active", "green"), ("starting", "starting", "grey"), ("draining", "draining", "slate"))
    return (
        Panel(
            "encode workers",
            [
                Curve(name, colour, [(point["at_s"], point[f"encode_{key}"]) for point in timeline], "area")
                for name, key, colour in workers
            ],
            stacked=True,
            whole=True,
        ),
        Panel(
            "images waiting",
            [Curve("images", "green", [(point["at_s"], point["images_waiting"]) for point in timeline], "steps")],
            whole=True,
        ),
    )


def _windowed(windows: _Windows, value: Callable[[Mapping[str, Any]], float | None]) -> _Points:
    """A value of each window, which holds until that ends."""
    end = [(windows[-1]["at_s"] + windows[-1]["width_s"], None)] if windows else []
    return [*((window["at_s"], value(window)) for window in windows), *end]


def layout_changes(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The decisions that changed the layout, in order: the numbered marks of picture and table."""
    return [d for d in document["decisions"] if d["changes_layout"] or d.get("changes_encode")]


def picture(document: Mapping[str, Any], title: str) -> str:
    """All panels of a replay as one SVG document."""
    made = panels(document)
    end_s = max([1.0, *(point["at_s"] for point in document["timeline"]), *(w["at_s"] for w in document["windows"])])
    marks = [decision["at_s"] for decision in layout_changes(document)]
    lines: list[str] = []
    y = _TOP
    for panel in made:
        y += _STRIP * panel.stacked
        lines += _panel(panel, y, end_s, marks)
        y += _HEIGHT + _GAP
    height = y - _GAP + 24
    lines += _times(y - _GAP, end_s)
    said = f"{title} over time: {', '.join(panel.title for panel in made)}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="{escape(said)}">',
            f"<style>{STYLE}</style>",
            f'<rect class="bg" width="{_WIDTH}" height="{height}"/>',
            *lines,
            "</svg>\n",
        ]
    )


# --- drawing ---


def _panel(panel: Panel, y: float, end_s: float, marks: list[float]) -> Iterator[str]:
    heights = _stack(panel.curves) if panel.stacked else [list(curve.points) for curve in panel.curves]
    axis = _axis(panel, [value for points in heights for _, value in points if value is not None])

    def px(at_s: float) -> float:
        return _x(at_s, end_s)

    def py(value: float) -> float:
        return y + _HEIGHT * (1 - axis.share(value))

    yield _title(panel, y - 8 - (_STRIP if panel.stacked and marks else 0), log=axis.log)
    for at_s in moments(end_s):
        yield f'<line class="grid" x1="{px(at_s):.1f}" x2="{px(at_s):.1f}" y1="{y}" y2="{y + _HEIGHT}"/>'
    for value in axis.ticks:
        label = f"{value:.0%}" if panel.percent else number(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{py(value):.1f}" y2="{py(value):.1f}"/>'
        yield f'<text class="dim" x="{_LEFT - 6}" y="{py(value) + 4:.1f}" text-anchor="end">{label}</text>'
    order = list(zip(panel.curves, heights, strict=True))
    for curve, points in reversed(order) if panel.stacked else order:
        yield from _curve(curve, points, px, py, end_s)
    for at_s in marks:
        yield f'<line class="mark" x1="{px(at_s):.1f}" x2="{px(at_s):.1f}" y1="{y}" y2="{y + _HEIGHT}"/>'
    if panel.stacked:
        yield from _numbers(marks, y - 4, px)
    if panel.goal:
        value = py(panel.goal[0])
        yield f'<line class="goal" x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{value:.1f}" y2="{value:.1f}"/>'


def _title(panel: Panel, y: float, *, log: bool) -> str:
    """With the legend behind it in one text, so that it is seen first where only a part of the picture is.

    Its keys are dashes, made thick by a stroke: many a font has no square, and what a font has not may not be drawn.
    """
    keys = [(_key(curve), "—", curve.name) for curve in panel.curves if len(panel.curves) > 1]
    keys += [("dim", "– –", panel.goal[1])] if panel.goal else []
    legend = "".join(
        f'<tspan class="{colour}" dx="14" font-weight="400">{sign}</tspan>'
        f'<tspan class="dim" dx="7" font-weight="400">{escape(name)}</tspan>'
        for colour, sign, name in keys
    )
    title = f"{panel.title} (logarithmic)" if log else panel.title
    return f'<text class="ink" x="{_LEFT}" y="{y}" font-weight="600">{escape(title)}{legend}</text>'


def _key(curve: Curve) -> str:
    """The classes of a legend's dash: an orange area is lighter than an orange line."""
    edge = "amber" if (curve.kind, curve.colour) == ("area", "orange") else curve.colour
    return f"key f-{curve.colour} s-{edge}"


def _x(at_s: float, end_s: float) -> float:
    return _LEFT + _PLOT * min(at_s, end_s) / end_s


def _axis(panel: Panel, known: list[float]) -> Axis:
    if panel.percent:
        return Axis((0.0, 0.5, 1.0))
    goal = [panel.goal[0]] if panel.goal else []
    above = [value for value in (*known, *goal) if value > 0]
    if panel.wide and above and max(above) >= _LOG_FROM * min(above):
        return logarithmic(min(above), max(above))
    return linear(max(known + [value * 1.05 for value in goal], default=0.0), whole=panel.whole)


def _numbers(marks: list[float], y: float, px: _Place) -> Iterator[str]:
    """Of the decisions, above their lines; one label for those that lie close together."""
    for label, middle in labels([px(at_s) for at_s in marks], _DIGIT):
        yield f'<text class="f-purple" x="{middle:.1f}" y="{y:.1f}" font-size="11" text-anchor="middle">{label}</text>'


def _times(y: float, end_s: float) -> Iterator[str]:
    for at_s in moments(end_s):
        label = tick_clock(at_s, end_s)
        yield f'<text class="dim" x="{_x(at_s, end_s):.1f}" y="{y + 16}" text-anchor="middle">{label}</text>'
    yield f'<text class="dim" x="{_LEFT - 24}" y="{y + 16}" text-anchor="end">{tick_unit(end_s)}</text>'


def _curve(
    curve: Curve, points: Sequence[tuple[float, float | None]], px: _Place, py: _Place, end_s: float
) -> Iterator[str]:
    for run in _runs(points, end_s):
        path = f"M{px(run[0][0]):.1f} {py(run[0][1]):.1f}"
        for at_s, value in run[1:]:
            path += f"L{px(at_s):.1f} {py(value):.1f}" if curve.kind == "line" else f"H{px(at_s):.1f}V{py(value):.1f}"
        if curve.kind == "area":
            path += f"V{py(0):.1f}H{px(run[0][0]):.1f}Z"
            yield f'<path class="f-{curve.colour}" d="{path}"><title>{escape(curve.name)}</title></path>'
        else:
            yield f'<path class="line s-{curve.colour}" d="{path}"><title>{escape(curve.name)}</title></path>'


def _runs(points: Sequence[tuple[float, float | None]], end_s: float) -> Iterator[list[tuple[float, float]]]:
    """The pieces between unknown values, without the points that change nothing; the last value holds to the end."""
    run: list[tuple[float, float]] = []
    for index, (at_s, value) in enumerate(points):
        if value is None:
            if run:
                yield [*run, (at_s, run[-1][1])]
            run = []
            continue
        inner = 0 < index < len(points) - 1
        if inner and run and run[-1][1] == value and points[index + 1][1] == value:
            continue
        run.append((at_s, value))
    if run:
        yield [*run, (end_s, run[-1][1])]


def _stack(curves: Sequence[Curve]) -> list[list[tuple[float, float | None]]]:
    """Each curve on top of those before it; all have the same times."""
    below: dict[float, float] = {}
    found = []
    for curve in curves:
        for at_s, value in curve.points:
            below[at_s] = below.get(at_s, 0.0) + (value or 0.0)
        found.append([(at_s, below[at_s]) for at_s, _ in curve.points])
    return [list(points) for points in found]


def _share(window: Mapping[str, Any]) -> float | None:
    return window["met"] / window["arrivals"] if window["arrivals"] else None


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
