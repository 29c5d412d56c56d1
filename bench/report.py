"""Renders ``bench/results/*.json``, with a picture each, to ``docs/reports/benchmarks.md`` and to the pages of elastic
groups: ``make bench-report``.
"""

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


def main() -> None:
    """Write the page and the pictures."""
    results = []
    for path in sorted(RESULTS.glob("*.json")):
        try:
            rows = read(path)
        except TypeError:
            continue  # results of another form (verify.json) are not rows
        results.append((path.stem, rows, [*_pictures(path.stem, rows)]))
    write("benchmarks.md", render("benchmarks.md", results=results, notes=texts("notes")))
    write("elastic-evaluation.md", elastic.evaluation())
    write("elastic-gpu.md", elastic.on_gpu())


def _pictures(name: str, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """(file, page that it leads to). Bars have each pair on its own scale."""
    pairs = [row for row in rows if row.peer is not None]
    if 0 < len(pairs) <= MOST_PAIRS:
        yield write_picture(f"benchmark-{name}.svg", render("bars.svg", rows=pairs)), ""
    elif name in PICTURES:
        files, page = PICTURES[name]
        yield from ((file, page) for file in files)


if __name__ == "__main__":
    main()
