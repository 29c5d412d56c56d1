"""The workloads of the comparison: arrivals, lengths, engines, objectives and the layout everyone starts with.

Those that ``bench/data/dynamo.yaml`` lists make the published means. Everything random is seeded. Requests of the
synthetic and the Azure traces share no prefix.
"""

import hashlib
import json
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.planner.loads import Piece
from bench.rows import data

from pointsman.planner.replay.requests import Arrived

SETUP: dict[str, Any] = data("dynamo")
LOADS: dict[str, dict[str, Any]] = SETUP["loads"]
CONFIGURATIONS: dict[str, dict[str, Any]] = SETUP["documented"] | SETUP["tuned"]
MAX_GPUS: int = SETUP["max_gpus"]
RANDOM = "random"  # the name of those that ``random_traces`` makes
BLOCK_TOKENS = 512  # of Mooncake's hash ids
TRACES = Path(__file__).with_name("traces")


@dataclass(frozen=True, eq=False)
class Workload:
    """A trace file and what an operator would know before it runs: the engine's limits, objectives, first layout."""

    name: str
    seed: int
    requests: Sequence[Arrived]
    prefill_engine: dict[str, Any]
    decode_engine: dict[str, Any]
    ttft_ms: float
    itl_ms: float
    first: Sequence[int]  # prefill, decode
    context_tokens: int = 32768
    smoothings: Sequence[tuple[float, float]] = ((5, 1), (20, 1))  # of the clairvoyant's demand: s, starts to bridge
    causal_window_s: float = 5
    shape: str = ""  # of a random load

    @property
    def path(self) -> Path:
        """Of the trace file."""
        return TRACES / f"{self.name}-{self.seed}.jsonl"

    def write(self) -> str:
        """Write the trace file. The digest of it: results of another one are not comparable."""
        TRACES.mkdir(exist_ok=True)
        text = "".join(_line(number, request) for number, request in enumerate(self.requests))
        self.path.write_text(text)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _line(number: int, request: Arrived) -> str:
    own = range(number * 1000, number * 1000 - (-request.prompt_tokens // BLOCK_TOKENS))
    line = {
        "timestamp": int(request.arrival_s * 1000),
        "input_length": request.prompt_tokens,
        "output_length": request.output_tokens,
        "hash_ids": [*(request.prefix_blocks or own)],
    }
    return json.dumps(line) + "\n"


def workload(name: str, seed: int) -> Workload:
    """One of ``LOADS``."""
    if name == "azure_conv":
        requests = azure_requests(copies=2, shift_s=600.0)
    elif name == "moon_conv":
        requests = mooncake_requests(seed * 1000 + 6)
    else:
        requests = _synthetic(seed, **LOADS[name]["trace"])
    return Workload(name, seed, sorted(requests, key=lambda request: request.arrival_s), **LOADS[name]["workload"])


def _synthetic(
    seed: int, rates: list[tuple[float, float]], lengths: list[tuple[float, float, float]], stream: int | None = None
) -> Iterator[Arrived]:
    """A Poisson process by thinning one at the highest rate; without a ``stream``, by the rate at the one before."""
    draw = random.Random(seed if stream is None else seed * 1000 + stream)
    times_s, heights = zip(*rates, strict=True)
    peak, t = max(heights), 0.0
    while t < times_s[-1]:
        rate = float(np.interp(t, times_s, heights))
        t += draw.expovariate(rate if stream is None else peak)
        if stream is None or (t < times_s[-1] and draw.random() * peak <= np.interp(t, times_s, heights)):
            _, prompt, output = lengths[bisect_right(lengths, t, key=lambda each: each[0]) - 1]
            yield Arrived(t, max(64, int(draw.gauss(prompt, prompt / 4))), max(8, int(draw.gauss(output, output / 4))))


def azure_requests(copies: int, shift_s: float) -> Iterator[Arrived]:
    """Azure's conversation trace of 2023 (CC-BY-4.0), laid over itself shifted in time."""
    requests = [*_recorded("azure-llm-2023/AzureLLMInferenceTrace_conv.csv.xz", 0)]
    for copy in range(copies):
        for each in requests:
            yield each._replace(arrival_s=(each.arrival_s + copy * shift_s) % requests[-1].arrival_s)


def mooncake_requests(seed: int) -> Iterator[Arrived]:
    """Mooncake's conversation trace (Apache-2.0); its stamps are binned at 3 s, so they are spread again."""
    return _recorded("mooncake/conversation_trace.jsonl.xz", seed)


def _recorded(source: str, seed: int) -> Iterator[Arrived]:
    """Of a file: no prompt has fewer than 16 tokens here, and no answer fewer than 2."""
    for each in Piece(source=source, to_s=math.inf).requests(seed, 0):
        yield each._replace(prompt_tokens=max(16, each.prompt_tokens), output_tokens=max(2, each.output_tokens))
