"""``docs/reports/elastic-evaluation.md`` and ``elastic-gpu.md``, from their templates and what was measured."""

import json
from collections import defaultdict
from typing import Final

from bench.elastic.paper import PATH as PAPER
from bench.elastic.paper import REFUSED
from bench.elastic.paper_search import MEASURES
from bench.elastic.planned import DAYS
from bench.elastic.planned import PATH as PLANNED
from bench.pages import render
from bench.rows import RESULTS, Row, data, read

TOKENS: Final = "test_the_tokens_of_a_thousand_prompts_are_those_of_one_model"


def evaluation() -> str:
    """The page of elastic groups beside other systems."""
    paper: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in read(PAPER):
        mix, what = row.name.split(": ")
        paper[mix, row.peer_name or ""][what] = row
    planned = read(PLANNED)
    return render(
        "elastic-evaluation.md",
        elastic=read(RESULTS / "elastic.json"),
        tokens=json.loads((RESULTS / "verify.json").read_text())[TOKENS],
        paper=paper,
        measures=MEASURES,
        refused=REFUSED,
        loongserve=data("loongserve"),
        days=[(day, [row for row in planned if row.name.startswith(f"{day.name}:")]) for day in DAYS],
    )


def on_gpu() -> str:
    """The page of the engine on a GPU."""
    found = json.loads((RESULTS / "elastic_gpu.json").read_text())
    exact = found["exact"].items()
    alone = {dtype: [of for name, of in exact if name.endswith(dtype)] for dtype in ("float32", "bfloat16")}
    groups = {each: [*found[f"{each}_float32"], *found[f"{each}_plain"]] for each in ("gloo", "hosts")}
    return render("elastic-gpu.md", found=found, alone=alone, groups=groups)
