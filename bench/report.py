"""Renders ``bench/results/*.json``, with a picture each, to ``docs/reports/benchmarks.md`` and to the pages of elastic
groups: ``make bench-report``.
"""

import sys
from collections.abc import Iterator, Sequence

from bench.elastic import pages as elastic
from bench.pages import render, texts, write, write_picture
from bench.planner.evaluation_page import FIXED, picture_name
from bench.rows import RESULTS, Row, read

_EVALUATION = "planner-evaluation.md"
# Of results with too many rows for one picture, and the page that their pictures lead to.
PICTURES: dict[str, tuple[tuple[str, ...], str]] = {
    "planner": ((*map(picture_name, FIXED),), _EVALUATION),
    "planner_dynamo": (("planner-beside-dynamo.svg",), _EVALUATION),
    "input_broadcast": (("input-broadcast.svg",), "../design/0007-input-broadcast.md"),
}
MOST_PAIRS = 16  # more than these are read in the table, not in one picture


def main() -> int:
    """Write the page and the pictures; returns 1 if there is nothing to render."""
    results = []
    for path in sorted(RESULTS.glob("*.json")):
        try:
            rows = read(path)
        except TypeError:
            continue  # results of another form (verify.json) are not rows
        results.append((path.stem, rows, [*_pictures(path.stem, rows)]))
    page = render("benchmarks.md", results=results, notes=texts("notes"), table=lambda rows: "\n".join(table(rows)))
    print(f"wrote {write('benchmarks.md', page)} of {len(results)} results")
    write("elastic-evaluation.md", elastic.evaluation())
    write("elastic-gpu.md", elastic.on_gpu())
    return 0 if results else 1


def _pictures(name: str, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """(file, page that it leads to)."""
    pairs = [row for row in rows if row.peer is not None]
    if 0 < len(pairs) <= MOST_PAIRS:
        yield write_picture(f"benchmark-{name}.svg", chart(pairs)), ""
    elif name in PICTURES:
        files, page = PICTURES[name]
        yield from ((file, page) for file in files)


def table(rows: Sequence[Row]) -> list[str]:
    """The rows as a Markdown table."""
    return render("rows.md", rows=rows).splitlines()


def chart(rows: Sequence[Row]) -> str:
    """Bars of ours and the peer, a pair a row below its name, each pair on its own scale."""
    return render("bars.svg", rows=rows)


if __name__ == "__main__":
    sys.exit(main())
