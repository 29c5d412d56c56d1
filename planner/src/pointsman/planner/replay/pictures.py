"""Pictures of a replay over time, as SVG: panels under each other with one time axis.

Colours are CSS classes with their own style sheet, so that a picture is readable alone, in a page, and in the dark.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

_WIDTH: Final = 960
_LEFT, _RIGHT = 64, 140
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_HEIGHT, _GAP, _TOP = 120, 34, 26
_LABEL_WIDTH: Final = 14.0  # of the number of a decision

STYLE: Final = """
.bg{fill:#fff}.ink{fill:#24292f}.dim{fill:#57606a}.grid{stroke:#d8dee4;stroke-width:1}.goal{stroke:#57606a;stroke-width:1;stroke-dasharray:4 3}
.mark{stroke:#8250df;stroke-width:1;opacity:.55}.line{fill:none;stroke-width:1.6;stroke-linejoin:round}
.f-blue{fill:#2f6fb2}.f-orange{fill:#c4682d}.f-grey{fill:#afb8c1}.f-purple{fill:#8250df}.f-red{fill:#cf222e}.f-green{fill:#2da44e}.f-pale{fill:#cfe0f2}
.s-blue{stroke:#2f6fb2}.s-orange{stroke:#c4682d}.s-grey{stroke:#afb8c1}.s-purple{stroke:#8250df}.s-red{stroke:#cf222e}.s-green{stroke:#2da44e}
@media (prefers-color-scheme:dark){.bg{fill:#0d1117}.ink{fill:#e6edf3}.dim{fill:#8b949e}.grid{stroke:#30363d}.goal{stroke:#8b949e}.f-pale{fill:#1f3a57}}
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
    """One plot. ``stacked``: areas upon each other. ``goal``: a dashed line with its name. ``top``: least upper end."""

    title: str
    curves: Sequence[Curve]
    stacked: bool = False
    goal: tuple[float, str] | None = None
    top: float = 0.0
    percent: bool = False


def panels(document: Mapping[str, Any]) -> list[Panel]:
    """The panels of a replay's document."""
    windows, timeline = document["windows"], document["timeline"]
    objectives, encodes = document["objectives"], "encode_workers" in document["simulation"]
    return [
        Panel(
            "requests per second",
            [
                Curve("arrived", "pale", [(w["at_s"], w["arrivals"] / w["width_s"]) for w in windows], "area"),
                Curve("within objectives", "green", [(w["at_s"], w["met"] / w["width_s"]) for w in windows], "steps"),
            ],
        ),
        Panel(
            "workers by role",
            [
                Curve(name, colour, [(point["at_s"], point[key]) for point in timeline], "area")
                for name, key, colour in (
                    ("prefill", "prefill_active", "blue"),
                    ("decode", "decode_active", "orange"),
                    ("switching", "switching", "purple"),
                    ("starting", "starting", "grey"),
                    ("draining", "draining", "red"),
                )
            ],
            stacked=True,
        ),
        *(_encoding(timeline) if encodes else ()),
        Panel(
            "share within objectives",
            [Curve("of arrivals", "green", [(w["at_s"], _share(w)) for w in windows], "steps")],
            goal=(objectives["attainment"], f"goal {objectives['attainment']:.0%}"),
            top=1.0,
            percent=True,
        ),
        Panel(
            "time to first token, P95, seconds",
            [Curve("P95", "blue", [(w["at_s"], _seconds(w["ttft_p95_ms"])) for w in windows], "steps")],
            goal=(objectives["ttft_ms"] / 1000, f"objective {objectives['ttft_ms'] / 1000:g} s")
            if not objectives["ttft_ms_per_prompt_token"]
            else None,
        ),
        Panel(
            "prompts up to so many new tokens stay local",
            [
                Curve(
                    "threshold",
                    "purple",
                    [(point["at_s"], point["max_local_prefill_tokens"]) for point in timeline],
                    "steps",
                )
            ],
        ),
        Panel(
            "requests waiting",
            [
                Curve("for prefill", "blue", [(p["at_s"], p["prefill_queue"]) for p in timeline], "steps"),
                Curve("for decode", "orange", [(p["at_s"], p["decode_waiting"]) for p in timeline], "steps"),
                Curve("held back", "grey", [(p["at_s"], p["held"]) for p in timeline], "steps"),
            ],
        ),
    ]


def _encoding(timeline: Sequence[Mapping[str, Any]]) -> tuple[Panel, Panel]:
    workers = (("serving", "active", "green"), ("starting", "starting", "grey"), ("draining", "draining", "red"))
    return (
        Panel(
            "encode workers",
            [
                Curve(name, colour, [(point["at_s"], point[f"encode_{key}"]) for point in timeline], "area")
                for name, key, colour in workers
            ],
            stacked=True,
        ),
        Panel(
            "images waiting",
            [Curve("images", "green", [(point["at_s"], point["images_waiting"]) for point in timeline], "steps")],
        ),
    )


def layout_changes(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The decisions that changed the layout, in order: the numbered marks of picture and table."""
    return [d for d in document["decisions"] if d["changes_layout"] or d.get("changes_encode")]


def picture(document: Mapping[str, Any], title: str) -> str:
    """All panels of a replay as one SVG document."""
    made = panels(document)
    end_s = max([1.0, *(point["at_s"] for point in document["timeline"]), *(w["at_s"] for w in document["windows"])])
    height = _TOP + len(made) * (_HEIGHT + _GAP) + 24
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<rect class="bg" width="{_WIDTH}" height="{height}"/>',
    ]
    marks = [(number, decision["at_s"]) for number, decision in enumerate(layout_changes(document), start=1)]
    for index, panel in enumerate(made):
        lines += _panel(panel, _TOP + index * (_HEIGHT + _GAP), end_s, marks, last=index == len(made) - 1)
    return "\n".join([*lines, "</svg>"]) + "\n"


# --- drawing ---


def _panel(panel: Panel, y: float, end_s: float, marks: list[tuple[int, float]], *, last: bool) -> Iterator[str]:
    heights = _stack(panel.curves) if panel.stacked else [list(curve.points) for curve in panel.curves]
    known = [value for points in heights for _, value in points if value is not None]
    goal = [panel.goal[0]] if panel.goal else []
    top = _nice(max([panel.top, 1e-9, *known, *(value * 1.05 for value in goal if not panel.percent)]))
    if panel.percent:
        top = 1.0

    def px(at_s: float) -> float:
        return _LEFT + _PLOT * min(at_s, end_s) / end_s

    def py(value: float) -> float:
        return y + _HEIGHT * (1 - min(max(value, 0.0), top) / top)

    yield f'<text class="ink" x="{_LEFT}" y="{y - 8:.1f}" font-weight="600">{escape(panel.title)}</text>'
    for part in (0, 0.5, 1.0):
        value = top * part
        label = f"{value:.0%}" if panel.percent else f"{value:g}"
        yield f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{py(value):.1f}" y2="{py(value):.1f}"/>'
        yield f'<text class="dim" x="{_LEFT - 6}" y="{py(value) + 4:.1f}" text-anchor="end">{label}</text>'
    order = list(zip(panel.curves, heights, strict=True))
    for curve, points in reversed(order) if panel.stacked else order:
        yield from _curve(curve, points, px, py, end_s)
    labelled = -_LABEL_WIDTH
    for number, at_s in marks:
        yield f'<line class="mark" x1="{px(at_s):.1f}" x2="{px(at_s):.1f}" y1="{y}" y2="{y + _HEIGHT}"/>'
        if panel.stacked and px(at_s) - labelled >= _LABEL_WIDTH:  # numbers upon each other could not be read
            labelled = px(at_s)
            yield f'<text class="f-purple" x="{px(at_s) + 2:.1f}" y="{y + 10}" font-size="10">{number}</text>'
    if panel.goal:
        value, name = panel.goal
        yield f'<line class="goal" x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{py(value):.1f}" y2="{py(value):.1f}"/>'
        yield f'<text class="dim" x="{_LEFT + _PLOT + 8}" y="{py(value) + 4:.1f}">{escape(name)}</text>'
    for row, curve in enumerate(panel.curves if len(panel.curves) > 1 else ()):
        line = y + _HEIGHT - 16 * (len(panel.curves) - row) + 10
        yield f'<rect class="f-{curve.colour}" x="{_LEFT + _PLOT + 8}" y="{line - 9}" width="10" height="10"/>'
        yield f'<text class="dim" x="{_LEFT + _PLOT + 22}" y="{line}">{escape(curve.name)}</text>'
    for at_s in _ticks(end_s) if last else ():
        yield f'<text class="dim" x="{px(at_s):.1f}" y="{y + _HEIGHT + 16}" text-anchor="middle">{_clock(at_s)}</text>'


def _curve(curve: Curve, points: Sequence[tuple[float, float | None]], px: Any, py: Any, end_s: float) -> Iterator[str]:
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
    for number, (at_s, value) in enumerate(points):
        if value is None:
            if run:
                yield [*run, (at_s, run[-1][1])]
            run = []
            continue
        inner = 0 < number < len(points) - 1
        if inner and run and run[-1][1] == value and points[number + 1][1] == value:
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


def _nice(value: float) -> float:
    """The next of 1, 2, 2.5, 4, 5, 8, 10 times a power of ten."""
    scale = 10.0 ** math.floor(math.log10(value))
    return next(scale * step for step in (1, 2, 2.5, 4, 5, 8, 10) if scale * step >= value * 0.999)


def _ticks(end_s: float) -> Iterator[float]:
    steps = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
    step = next((step for step in steps if end_s / step <= 12), 86400.0)
    at_s = 0.0
    while at_s <= end_s + 1e-6:
        yield at_s
        at_s += step


def _clock(at_s: float) -> str:
    minutes, seconds = divmod(round(at_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _share(window: Mapping[str, Any]) -> float | None:
    return window["met"] / window["arrivals"] if window["arrivals"] else None


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
