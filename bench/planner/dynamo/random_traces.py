"""Loads that nobody made a planner for: everything of one comes from its seed; one in three is a recorded piece."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from bench.planner.dynamo.references import SHORTEST_STEP_MS, capacity, pass_s
from bench.planner.dynamo.workloads import MAX_GPUS, RANDOM, SETUP, Workload, azure_requests, mooncake_requests
from bench.planner.shapes import SHAPES, arrivals

from pointsman.planner.replay.requests import Arrived

SLOT_S = 30
MOST_REQUESTS = 12_000
LEAST_REQUESTS = 150
CACHED = 0.4  # of Mooncake's prompts, to find a scale
USED = (0.75, 0.85)  # of a prefill, of a decode worker, to find a scale
Draw = np.random.Generator


def random_trace(seed: int) -> tuple[Workload, int] | None:
    """The workload of that seed, and how long a worker starts; None where it has too few requests to say anything."""
    of = SETUP["random"]
    draw = np.random.default_rng([seed, 77])
    name = str(draw.choice(of["kinds"]))
    start_s, speed = int(draw.choice(of["starts_s"])), float(draw.choice(of["speeds"]))
    blocks, sequences = int(draw.choice(of["blocks"])), int(draw.choice(of["sequences"]))
    engine = SETUP["engine"] | {"max_num_seqs": sequences, "speedup_ratio": speed}
    other: dict[str, Any] = {}
    if name == "azure_conv":
        requests = _piece(draw, azure_requests(2, draw.uniform(200, 1500)))
    elif name == "moon_conv":
        requests = _piece(draw, mooncake_requests(seed))
        blocks, engine = max(blocks, 6144), engine | {"num_gpu_blocks": 16384}
        other = {"context_tokens": 131072, "causal_window_s": 60}
    else:
        name, requests = _synthetic(draw)
    longest = float(np.quantile([r.prompt_tokens for r in requests], 0.95))
    ttft_ms = float(round(1000 * pass_s(longest, speed) * draw.uniform(2.5, 8) + 300, -2))
    itl_ms = float(round(SHORTEST_STEP_MS / speed * draw.uniform(1.8, 3.2)))
    decode_engine = engine | {"num_gpu_blocks": blocks}
    whole = Workload(
        RANDOM, seed, requests, engine, decode_engine, ttft_ms, itl_ms, first=(1, 1), shape=name, smoothings=(), **other
    )
    needs = _needs(whole, CACHED if name == "moon_conv" else 0.0)
    kept = min(1.0, float(draw.uniform(*of["workers"])) / float(np.quantile(needs.sum(axis=0), 0.97)))
    requests = sorted((r for r in requests if draw.random() < kept), key=lambda r: r.arrival_s)
    begins = needs[:, : max(2, needs.shape[1] // 10)]
    first = tuple(max(1, math.ceil(role.mean() * kept)) for role in begins)
    if len(requests) < LEAST_REQUESTS or sum(first) >= MAX_GPUS:
        return None
    return replace(whole, requests=requests, first=first), start_s


def _synthetic(draw: Draw) -> tuple[str, list[Arrived]]:
    seconds, name = int(draw.integers(1200, 2700)), str(draw.choice(list(SHAPES)))
    rates = SHAPES[name](draw, np.arange(float(seconds)))
    prompt, output = (math.exp(draw.uniform(math.log(low), math.log(high))) for low, high in ((400, 8000), (60, 600)))
    becomes = tuple(draw.uniform(0.4, 2.5, 2)) if draw.random() < 0.3 else (1.0, 1.0)
    spread, change_s = float(draw.uniform(0.1, 1.0)), seconds * float(draw.uniform(0.3, 0.7))
    arrival_s = arrivals(draw, rates / rates.sum() * MOST_REQUESTS)

    def length(mean: float, becomes: float, at_s: float, least: int, most: int) -> int:
        drawn = mean * math.exp(draw.normal(-spread * spread / 2, spread))
        return int(min(max(drawn * (becomes if at_s > change_s else 1.0), least), most))

    return name, [
        Arrived(float(at_s), length(prompt, becomes[0], at_s, 32, 30_000), length(output, becomes[1], at_s, 8, 4_000))
        for at_s in arrival_s
    ]


def _piece(draw: Draw, recorded: Iterable[Arrived]) -> list[Arrived]:
    """So many seconds of it, slower or faster than they were."""
    begin_s, stretch = float(draw.uniform(0, 1200)), float(draw.uniform(0.6, 1.5))
    piece = [r for r in recorded if begin_s <= r.arrival_s < begin_s + 2100]
    return [r._replace(arrival_s=(r.arrival_s - begin_s) * stretch) for r in piece]


def _needs(workload: Workload, cached: float) -> Any:
    """Prefill and decode workers of each slot, as if nothing were left of the one before."""
    at_s, prompt, output = np.array([(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in workload.requests]).T
    kv_s = (prompt + output / 2) * output * workload.itl_ms / 1000
    edges = np.arange(0, at_s.max() + SLOT_S, SLOT_S)
    rates = [np.histogram(at_s, edges, weights=work)[0] / SLOT_S for work in (prompt * (1 - cached), kv_s)]
    return np.array([rate / one / used for rate, one, used in zip(rates, capacity(workload), USED, strict=True)])
