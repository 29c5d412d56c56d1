"""Constant loads on random engines, each from its seed alone: a planner is made while looking at the other loads.

Shipped tables, times of the true engine scaled, random lengths and objectives that some fixed layout keeps.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from bench.planner.loads import LEADS, TRUTH, Service, policy
from bench.planner.shapes import arrivals
from pointsman.planner.core.types import Bounds, Policy, RoutingNumbers
from pointsman.planner.performance_tables import table_names
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.baselines.clairvoyant import decoders, prefill_work_s
from pointsman.planner.simulator.baselines.layouts import ALL_REMOTE
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Floats, Result, Simulation, Trace, Truth

WORKERS: Final = 16  # that the budget allows
AMPLE: Final = ((8, 8), (11, 5), (5, 11))
LEAST_WORKERS: Final = 4
SECONDS: Final = 900
SETTLED_S: Final = 300.0  # what is started for another layout than the first serves by then
REACHED_BY: Final = 0.002  # the best of ``AMPLE`` has that much more than the goal
GOALS: Final = (0.8, 0.9, 0.95, 0.99)
KAPPAS: Final = (0.4, 3.0)  # times as slow as the table: least and most
WHOLE_ANSWERS: Final = (0.0, 0.3, 1.0)  # shares of clients that do not stream
GATEWAYS: Final = (1, 3)
MOST_DRAWN: Final = 20
SLOT_S: Final = 30  # in which a load's needs are counted
MOST_REQUESTS: Final = 20_000
LEAST_REQUESTS: Final = 100
ROUNDS: Final = 4  # of scaling a rate to the workers it is to need …
MOST_ROUNDS: Final = 8  # … and up to so many, where the last one had too few requests


class Lengths(NamedTuple):
    """Of prompts or outputs: the mean in tokens, the spread of logarithms, and the most."""

    tokens: int
    spread: float
    most: int


@cache
def drawn(seed: int) -> tuple[Service, Result, str]:
    """(the load, what the best of ``AMPLE`` gave, which one)."""
    draw = np.random.default_rng([seed, 20])
    # Of a source of its own: what was drawn before there were such clients stays as it is.
    seen = np.random.default_rng([seed, 21])
    clients = float(seen.choice(WHOLE_ANSWERS)), int(seen.choice(GATEWAYS))
    for _ in range(MOST_DRAWN):
        made, needed = _service(draw, seed, *clients)
        if sum(needed) < LEAST_WORKERS:
            continue
        best, layout = best_layout(made, AMPLE, from_s=SETTLED_S)
        if within(best, SETTLED_S) >= made.policy.objectives.attainment + REACHED_BY:
            return made, best, layout
    raise RuntimeError(f"seed {seed}: none of {MOST_DRAWN} loads can be served within its objectives")


def within(result: Result, from_s: float) -> float:
    """The share within objectives of the requests that came from then on."""
    return float(result.met[result.arrival_s >= from_s].mean())


def best_layout(
    at: Service, layouts: Iterable[tuple[int, int]], *, routings: Iterable[RoutingNumbers] = (ALL_REMOTE,),
    from_s: float = 0,
) -> tuple[Result, str]:  # fmt: skip
    """Of layouts that never change, with either rule for remote prefill, what served most, and which it is."""
    found = {}
    for prefill, decode in layouts:
        for routing in routings:
            begins = replace(at.simulation, prefill_workers=prefill, decode_workers=decode, routing=routing)
            threshold = "" if routing is ALL_REMOTE else f", threshold {routing.max_local_prefill_tokens}"
            found[f"{prefill}P{decode}D{threshold}"] = simulate(at.trace, begins, at.policy, static())
    layout, result = max(found.items(), key=lambda each: within(each[1], from_s))
    return result, layout


def _service(
    draw: np.random.Generator, seed: int, whole_answers_share: float, gateways: int
) -> tuple[Service, tuple[int, int]]:
    """(a load that begins with two workers of each role, the layout that its first requests need)."""
    name = str(draw.choice(table_names()))
    model, gpu, backend, tensor_parallel = name.split()
    engine = shipped_engine(model, gpu, backend, int(tensor_parallel.removeprefix("tp")))
    prefill_kappa, decode_kappa = np.exp(draw.uniform(math.log(KAPPAS[0]), math.log(KAPPAS[1]), 2)).tolist()
    prompt, output = (math.exp(draw.uniform(math.log(low), math.log(high))) for low, high in ((200, 12e3), (20, 800)))
    spreads = float(draw.choice([0.05, 0.3, 0.8])), float(draw.choice([0.05, 0.3, 0.8]))
    alone_ms = prefill_kappa * engine.performance.prefill_ms(prompt * (1 + spreads[0]), 0)
    step_ms = decode_kappa * engine.performance.decode_step_ms(16, 16 * (prompt + output / 2))
    objectives = {
        "ttftMs": round(max(300, alone_ms * draw.uniform(2.5, 8))),
        "tpotMs": round(step_ms * draw.uniform(1.3, 2.5), 1),
        "attainment": float(draw.choice(GOALS)),
    }
    rules = policy(objectives, WORKERS * engine.gpus, Bounds(1, 12), {})
    prompts, outputs = Lengths(round(prompt), spreads[0], 60_000), Lengths(round(output), spreads[1], 4_000)
    truth = Truth(prefill_kappa, decode_kappa, TRUTH.noise_sigma)
    simulation = Simulation(
        engine, 2, 2, truth=truth, leads=LEADS, gateways=gateways, whole_answers_share=whole_answers_share, seed=seed
    )
    trace, (p, d) = _scaled(draw, (prompts, outputs), simulation, rules, workers=draw.uniform(4, 11))
    note = (
        f"{name}, κ {prefill_kappa:.2f} and {decode_kappa:.2f}; {len(trace) / SECONDS:.2f} requests/s of "
        f"{prompts.tokens}+{outputs.tokens} tokens; TTFT {objectives['ttftMs']:g} ms, "
        f"TPOT {objectives['tpotMs']:g} ms; {gateways} gateway(s), {whole_answers_share:.0%} of clients do not stream; "
        f"needs about {p}P{d}D"
    )
    return Service(trace, simulation, rules, note), (p, d)


def _scaled(
    draw: np.random.Generator, lengths: tuple[Lengths, Lengths], simulation: Simulation, rules: Policy, workers: float
) -> tuple[Trace, tuple[int, int]]:
    """(a trace whose busiest half minutes need about so many workers, the layout that its first ones need)."""
    seed, rate, first = int(draw.integers(2**32)), 1.0, (1, 1)
    for number in range(MOST_ROUNDS):
        trace = _trace(seed, min(rate, MOST_REQUESTS / SECONDS), lengths)
        if len(trace) < LEAST_REQUESTS:
            rate *= 3
            continue
        prefill, decode = _needs(trace, simulation, rules)
        first = round(float(prefill[:3].mean()) + 0.5), round(float(decode[:3].max()))
        if number >= ROUNDS - 1:
            break
        rate *= workers / max(0.3, float(np.quantile(prefill + decode, 0.95)))
    return trace, (min(max(first[0], 1), 8), min(max(first[1], 1), 8))


def _needs(trace: Trace, simulation: Simulation, rules: Policy) -> tuple[Floats, Floats]:
    """Prefill and decode workers of each slot, as if nothing were left of the one before."""
    decoding_s = trace.output_tokens * rules.objectives.tpot_ms / 1000
    kv_s = decoding_s * (trace.prompt_tokens + trace.output_tokens / 2)
    weights = prefill_work_s(trace, simulation), decoding_s, kv_s
    edges = np.arange(0, SECONDS + SLOT_S, SLOT_S)
    work, sequences, kv_tokens = (np.histogram(trace.arrival_s, edges, weights=w)[0] / SLOT_S for w in weights)
    decode = [decoders(s, kv, simulation, rules, 0.9) for s, kv in zip(sequences, kv_tokens, strict=True)]
    return work / 0.8, np.array(decode, dtype=float)


def _trace(seed: int, rate: float, lengths: tuple[Lengths, Lengths]) -> Trace:
    draw = np.random.default_rng(seed)
    arrival_s = arrivals(draw, np.full(SECONDS, rate))
    prompts, outputs = (
        np.clip(np.round(mean * np.exp(draw.normal(-spread * spread / 2, spread, len(arrival_s)))), 1, most)
        for mean, spread, most in lengths
    )
    return Trace(f"random load {seed}", arrival_s, prompts.astype(np.int64), outputs.astype(np.int64))
