"""What could be had: a clairvoyant, and one who knows the present exactly but no future.

Both schedules come from the demand of each slot of five seconds: prefill tokens that arrive, and KV tokens that decode
when every request runs at its token objective, measured in a run with room to spare. The clairvoyant starts workers
early enough to be ready in time, keeps those that are needed again soon, and takes the best of a grid of utilisations:
what it reaches is achieved, not proven best.
"""

import math
from collections.abc import Iterable
from functools import cache
from itertools import product

import numpy as np
from bench.planner.dynamo.dynosim import Plan, Schedule, replayed
from bench.planner.dynamo.workloads import MAX_GPUS, Workload

from pointsman.planner.simulator.baselines.clairvoyant import most_ahead, without_valleys
from pointsman.planner.simulator.types import Floats

SLOT_S = 5.0
SHORTEST_STEP_MS = 5.74  # of the simulator's decode, at speed 1


@cache
def demand_of(workload: Workload) -> tuple[list[float], list[float]]:
    """Per slot, from a run where nobody waits: prefill tokens that arrive, KV tokens decoding at once (their mean)."""
    requests = replayed(workload, Schedule([]), 45, (8, 8), per_request=True).per_request
    itl_s = workload.itl_ms / 1000
    slots = int(max(q["terminal_time_ms"] / 1000 + q["output_length"] * itl_s for q in requests) / SLOT_S) + 2
    prefill, kv = [0.0] * slots, [0.0] * slots
    for q in requests:
        prefill[int(q["arrival_time_ms"] / 1000 / SLOT_S)] += q["input_length"] - (q["reused_input_tokens"] or 0)
        starts = (q["decode_admit_ms"] or q["source_held_ms"] or q["first_token_ms"] or q["arrival_time_ms"]) / 1000
        ends = starts + q["output_length"] * itl_s
        context = q["input_length"] + q["output_length"] / 2
        for slot in range(int(starts / SLOT_S), min(slots - 1, int(ends / SLOT_S)) + 1):
            inside_s = min(ends, (slot + 1) * SLOT_S) - max(starts, slot * SLOT_S)
            kv[slot] += context * max(0.0, inside_s) / SLOT_S
    return prefill, kv


GRID = tuple(product((0.95, 0.8, 0.6), (1.1, 1.0, 0.85)))
"""Utilisation of prefill and of decode workers."""


def clairvoyant(workload: Workload, startup_s: float, grid: tuple[float, float], window: tuple[float, float]) -> Plan:
    """A schedule that knows the trace and pays the start. ``window``: smoothing in seconds, starts to bridge."""
    window_s, starts = window
    gap, lead = int(startup_s / SLOT_S * starts), math.ceil((startup_s + 1) / SLOT_S)
    return _plan([most_ahead(without_valleys(need, gap + 1), lead) for need in _needs(workload, *grid, window_s)], 0)


def causal(workload: Workload, startup_s: float, hold_s: float, boost: float) -> Plan:
    """A reactive schedule that knows this moment's true demand and starts where everyone starts.

    ``boost``: as many times the need after a rise, until what queued meanwhile is done.
    """
    slots = int(workload.requests[-1].arrival_s / SLOT_S) + 2
    needs = _needs(workload, 0.8, 0.95, workload.causal_window_s)[:, :slots]
    held = np.array([most_ahead(need[::-1], int(hold_s / SLOT_S))[::-1] for need in needs])
    rise, earlier = int((startup_s + 60) / SLOT_S), held.copy()
    earlier[:, rise + 1 :] = held[:, 1:-rise]
    return _plan(np.where(held > earlier, np.ceil(held * boost), held), SLOT_S)


def _plan(layouts: Iterable[Floats], begin_s: float) -> Plan:
    """Of prefill and of decode workers in each slot: the changes, within the budget."""
    plan: Plan = []
    for slot, (prefill, decode) in enumerate(zip(*layouts, strict=True)):
        while prefill + decode > MAX_GPUS:
            prefill, decode = (prefill - 1, decode) if prefill > decode else (prefill, decode - 1)
        layout = int(prefill), int(decode)
        if not plan or layout != plan[-1][1:]:
            plan.append((max(0.001, begin_s + slot * SLOT_S), *layout))
    return plan


# --- what a demand takes ---


def _needs(workload: Workload, prefill_use: float, decode_use: float, window_s: float) -> Floats:
    """Workers of each role a slot needs at those utilisations. Prefill may lag by its objective, decode may not."""
    tokens, kv = demand_of(workload)
    width, slots = max(1, int(window_s / SLOT_S)), len(tokens)
    sums = np.concatenate([np.zeros(width), np.cumsum([0.0, *tokens]), np.full(width, sum(tokens))])
    windows = (sums[width:] - sums[:-width]) / (width * SLOT_S)  # of the tokens that end at each slot
    rates = [max(windows[i + 1 : i + 1 + width]) for i in range(slots)]
    half = max(1, width // 2)
    smooth = [float(np.mean(kv[max(0, i - half + 1) : i + half])) for i in range(slots)]
    most = [max(smooth[max(0, i - 1) : i + 2]) for i in range(slots)]
    used = np.array([capacity(workload)]).T * [[prefill_use], [decode_use]]
    needs: Floats = np.maximum(1, np.ceil([rates, most] / used))
    return needs


def capacity(workload: Workload) -> tuple[float, float]:
    """(tokens/s of a prefill worker, KV tokens of a decode worker at the ITL limit), by DynoSim's own polynomials."""
    batch = workload.prefill_engine["max_num_batched_tokens"]
    step_ms = workload.itl_ms * workload.decode_engine["speedup_ratio"]
    usage = (54.01 - math.sqrt(54.01**2 - 4 * 25.74 * (step_ms - SHORTEST_STEP_MS))) / (2 * 25.74)
    return (
        batch / pass_s(batch, workload.prefill_engine["speedup_ratio"]),
        usage * workload.decode_engine["num_gpu_blocks"] * workload.decode_engine["block_size"],
    )


def pass_s(tokens: float, speed: float) -> float:
    """A prefill pass of so many tokens, by the same."""
    return (4.209989e-7 * tokens * tokens + 1.518344e-2 * tokens + 16.50142) / 1000 / speed
