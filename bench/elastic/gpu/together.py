"""Two instances on one GPU, without a manager: how long their iterations take over gloo.

    python -m bench.elastic.gpu.together DEVICE FOLDER

``FOLDER``: with the model that `alone` makes. Runs in the engine environment.
"""

import sys
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.elastic.gpu.findings import Findings
from bench.elastic.gpu.models import Sizes
from bench.elastic.iterations import STEPS, decode_s, latency_row, prefill_s, prompt, scale_down_row, scale_up_row
from engine.elastic.members import Members


def times(members: Members, degree: int, sizes: Sizes) -> dict[str, list[float]]:
    """Prefills, the first of each not counted, and decode steps of requests whose KV is on all members."""
    every = range(degree)
    found = {}
    for tokens in sizes.lengths:
        took = [prefill_s(members, degree, [prompt("p", tokens, every, n)]) for n in range(sizes.repeats + 1)]
        found[f"prefill {tokens}"] = took[1:]
    return found | {f"decode {each}": decode_s(members, degree, every, each, sizes.context) for each in sizes.batches}


def latency(members: Members, degree: int, slots: int, sizes: Sizes, measured: dict[str, list[float]]) -> Any:
    """How well the fitted model predicts prefills, also the ``measured`` ones."""
    row, model = latency_row(members, degree, slots, sizes.lengths[-2], sizes.lengths[-1])
    beside = {n: [model.seconds(n, n**2), median(measured[f"prefill {n}"])] for n in sizes.lengths}
    return {"row": asdict(row), "model": asdict(model), "predicted and measured": beside}


def main(device: str, folder: Path) -> None:
    """All of it."""
    findings, sizes = Findings(), Sizes.on(device)
    slots = max(sizes.lengths[-1], sizes.batches[-1] * (sizes.context + STEPS)) + 4096
    transport = "gpu" if device == "cuda" else "gloo"
    with closing(Members(folder, 2, slots, dtype="bfloat16", transport=transport)) as members:
        for degree in (1, 2):
            findings.step(f"degree {degree}", partial(times, members, degree, sizes))
            measured = findings.found[f"degree {degree}"]
            findings.step(f"latency {degree}", partial(latency, members, degree, slots, sizes, measured))
        findings.step("scale down", lambda: asdict(scale_down_row(members)))
        findings.step("scale up", lambda: asdict(scale_up_row(members)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
