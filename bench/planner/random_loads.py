"""Random loads on random engines: where is Pointsman worse than somebody else, and on which seed can it be looked at?

The scenarios of the benchmark are few, and a planner is made while looking at them. These are of any shape, length,
engine and objective, each from its seed alone:

    .venv/bin/python -m bench.planner.random_loads 0 40          # beside others, some ten seconds a load
    .venv/bin/python -m bench.planner.random_loads 0 40 --ours   # Pointsman alone

A line of JSON for each load; at the end means, and the loads where another one has more within the objectives for no
more GPU-hours. Nothing is written to ``bench/results``.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import numpy as np

from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.planner.core.types import Bounds, Policy
from pointsman.planner.policies import planner_policy
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.baselines import causal, clairvoyant
from pointsman.planner.simulator.baselines.heteroscale import heteroscale
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.baselines.tokenscale import tokenscale
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import (
    Engine,
    Floats,
    Ints,
    Leads,
    PrefixCache,
    Result,
    Simulation,
    Trace,
    Truth,
)  # fmt: skip

ENGINES: Final = (
    ("meta-llama/Meta-Llama-3.1-8B", "a100_sxm", "vllm", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", "vllm", 1),
    ("meta-llama/Meta-Llama-3.1-8B", "l40s", "vllm", 1),
    ("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", "vllm", 4),
    ("meta-llama/Meta-Llama-3.1-70B", "h200_sxm", "sglang", 4),
    ("Qwen/Qwen3-32B", "h100_sxm", "vllm", 2),
)
WORKERS: Final = 16  # that the budget allows
EACH: Final = Bounds(1, 12)
SLOT_S: Final = 30  # in which a load's needs are counted
MOST_REQUESTS: Final = 20_000
LEAST_REQUESTS: Final = 100
DEARER: Final = 1.02  # times the GPU-hours, before another planner is no longer as cheap
ROUNDS: Final = 4  # of scaling a load to the workers it is to need …
MOST_ROUNDS: Final = 8  # … and up to so many, where the last one had too few requests
MOST_SHOWN: Final = 10
Rates = Floats
"""Relative rates, one a second."""


# --- shapes: relative rates over so many seconds ---


def _levels(draw: np.random.Generator, at_s: Floats) -> Rates:
    rates, mean_s, begin = np.ones_like(at_s), draw.uniform(60, 300), 0
    while begin < len(at_s):
        end = begin + int(draw.exponential(mean_s)) + 5
        rates[begin:end], begin = draw.uniform(0.4, 2.5), end
    return rates


def _spikes(draw: np.random.Generator, at_s: Floats) -> Rates:
    rates = np.ones_like(at_s)
    for _ in range(draw.integers(1, 6)):
        begin = int(draw.uniform(0, len(at_s)))
        rates[begin : begin + int(draw.uniform(15, 120))] *= draw.uniform(2, 8)
    return rates


def _step(draw: np.random.Generator, at_s: Floats) -> Rates:
    begin, end = sorted(draw.uniform(0.2, 0.9, 2) * len(at_s))
    return np.where((at_s > begin) & (at_s < end), draw.uniform(2, 5), 1.0)


def _walk(draw: np.random.Generator, at_s: Floats) -> Rates:
    rates: Rates = np.exp(np.cumsum(draw.normal(0, 0.012, len(at_s))))
    return np.clip(rates / np.median(rates), 0.25, 4)


def _pulses(draw: np.random.Generator, at_s: Floats) -> Rates:
    every_s = draw.uniform(60, 600)
    return np.where(at_s % every_s < every_s * draw.uniform(0.1, 0.5), draw.uniform(2, 6), 1.0)


def _fall_and_return(draw: np.random.Generator, at_s: Floats) -> Rates:
    fallen = 1 - 0.8 * np.clip((at_s - 300) / draw.uniform(200, 1000), 0, 1)
    return fallen + np.where(at_s > 0.75 * len(at_s), draw.uniform(0.3, 1.5), 0)


SHAPES: Final[dict[str, Callable[[np.random.Generator, Floats], Rates]]] = {
    "constant": lambda draw, at_s: np.ones_like(at_s),
    "step": _step,
    "wave": lambda draw, at_s: (
        1 + draw.uniform(0.3, 0.8) * np.sin(2 * np.pi * at_s / draw.uniform(300, 1800) + draw.uniform(0, 6))
    ),
    "ramp": lambda draw, at_s: (
        1 + draw.uniform(1, 5) * np.clip((at_s - draw.uniform(100, 600)) / draw.uniform(120, 900), 0, 1)
    ),
    "levels": _levels,
    "spikes": _spikes,
    "walk": _walk,
    "pulses": _pulses,
    "drop": lambda draw, at_s: np.where(at_s < draw.uniform(0.3, 0.7) * len(at_s), 1.0, draw.uniform(0.1, 0.5)),
    "fall and return": _fall_and_return,
}


# --- one load ---


@dataclass(frozen=True)
class Requests:
    """How long requests are: means in tokens, the spread of their logarithms, and what they become half-way."""

    prompt_tokens: float
    output_tokens: float
    prompt_spread: float
    output_spread: float
    becomes: tuple[float, float] = (1.0, 1.0)  # as many times as long: prompts, outputs


@dataclass(frozen=True)
class Load:
    """A load, and the service it comes to."""

    seed: int
    shape: str
    engine: str
    requests: Requests
    trace: Trace = field(repr=False)
    simulation: Simulation = field(repr=False)
    policy: Policy = field(repr=False)

    @property
    def in_short(self) -> dict[str, object]:
        """What a reader wants to know of it."""
        objectives, simulation = self.policy.objectives, self.simulation
        return {
            "seed": self.seed, "shape": self.shape, "engine": self.engine, "requests": len(self.trace),
            **asdict(self.requests), "ttft_ms": objectives.ttft_ms, "tpot_ms": objectives.tpot_ms,
            "start_s": simulation.leads.start_s, "told": self.policy.start_is_told,
            "cached": simulation.prefix_cache.assumed_hit_share,
            "first": f"{simulation.prefill_workers}P{simulation.decode_workers}D",
        }  # fmt: skip


def load(seed: int) -> Load | None:
    """The load of that seed; None where it has too few requests to say anything."""
    draw = np.random.default_rng(seed)
    name, gpu, runtime, tensor_parallel = ENGINES[draw.integers(len(ENGINES))]
    engine = shipped_engine(name, gpu, runtime, tensor_parallel)
    shape = list(SHAPES)[draw.integers(len(SHAPES))]
    rates = np.maximum(SHAPES[shape](draw, np.arange(float(draw.choice([1200, 1800, 2700])))), 0.02)
    uneven = draw.choice([0.0, 0.0, 0.05, 0.2])  # beyond Poisson's, of ten seconds
    if uneven:
        rates = rates * np.repeat(draw.gamma(1 / uneven, uneven, len(rates) // 10 + 1), 10)[: len(rates)]
    requests = _requests(draw)
    policy = _policy(draw, engine, requests)
    simulation = Simulation(
        engine, 2, 2, seed=seed,
        truth=Truth(prefill_kappa=draw.uniform(0.9, 1.3), decode_kappa=draw.uniform(0.9, 1.3), noise_sigma=0.08),
        leads=Leads(
            start_s=policy.start_s if policy.start_is_told else float(draw.choice([30, 60, 120, 180, 300])),
            start_spread=0.1, flip_s=2.0, verify_s=1.0, drain_timeout_s=7.0,
        ),
        prefix_cache=PrefixCache(assumed_hit_share=float(draw.choice([0, 0, 0, 0.3, 0.6]))),
    )  # fmt: skip
    trace, first = scaled(draw, rates, requests, simulation, policy, workers=draw.uniform(4, 13))
    if len(trace) < LEAST_REQUESTS:
        return None
    prefill, decode = (2, 2) if draw.random() < 0.3 else first
    simulation = replace(simulation, prefill_workers=prefill, decode_workers=decode)
    return Load(seed, shape, f"{name} on {tensor_parallel} {gpu}", requests, trace, simulation, policy)


def _requests(draw: np.random.Generator) -> Requests:
    prompt, output = (math.exp(draw.uniform(math.log(low), math.log(high))) for low, high in ((200, 12e3), (20, 800)))
    becomes = tuple(math.exp(x) for x in draw.uniform(-1.2, 1.2, 2)) if draw.random() < 0.3 else (1.0, 1.0)
    spreads = draw.choice([0.05, 0.3, 0.8, 1.2]), draw.choice([0.05, 0.3, 0.8, 1.0])
    return Requests(round(prompt), round(output), float(spreads[0]), float(spreads[1]), (becomes[0], becomes[1]))


def _policy(draw: np.random.Generator, engine: Engine, requests: Requests) -> Policy:
    """Objectives that an idle worker keeps, from hardly to easily."""
    prompt, output = requests.prompt_tokens, requests.output_tokens
    alone_ms = engine.performance.prefill_ms(prompt * (1 + requests.prompt_spread), 0)
    step_ms = engine.performance.decode_step_ms(16, 16 * (prompt + output / 2))
    told = float(draw.choice([30, 60, 120, 180, 300])) if draw.random() < 0.5 else None
    objectives = {
        "ttftMs": round(max(300, 1.15 * alone_ms * draw.uniform(2.5, 8))),
        "tpotMs": round(1.2 * step_ms * draw.uniform(1.3, 2.5), 1),
    }
    budget, actions = {"maxGpus": WORKERS * engine.gpus}, {"scaleOut": {"leadSeconds": told}}
    spec = PlannerPolicySpec.model_validate({"objectives": objectives, "budget": budget, "actions": actions})
    return planner_policy(spec, prefill=EACH, decode=EACH)


def scaled(
    draw: np.random.Generator, rates: Rates, requests: Requests, simulation: Simulation, policy: Policy, workers: float
) -> tuple[Trace, tuple[int, int]]:
    """(a trace whose busiest half minutes need about so many workers, the layout its first ones need).

    A scale that leaves too few requests is followed by a larger one; where that ends with too few, what came before is
    taken.
    """
    seed, scale = int(draw.integers(2**32)), 1.0
    found: tuple[Trace, Floats, Floats] | None = None
    for number in range(MOST_ROUNDS):
        trace = _trace(seed, np.minimum(rates * scale, rates * MOST_REQUESTS / rates.sum()), requests)
        if len(trace) < LEAST_REQUESTS:
            scale *= 3
            continue
        found = trace, *_needs(trace, simulation, policy, len(rates))
        if number >= ROUNDS - 1:
            break
        scale *= workers / max(0.3, float(np.quantile(found[1] + found[2], 0.95)))
    if found is None:
        return trace, (1, 1)
    trace, prefill, decode = found
    first = round(float(prefill[:3].mean()) + 0.5), round(float(decode[:3].max()))
    return trace, (min(max(first[0], 1), 8), min(max(first[1], 1), 8))


def _needs(trace: Trace, simulation: Simulation, policy: Policy, seconds: int) -> tuple[Floats, Floats]:
    """Prefill and decode workers of each slot, as if nothing were left of the one before."""
    decoding_s = trace.output_tokens * policy.objectives.tpot_ms / 1000
    kv_s = decoding_s * (trace.prompt_tokens + trace.output_tokens / 2)
    weights = clairvoyant.prefill_work_s(trace, simulation), decoding_s, kv_s
    edges = np.arange(0, seconds + SLOT_S, SLOT_S)
    work, sequences, kv_tokens = (np.histogram(trace.arrival_s, edges, weights=w)[0] / SLOT_S for w in weights)
    decode = [clairvoyant.decoders(s, kv, simulation, policy, 0.9) for s, kv in zip(sequences, kv_tokens, strict=True)]
    return work / 0.8, np.array(decode, dtype=float)


def _trace(seed: int, rates: Rates, requests: Requests) -> Trace:
    draw = np.random.default_rng(seed)
    counts = draw.poisson(rates)
    arrival_s = np.sort(np.repeat(np.arange(len(rates)), counts) + draw.random(counts.sum()))
    later = np.where(arrival_s > len(rates) / 2, 1.0, 0.0)

    def lengths(mean: float, spread: float, becomes: float, most: int) -> Ints:
        drawn = mean * np.exp(draw.normal(-spread * spread / 2, spread, len(arrival_s)))
        return np.clip(np.round(drawn * becomes**later), 1, most).astype(np.int64)

    prompts = lengths(requests.prompt_tokens, requests.prompt_spread, requests.becomes[0], 60_000)
    outputs = lengths(requests.output_tokens, requests.output_spread, requests.becomes[1], 4_000)
    return Trace(f"random load {seed}", arrival_s, prompts, outputs)


# --- who serves it how ---


def played(at: Load, *, only_ours: bool) -> dict[str, Result]:
    """What Pointsman and the others made of it. The causal ones know the present exactly (see ``causal``)."""
    results = {"Pointsman": simulate(at.trace, at.simulation, at.policy, ours())}
    if only_ours:
        return results
    for planner in (tokenscale(), heteroscale()):
        results[planner.name] = simulate(at.trace, at.simulation, at.policy, planner)
    work_s = clairvoyant.prefill_work_s(at.trace, at.simulation)
    for number in (1, len(causal.REACTIONS) - 1):
        layouts, routings = causal.reacting(at.trace, work_s, at.simulation, at.policy, causal.REACTIONS[number])
        follows = clairvoyant.following(layouts, "causal", routings)
        results[f"causal {number}"] = simulate(at.trace, at.simulation, at.policy, follows)
    return results


Figures = dict[str, tuple[float, float]]
"""By planner: share within the objectives, hours of a worker."""


def figures(at: Load, results: dict[str, Result]) -> Figures:
    """Rounded as they are printed."""
    each = at.simulation.engine.gpus
    return {name: (round(r.attainment, 4), round(r.gpu_hours / each, 3)) for name, r in results.items()}


def worse(found: Figures) -> tuple[float, str]:
    """(how much more the best of the others has within the objectives that is not dearer, which one); below 0: none."""
    kept, hours = found["Pointsman"]
    others = [(k - kept, name) for name, (k, h) in found.items() if name != "Pointsman" and h <= DEARER * hours]
    return max(others, default=(-1.0, ""))


def summary(loads: Sequence[tuple[int, Figures]]) -> Iterator[str]:
    """Means of each planner, and the worst loads."""
    for name in loads[0][1] if loads else ():
        kept = np.mean([found[name][0] for _, found in loads])
        hours = np.exp(np.mean([np.log(found[name][1]) for _, found in loads]))
        yield f"{name:20s} {kept:.4f} within objectives, {hours:.3f} worker hours (geometric mean)"
    ranked = sorted(((*worse(found), seed) for seed, found in loads), reverse=True)
    for more, name, seed in ranked[:MOST_SHOWN]:
        if more > 0:
            yield f"seed {seed}: {name} has {more:.3f} more for at most {DEARER - 1:.0%} more"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.planner.random_loads", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("last", type=int, help="the one after the last seed")
    parser.add_argument("--ours", action="store_true", help="Pointsman alone")
    options = parser.parse_args(arguments)
    if not 0 <= options.first < options.last:
        parser.error(f"seeds {options.first} to {options.last}: the first must be 0 or more, and less than the last")
    found: list[tuple[int, Figures]] = []
    for seed in range(options.first, options.last):
        at = load(seed)
        if at is None:
            continue
        results = played(at, only_ours=options.ours)
        here, mine = figures(at, results), results["Pointsman"]
        found.append((seed, here))
        print(json.dumps({**at.in_short, **here, "switches": mine.switches, "reversals": mine.reversals()}), flush=True)
    for line in summary(found):
        print(line, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
