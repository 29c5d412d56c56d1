"""``make quickstart-picture``: records a run of the quick start, and draws it as the terminal that the README shows."""

import subprocess
import sys
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from pointsman.local.errors import LocalError
from pointsman.local.quickstart.examples import EXAMPLE
from pointsman.local.quickstart.report import MAX_WIDTH
from pointsman.local.typed_command import typed_command

ROOT: Final = EXAMPLE.parents[1]
RECORDING: Final = ROOT / "docs" / "use" / "pictures" / "quickstart.txt"
PICTURE: Final = RECORDING.with_suffix(".svg")
README: Final = ROOT / "README.md"
BEGIN: Final = "<!-- The report of one run: made by `make quickstart-picture` -->"
END: Final = "<!-- until here -->"
COMMAND: Final = "$ make quickstart"
REPORT: Final = "Report"
SPEED: Final = 8
"""The picture plays a run so many times as fast."""
_LETTER_PX, _LINE_PX, _MARGIN_PX = 8.6, 20, 20
_STYLE: Final = """\
.bg{fill:#0d1117}text{fill:#b4bcc5;font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}
.head{fill:#f0f6fc;font-weight:600}
@media (prefers-reduced-motion:no-preference){text{animation:appear 1ms both}}
@keyframes appear{from{opacity:0}}"""


class NotRecorded(LocalError):
    """The run that was to be recorded failed."""


class Line(NamedTuple):
    """What a run printed, ``at_s`` seconds after its start."""

    at_s: float
    text: str


def main(arguments: Sequence[str]) -> int:
    """Record a run with these options of the quick start, then write the recording, the picture and the README."""
    lines = record([*typed_command().split(), "quickstart", *arguments])
    RECORDING.write_text("".join(f"{line.at_s:6.1f} {line.text}".rstrip() + "\n" for line in lines))
    lines = read()
    PICTURE.write_text(picture(lines))
    README.write_text(in_readme(README.read_text(), lines))
    return 0


def record(command: Sequence[str]) -> list[Line]:
    """What ``command`` prints up to the end of its report, and when. Raises NotRecorded if it fails."""
    started_s = time.monotonic()
    lines = [Line(0.0, COMMAND)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for text in running.stdout:
            lines.append(Line(time.monotonic() - started_s, text.rstrip()))
            print(text, end="", flush=True)
    if running.returncode:
        raise NotRecorded(f"{' '.join(command)} ended with {running.returncode}")
    texts = [line.text for line in lines]
    begin = texts.index(REPORT) if REPORT in texts else 0
    end = texts.index("", begin) if "" in texts[begin:] else len(texts)
    return lines[:end]


def read(path: Path = RECORDING) -> list[Line]:
    """The recording that is kept."""
    return [Line(float(text[:6]), text[7:]) for text in path.read_text().splitlines()]


def report(lines: Sequence[Line]) -> list[str]:
    """The closing report of a recording, without its heading."""
    texts = [line.text for line in lines]
    return texts[texts.index(REPORT) + 1 :]


def picture(lines: Sequence[Line]) -> str:
    """The run as an SVG that plays once and then stays; who wants no motion sees the end at once."""
    width, height = round(MAX_WIDTH * _LETTER_PX) + 2 * _MARGIN_PX, len(lines) * _LINE_PX + 2 * _MARGIN_PX
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="A run of make quickstart, {SPEED} times as fast">',
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="bg" width="{width}" height="{height}" rx="8"/>',
    ]
    for number, line in enumerate(lines):
        if line.text:
            kind = ' class="head"' if not line.text.startswith(" ") else ""
            delay = f' style="animation-delay:{line.at_s / SPEED:.2f}s"'
            y = _MARGIN_PX + number * _LINE_PX + 14
            drawn.append(f'<text{kind} x="{_MARGIN_PX}" y="{y}"{delay} xml:space="preserve">{escape(line.text)}</text>')
    return "\n".join([*drawn, "</svg>"]) + "\n"


def in_readme(readme: str, lines: Sequence[Line]) -> str:
    """The README with this report between its marks."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END, 1)
    return "\n".join([before + BEGIN, "", "```text", REPORT, *report(lines), "```", "", END + after])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
