"""``docs/reports/elastic-evaluation.md`` and ``elastic-gpu.md``, from their templates and what was measured."""

import json
from collections.abc import Sequence
from typing import Any, Final

from bench.elastic.paper import PATH as PAPER
from bench.elastic.paper_search import Measure
from bench.elastic.paper_systems import CHUNKED, STATIC_PD, TP8
from bench.elastic.planned import DAYS
from bench.elastic.planned import PATH as PLANNED
from bench.pages import render
from bench.rows import RESULTS, Row, read

TOKENS: Final = "test_the_tokens_of_a_thousand_prompts_are_those_of_one_model"
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


def evaluation() -> str:
    """The page of elastic groups beside other systems."""
    paper: dict[tuple[str, str], dict[str, Row]] = {}
    for row in read(PAPER):
        mix, what = row.name.split(": ")
        paper.setdefault((mix, row.peer_name or ""), {})[what] = row
    return render(
        "elastic-evaluation.md",
        elastic=read(RESULTS / "elastic.json"),
        tokens=json.loads((RESULTS / "verify.json").read_text())[TOKENS],
        paper=paper,
        measures=[Measure.TOTAL, Measure.INPUT, Measure.ALL, Measure.GOODPUT],
        refused="refused, too long for its memory",
        artifact=ARTIFACT,
        ablation=ABLATION,
        days=[*_days(read(PLANNED))],
    )


def _days(rows: Sequence[Row]) -> list[tuple[Any, list[Row], Row]]:
    """(day, attainment beside each fixed number, GPU-hours) of those that were simulated."""
    found = [(day, [row for row in rows if row.name.startswith(f"{day.name}:")]) for day in DAYS]
    return [(day, shares, hours) for day, here in found if here for *shares, hours in [here]]


def on_gpu() -> str:
    """The page of the engine on a GPU."""
    found = json.loads((RESULTS / "elastic_gpu.json").read_text())

    def seam(dtype: str) -> str:
        of = found["exact"][f"seam_{dtype}"]
        (operation,) = {each for one in of for each in one["operations"]}
        return f"{max(each['output_error'] for each in of):.1g} (`{operation.removesuffix('.default')}`)"

    def alone(dtype: str, what: str) -> list[Any]:
        return [one[what] for name, one in found["exact"].items() if name.endswith(f" {dtype}")]

    def groups(transport: str) -> list[Any]:
        return [*found[f"{transport}_float32"], *found[f"{transport}_plain"]]

    times = [(f"prefill {n}", f"prefill of {n:,} tokens".replace(",", " ")) for n in (2048, 8192, 32_768)]
    times += [(f"decode {n}", f"decode step, {n} × 1 024 tokens of KV") for n in (1, 16, 64)]
    return render("elastic-gpu.md", found=found, seam=seam, alone=alone, groups=groups, times=times)
