"""How long the dynamic programme of the batching takes."""

import time
from random import Random
from typing import Final

from bench.rows import Row, row
from pointsman.serving.elastic.batching import split_prompts
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime

PROMPTS: Final = 64
INSTANCES: Final = 8
RUNS: Final = 15


def batching_rows(command: str) -> list[Row]:
    """One row. That it equals trying all splits is a property test (tests/unit/serving/elastic/test_batching.py)."""
    degrees = range(1, INSTANCES + 1)
    model = LatencyModel({degree: PrefillTime(0.01, 1e-4 / degree, 1e-8 / degree) for degree in degrees})
    took = []
    for seed in range(RUNS):
        lengths = sorted((Random(f"{seed}/{n}").randint(10, 100_000) for n in range(PROMPTS)), reverse=True)
        slots = [sum(lengths) // INSTANCES + 1] * INSTANCES
        began_s = time.process_time()
        split_prompts(lengths, slots, model)
        took.append((time.process_time() - began_s) * 1e3)
    return [row(f"batching of {PROMPTS} prompts on {INSTANCES} instances", "ms", took, at_most=10, command=command)]
