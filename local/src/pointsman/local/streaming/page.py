"""The HTML report: figures, the requests over time, and the distribution of inter-token latencies. No scripts.

One run is drawn blue; of two, the first is orange and the second blue.
"""

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from math import log10

from pointsman.local.streaming.figures import LATENCIES, Difference, Figures, Sample, differences
from pointsman.local.streaming.result_file import Result

_STYLE = """\
:root { color-scheme: light dark; --ink: #1f2328; --dim: #57606a; --line: #d0d7de; --paper: #ffffff;
  --new: #2f6fb2; --old: #b3531b }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --dim: #9aa4af; --line: #3d444d; --paper: #0d1117;
    --new: #6cb0f5; --old: #f0965a }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } .scroll { overflow-x: auto }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto } svg text { fill: var(--dim); font: 14px system-ui, sans-serif }
.dim { color: var(--dim) }
"""
_WIDTH, _LEFT, _RIGHT = 900, 70, 20


def page(runs: Sequence[tuple[str, Result]]) -> str:
    """The page of one run, or of two to compare; each with the name under which it is shown."""
    titles = " and ".join(name for name, _ in runs)
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>Streaming benchmark: {escape(titles)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>Streaming benchmark: {escape(titles)}</h1>",
        *(_settings(name, result) for name, result in runs),
        "<h2>Figures</h2>",
        '<div class="scroll">' + (_one(runs[0][1].figures) if len(runs) == 1 else _two(runs)) + "</div>",
        "<h2>Inter-token latencies</h2>",
        '<p class="dim">Share of all gaps between two tokens that were at most so long. The scale is logarithmic.</p>',
        _distribution(runs),
    ]
    for name, result in runs:
        parts += [
            f"<h2>Requests of {escape(name)}</h2>" if len(runs) > 1 else "<h2>Requests</h2>",
            '<p class="dim">One line a request from its submission to its end; pale until the first token.</p>',
            _timeline(result.samples, "new" if name == runs[-1][0] else "old"),
        ]
    return "\n".join([*parts, "</body></html>", ""])


def _settings(name: str, result: Result) -> str:
    said = ", ".join(f"{key} {value}" for key, value in result.settings.items() if value is not None)
    return f'<p class="dim">{escape(name)}: {escape(result.model)} at {escape(result.endpoint)}; {escape(said)}</p>'


def _one(figures: Figures) -> str:
    rows = "".join(
        f"<tr><td>{label}</td>"
        + "".join(f"<td>{_number(value)} ms</td>" for value in (at.p50, at.p95, at.p99))
        + "</tr>"
        for label, at in ((label, getattr(figures, field)) for field, label in LATENCIES.items())
    )
    return (
        f"<table><tr><th></th><th>p50</th><th>p95</th><th>p99</th></tr>{rows}</table>"
        f"<p>{figures.requests} requests, {figures.failed} failed; {_number(figures.throughput)} completion tokens/s; "
        f"submitted in {figures.submit_wall_s:.3f} s</p>"
    )


def _two(runs: Sequence[tuple[str, Result]]) -> str:
    (before_name, before), (after_name, after) = runs
    rows = "".join(_difference(each) for each in differences(before.figures, after.figures))
    head = f"<th></th><th>{escape(before_name)}</th><th>{escape(after_name)}</th><th>ratio</th>"
    return f"<table><tr>{head}</tr>{rows}</table>"


def _difference(each: Difference) -> str:
    ratio = "" if each.ratio is None else f"{each.ratio:.2f}"
    values = "".join(f"<td>{_number(value)} {each.unit}</td>" for value in (each.before, each.after))
    return f"<tr><td>{each.name}</td>{values}<td>{ratio}</td></tr>"


def _distribution(runs: Sequence[tuple[str, Result]]) -> str:
    height, bottom = 280, 240
    gaps = [
        sorted(max(b - a, 1e-5) for sample in result.samples for a, b in pairwise(sample.chunks_s))
        for _, result in runs
    ]
    known = [value for each in gaps for value in each]
    if not known:
        return '<p class="dim">No answer had two tokens.</p>'
    decades = _decades(min(known), max(known))
    low, high = decades[0], decades[-1]

    def x(seconds: float) -> float:
        return _LEFT + (log10(seconds) - log10(low)) / (log10(high) - log10(low)) * (_WIDTH - _LEFT - _RIGHT)

    def y(share: float) -> float:
        return bottom - share * (bottom - 20)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="distribution of inter-token latencies">']
    for share in (0.0, 0.5, 0.95, 1.0):
        parts.append(_line(_LEFT, y(share), _WIDTH - _RIGHT, y(share)))
        parts.append(f'<text x="{_LEFT - 8}" y="{y(share) + 5:.0f}" text-anchor="end">{share:.0%}</text>')
    for second in decades:
        parts.append(_line(x(second), 20, x(second), bottom))
        parts.append(f'<text x="{x(second):.0f}" y="{bottom + 20}" text-anchor="middle">{second * 1000:g} ms</text>')
    for number, each in enumerate(gaps):
        colour = "new" if number == len(gaps) - 1 else "old"
        points = " ".join(f"{x(value):.1f},{y((rank + 1) / len(each)):.1f}" for rank, value in enumerate(each))
        parts.append(f'<polyline points="{points}" fill="none" stroke="var(--{colour})" stroke-width="2"/>')
        if len(gaps) > 1:
            name = escape(runs[number][0])
            parts.append(f'<text x="{_LEFT + 12}" y="{40 + 20 * number}" style="fill: var(--{colour})">{name}</text>')
    return "".join([*parts, "</svg>"])


def _timeline(samples: Sequence[Sample], colour: str) -> str:
    ended = [sample.submitted_s + sample.ended_s for sample in samples if sample.ended_s is not None]
    if not ended:
        return '<p class="dim">No request was answered.</p>'
    last, step = max(ended), max(3, min(14, 600 // len(samples)))
    height = 20 + step * len(samples) + 30

    def x(seconds: float) -> float:
        return _LEFT + seconds / last * (_WIDTH - _LEFT - _RIGHT)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="requests over time">']
    for quarter in range(5):
        at = last * quarter / 4
        anchor = "end" if quarter == 4 else "middle"
        parts.append(_line(x(at), 10, x(at), height - 28))
        parts.append(f'<text x="{x(at):.0f}" y="{height - 8}" text-anchor="{anchor}">{at:.1f} s</text>')
    for number, sample in enumerate(samples):
        if sample.ended_s is None:
            continue
        top = 14 + number * step
        begun = sample.submitted_s
        first = begun + (sample.chunks_s[0] if sample.chunks_s else sample.ended_s)
        end = begun + sample.ended_s
        for start, stop, opacity in ((begun, first, 0.3), (first, end, 1.0)):
            width = max(x(stop) - x(start), 0.5)
            parts.append(
                f'<rect x="{x(start):.1f}" y="{top}" width="{width:.1f}" height="{step - 1}" fill="var(--{colour})" '
                f'opacity="{opacity}"/>'
            )
    return "".join([*parts, "</svg>"])


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--line)"/>'


def _decades(low: float, high: float) -> list[float]:
    steps = [1e-5]
    while steps[-1] < high:
        steps.append(steps[-1] * 10)
    return [step for index, step in enumerate(steps) if index + 1 >= len(steps) - 1 or steps[index + 1] > low]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.2f}"
