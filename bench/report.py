"""Renders ``bench/results/*.json``, with a picture where there are few rows, to ``docs/reports/benchmarks.md``, and the
pages of elastic groups: ``make bench-report``.
"""

from bench.elastic import pages as elastic
from bench.pages import render, texts, write, write_picture
from bench.rows import RESULTS, read

MOST_PAIRS = 16  # each on a scale of its own; more than these are read in the table, not in one picture


def main() -> None:
    """Write the page and the pictures."""
    results = []
    for path in sorted(RESULTS.glob("*.json")):
        try:
            rows = read(path)
        except TypeError:
            continue  # results of another form (verify.json) are not rows
        pairs, picture = [row for row in rows if row.peer is not None], ""
        if 0 < len(pairs) <= MOST_PAIRS:
            picture = write_picture(f"benchmark-{path.stem}.svg", render("bars.svg", rows=pairs))
        results.append((path.stem, rows, picture))
    write("benchmarks.md", render("benchmarks.md", results=results, notes=texts("notes")))
    write("elastic-evaluation.md", elastic.evaluation())
    write("elastic-gpu.md", elastic.on_gpu())


if __name__ == "__main__":
    main()
