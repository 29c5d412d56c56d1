"""The picture of all modes over payload size, concurrency and ranks."""

import statistics
from collections.abc import Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

_COLOURS: Final = {
    "sync": "#8c959f", "delayed": "#c4682d", "combined": "#b08800", "async": "#2f6fb2", "auto": "#1a7f37",
}  # fmt: skip
_INK: Final = "#57606a"
_PANEL_WIDTH, _PANEL_HEIGHT, _BAR, _TOP, _LEFT, _GAP = 270, 150, 14, 70, 20, 60


def draw(cells: Sequence[dict[str, Any]]) -> str:
    """An SVG: a panel for each size and number of ranks, requests a second beside the best mode of each concurrency."""
    sizes = sorted({cell["size_kib"] for cell in cells})
    ranks = sorted({cell["ranks"] for cell in cells})
    width = _LEFT + len(sizes) * (_PANEL_WIDTH + 20)
    height = _TOP + len(ranks) * (_PANEL_HEIGHT + _GAP) + 10
    said = "Requests a second of each mode of input broadcast, beside the best mode, by size, concurrency and ranks"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img" aria-label="{said}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_LEFT, 20, "Requests a second; a full bar is the best mode at that concurrency, its number is above it"),
    ]
    for number, (mode, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + number * 100
        lines += [f'<rect x="{x}" y="31" width="11" height="11" fill="{colour}"/>', _text(x + 16, 41, mode)]
    for row, world_size in enumerate(ranks):
        for column, size in enumerate(sizes):
            x, y = _LEFT + column * (_PANEL_WIDTH + 20), _TOP + row * (_PANEL_HEIGHT + _GAP)
            own = [cell for cell in cells if (cell["ranks"], cell["size_kib"]) == (world_size, size)]
            lines += _panel(x, y, f"{_size(size)}, {world_size} ranks", own)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(x: int, y: int, title: str, cells: Sequence[dict[str, Any]]) -> list[str]:
    lines = [_text(x, y + 4, title)]
    base = y + _PANEL_HEIGHT
    for number, concurrency in enumerate(sorted({cell["concurrency"] for cell in cells})):
        group = {
            c["mode"]: statistics.median(r["qps"] for r in c["runs"]) for c in cells if c["concurrency"] == concurrency
        }
        best = max(group.values())
        left = x + number * (_PANEL_WIDTH // 3)
        lines.append(_text(left, y + 24, f"{best:.3g}/s"))
        for place, (mode, colour) in enumerate(_COLOURS.items()):
            tall = (_PANEL_HEIGHT - 34) * group[mode] / best
            lines.append(
                f'<rect x="{left + place * (_BAR + 1)}" y="{base - tall:.1f}" width="{_BAR}" height="{tall:.1f}" '
                f'fill="{colour}"><title>{mode}: {group[mode]:.3g} requests/s</title></rect>'
            )
        lines.append(_text(left, base + 18, f"{concurrency} at once"))
    return lines


def _size(kib: int) -> str:
    return f"{kib} KiB" if kib < 1024 else f"{kib // 1024} MiB"


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{_INK}">{escape(text)}</text>'
