"""Random traces in NVIDIA's simulator: Pointsman beside Dynamo's planner on loads that nobody made either for.

    make bench-planner-dynamo-random ARGS="100 120"          # all planners, about a minute a trace
    make bench-planner-dynamo-random ARGS="100 120 --ours"   # Pointsman alone, beside what is kept of the others

Shape, lengths, engine, objectives, start-up and first layout of a trace come from its seed alone; one in three is a
piece of a recorded trace, thinned and stretched. ``bench/results/planner_dynamo_random.json.xz`` has runs; they are not
made again, but for Pointsman's when its planner has changed.
"""

import argparse
import logging
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

warnings.filterwarnings("ignore")  # of the peer's statistics packages, thousands of lines
logging.disable(logging.WARNING)

from bench.planner.dynamo import policy, references  # noqa: E402
from bench.planner.dynamo.configurations import CONFIGURATIONS  # noqa: E402
from bench.planner.dynamo.dynamo_planner import run_dynamo  # noqa: E402
from bench.planner.dynamo.dynosim import Outcome, Schedule, calibration, known_before, run  # noqa: E402
from bench.planner.dynamo.random_results import KEPT, in_words, read_kept  # noqa: E402
from bench.planner.dynamo.workloads import (  # noqa: E402
    AZURE,
    MOONCAKE,
    Request,
    Workload,
    azure_requests,
    engine_limits,
    mooncake_requests,
    trace_line,
)
from bench.planner.random_loads import SHAPES  # noqa: E402
from bench.planner.sources import in_dynosim as planner_digest  # noqa: E402
from bench.rows import RESULTS, keep  # noqa: E402

DATA = RESULTS.parent / "data"
TRACES = Path(__file__).with_name("traces") / "random"
KINDS = ("synthetic", "synthetic", "synthetic", "synthetic", "azure_conv", "moon_conv")
STARTS_S = (30, 45, 60, 90, 120, 180, 240)
SPEEDS = (0.15, 0.2, 0.25, 0.4, 0.7, 1.0)  # of the simulator's engine
BLOCKS = (1024, 2048, 4096, 6144)  # of KV cache in a decode worker
SEQUENCES = (64, 128, 256)
WORKERS = (4.0, 12.0)  # that a trace's busiest half minutes need
SLOT_S = 30
MOST_REQUESTS = 12_000
LEAST_REQUESTS = 150
MOST_FIRST = 15  # workers of the first layout
CACHED = 0.4  # of Mooncake's prompts, to find a scale
USED = (0.75, 0.85)  # of a prefill, of a decode worker, to find a scale


@dataclass(frozen=True)
class RandomTrace:
    """A workload of a seed, and how long a worker starts."""

    seed: int
    workload: Workload
    start_s: int

    @property
    def in_short(self) -> dict[str, Any]:
        """What a reader wants to know of it."""
        at = self.workload
        return {
            "seed": self.seed, "load": at.name, "trace": at.digest, "start_s": self.start_s, "requests": at.requests,
            "seconds": round(at.duration_s), "ttft_ms": at.ttft_ms, "itl_ms": at.itl_ms,
            "first": f"{at.first[0]}P{at.first[1]}D", "speed": at.decode_engine["speedup_ratio"],
        }  # fmt: skip


