"""The tables of docs/reports/elastic-evaluation.md: factors beside each system, here and in LoongServe's paper.

.venv/bin/python -m bench.elastic.paper_page
"""

from collections.abc import Iterator, Sequence
from typing import Final

from bench.elastic.paper import PATH
from bench.elastic.paper_search import Measure
from bench.elastic.paper_systems import CHUNKED, STATIC_PD, TP8
from bench.rows import Row, read

PAPER: Final = {TP8.name: (4.64, 4.00), CHUNKED.name: (3.85, 3.37), STATIC_PD.name: (5.81, 3.58)}
"""Of the whole paper, "up to": total and input throughput."""

ARTIFACT: Final = {
    ("ShareGPT", TP8.name): 28 / 7,
    ("ShareGPT", CHUNKED.name): 28 / 20,
    ("ShareGPT", STATIC_PD.name): 28 / 11,
    ("L-Eval", TP8.name): 2.4 / 1.4,
    ("L-Eval", CHUNKED.name): 2.4 / 1.4,
    ("L-Eval", STATIC_PD.name): 2.4 / 0.5,
    ("LV-Eval", TP8.name): 0.2 / 0.08,
    ("LV-Eval", CHUNKED.name): 0.2 / 0.09,
    ("Mixed", TP8.name): 0.6 / 0.23,
    ("Mixed", CHUNKED.name): 0.6 / 0.14,
}
"""By mix: the highest rate that the paper's artifact tries LoongServe with, divided by the peer's."""

ABLATION: Final = {"Zipf 1.0": 2.33, "Zipf 1.2": 1.98, "Zipf 1.4": 1.53}
"""Of the paper: goodput beside the best of the three."""

COLUMNS: Final = (Measure.TOTAL, Measure.INPUT, Measure.ALL, Measure.GOODPUT)


def throughput_table(rows: Sequence[Row]) -> list[str]:
    """Of the paper's mixes."""
    lines = [
        "| mix | beside | total | input | total, input and output | goodput | the paper's artifact |",
        "|---|---|---|---|---|---|---|",
    ]
    for mix, peer in _pairs(rows):
        found = {each.name.split(": ")[1]: each for each in rows if _pair(each) == (mix, peer)}
        if mix in ABLATION:
            continue
        ratios = [f"{found[each].ratio:.2f}" if each in found else "" for each in COLUMNS]
        if not set(found) & set(COLUMNS):
            (refused,) = found.values()
            ratios = [f"refuses {100 * (refused.peer or 0):.1g} % of the requests", "", "", ""]
        artifact = f"{ARTIFACT[mix, peer]:.1f}" if (mix, peer) in ARTIFACT else ""
        lines.append(f"| {mix} | {peer} | {' | '.join(ratios)} | {artifact} |")
    return lines


def ablation_table(rows: Sequence[Row]) -> list[str]:
    """Of the same code with fewer choices."""
    lines = ["| lengths | beside | goodput | the paper, beside its best |", "|---|---|---|---|"]
    for each in rows:
        mix, peer = _pair(each)
        if mix in ABLATION:
            lines.append(f"| {mix} | {peer} | {each.ratio:.2f} | {ABLATION[mix]:.2f} |")
    return lines


def _pairs(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    yield from dict.fromkeys(_pair(each) for each in rows)


def _pair(row: Row) -> tuple[str, str]:
    return row.name.split(": ")[0], row.peer_name or ""


if __name__ == "__main__":
    measured = read(PATH)
    print("\n".join([*throughput_table(measured), "", *ablation_table(measured)]))