def random_trace(seed: int, data: Path = DATA, folder: Path = TRACES) -> RandomTrace | None:
    """The trace of that seed, written below ``folder``; None where it has too few requests to say anything."""
    draw = np.random.default_rng([seed, 77])
    kind = str(draw.choice(KINDS))
    start_s, speed = int(draw.choice(STARTS_S)), float(draw.choice(SPEEDS))
    blocks, sequences = int(draw.choice(BLOCKS)), int(draw.choice(SEQUENCES))
    made: dict[str, Callable[[], tuple[str, list[Request]]]] = {
        "synthetic": lambda: _synthetic(draw),
        "azure_conv": lambda: (kind, _piece(draw, azure_requests(data / AZURE, 2, draw.uniform(200, 1500)))),
        "moon_conv": lambda: (kind, _piece(draw, mooncake_requests(data / MOONCAKE, random.Random(seed), 3.0))),
    }
    name, requests = made[kind]()
    recorded = kind != "synthetic"
    prefill = engine_limits(16384 if kind == "moon_conv" else 4096, sequences, speed)
    decode = engine_limits(max(blocks, 6144) if kind == "moon_conv" else blocks, sequences, speed)
    longest = float(np.quantile([r.prompt_tokens for r in requests], 0.95))
    workload = Workload(
        name, folder / f"{seed}.jsonl", 0, 0.0, prefill, decode,
        ttft_ms=float(round(1000 * references.pass_s(longest, speed) * draw.uniform(2.5, 8) + 300, -2)),
        itl_ms=float(round(references.SHORTEST_STEP_MS / speed * draw.uniform(1.8, 3.2))),
        first=(1, 1), context_tokens=131072 if kind == "moon_conv" else 32768, real=recorded,
    )  # fmt: skip
    needs = _needs(workload, requests, cached=CACHED if kind == "moon_conv" else 0.0)
    kept = min(1.0, float(draw.uniform(*WORKERS)) / float(np.quantile(needs[0] + needs[1], 0.97)))
    requests = sorted((r for r in requests if draw.random() < kept), key=lambda r: r.at_s)
    begins = slice(0, max(2, len(needs[0]) // 10))
    first = max(1, math.ceil(needs[0][begins].mean() * kept)), max(1, math.ceil(needs[1][begins].mean() * kept))
    if len(requests) < LEAST_REQUESTS or sum(first) > MOST_FIRST:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    workload.path.write_text("".join(trace_line(number, request) for number, request in enumerate(requests)))
    whole = replace(workload, requests=len(requests), duration_s=requests[-1].at_s, first=first)
    return RandomTrace(seed, whole, start_s)


def _synthetic(draw: np.random.Generator) -> tuple[str, list[Request]]:
    seconds, name = int(draw.integers(1200, 2700)), str(draw.choice(list(SHAPES)))
    rates = SHAPES[name](draw, np.arange(float(seconds)))
    prompt, output = (math.exp(draw.uniform(math.log(low), math.log(high))) for low, high in ((400, 8000), (60, 600)))
    becomes = tuple(draw.uniform(0.4, 2.5, 2)) if draw.random() < 0.3 else (1.0, 1.0)
    spread, change_s = float(draw.uniform(0.1, 1.0)), seconds * float(draw.uniform(0.3, 0.7))
    counts = draw.poisson(rates / rates.sum() * MOST_REQUESTS)
    arrivals_s = np.sort(np.repeat(np.arange(seconds), counts) + draw.random(counts.sum()))

    def length(mean: float, becomes: float, at_s: float, least: int, most: int) -> int:
        drawn = mean * math.exp(draw.normal(-spread * spread / 2, spread))
        return int(min(max(drawn * (becomes if at_s > change_s else 1.0), least), most))

    return name, [
        Request(float(at_s), length(prompt, becomes[0], at_s, 32, 30_000), length(output, becomes[1], at_s, 8, 4_000))
        for at_s in arrivals_s
    ]


def _piece(draw: np.random.Generator, recorded: Iterable[Request]) -> list[Request]:
    """So many seconds of it, slower or faster than they were."""
    begin_s, stretch = float(draw.uniform(0, 1200)), float(draw.uniform(0.6, 1.5))
    return [replace(r, at_s=(r.at_s - begin_s) * stretch) for r in recorded if begin_s <= r.at_s < begin_s + 2100]


def _needs(workload: Workload, requests: Sequence[Request], cached: float) -> tuple[Any, Any]:
    """Prefill and decode workers of each slot, as if nothing were left of the one before."""
    per_prefill, per_decode = references.capacity(workload)
    at_s = np.array([r.at_s for r in requests])
    prompt, output = (
        np.array([getattr(r, f"{what}_tokens") for r in requests], float) for what in ("prompt", "output")
    )
    kv_s = (prompt + output / 2) * output * workload.itl_ms / 1000
    edges = np.arange(0, at_s.max() + SLOT_S, SLOT_S)
    prefill, decode = (np.histogram(at_s, edges, weights=work)[0] / SLOT_S for work in (prompt * (1 - cached), kv_s))
    return prefill / per_prefill / USED[0], decode / per_decode / USED[1]


def _measured(at: RandomTrace, kept: dict[str, Any], *, only_ours: bool) -> dict[str, Any]:
    """What is kept of that trace, with what was missing."""
    workload, start_s = at.workload, at.start_s
    found = dict(kept) if kept.get("trace") == workload.digest else {}
    found |= at.in_short
    samples = cache(lambda: calibration(workload))
    demand = cache(lambda: references.demand_of(workload))
    if found.get("planner") != planner_digest():
        known = known_before(workload, start_s, samples())
        found |= {"ours": _figures(run(workload, policy.make(known), start_s)), "planner": planner_digest()}
    if only_ours:
        return found
    for name in CONFIGURATIONS:
        if name not in found.setdefault("dynamo", {}):
            found["dynamo"][name] = _figures(run_dynamo(workload, start_s, name, samples()))
    for name, plan in references.causal(workload, start_s, demand).items():
        if name not in found.setdefault("causal", {}):
            found["causal"][name] = _figures(run(workload, Schedule(plan()), start_s))
    return found


def _figures(outcome: Outcome) -> dict[str, float]:
    return {"goodput": outcome.goodput, "gpu_hours": outcome.gpu_hours, "changes": outcome.changes}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="make bench-planner-dynamo-random", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("last", type=int, help="the one after the last seed")
    parser.add_argument("--ours", action="store_true", help="Pointsman alone, on every trace that is kept")
    options = parser.parse_args(arguments)
    if not 0 <= options.first < options.last:
        parser.error(f"seeds {options.first} to {options.last}: the first must be 0 or more, and less than the last")
    kept = read_kept()
    for seed in range(options.first, options.last):
        at = random_trace(seed)
        if at is None:
            print(f"seed {seed}: too few requests", flush=True)
            continue
        kept[str(seed)] = _measured(at, kept.get(str(seed), {}), only_ours=options.ours)
        keep(KEPT, kept, in_order=True)
        print(in_words(kept[str(seed)]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
