"""What could be had: a clairvoyant, and one who knows the present exactly but no future.

Both schedules come from the demand of each slot of five seconds: prefill tokens that arrive, and KV tokens that decode
when every request runs at its token objective, measured in a run with room to spare. The clairvoyant starts workers
early enough to be ready in time, keeps those that are needed again soon, and takes the best of a grid of utilisations:
what it reaches is achieved, not proven best.
"""

import math
from functools import cache
from itertools import product

import numpy as np
from bench.planner.dynamo.dynosim import Plan, Schedule, replayed
from bench.planner.dynamo.workloads import MAX_GPUS, Workload

SLOT_S = 5.0
SHORTEST_STEP_MS = 5.74  # of the simulator's decode, at speed 1
Needs = list[int]
"""Workers of one role, by slot."""


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


# --- the future is known ---

GRID = tuple(product((0.95, 0.8, 0.6), (1.1, 1.0, 0.85)))
"""Utilisation of prefill and of decode workers."""


def clairvoyant(workload: Workload, startup_s: float, grid: tuple[float, float], window: tuple[float, float]) -> Plan:
    """A schedule that knows the trace and pays the start. ``window``: smoothing in seconds, starts to bridge."""
    window_s, starts = window
    gap, lead = int(startup_s / SLOT_S * starts), math.ceil((startup_s + 1) / SLOT_S)
    prefill, decode = (_without_gaps(need, gap) for need in _needs(workload, *grid, window_s))
    plan: Plan = []
    for i in range(len(prefill)):  # the most that is needed until what starts now is ready
        layout = _within_budget(max(prefill[i : i + lead + 1]), max(decode[i : i + lead + 1]))
        if not plan or layout != plan[-1][1:]:
            plan.append((max(0.001, i * SLOT_S), *layout))
    return plan


def _without_gaps(need: Needs, gap: int) -> Needs:
    """Valleys of up to ``gap`` slots filled: starting again would cost more than keeping."""
    filled = list(need)
    for level in range(max(filled), 0, -1):
        last = None
        for i, value in enumerate(filled):
            if value < level:
                continue
            if last is not None and 1 < i - last <= gap + 1:
                filled[last + 1 : i] = [max(v, level) for v in filled[last + 1 : i]]
            last = i
    return filled


# --- the present is known ---


def causal(workload: Workload, startup_s: float, hold_s: float, boost: float) -> Plan:
    """A reactive schedule that knows this moment's true demand and starts where everyone starts.

    ``boost``: as many times the need after a rise, until what queued meanwhile is done.
    """
    needs = _needs(workload, 0.8, 0.95, workload.causal_window_s)
    hold, rise = int(hold_s / SLOT_S), int((startup_s + 60) / SLOT_S)
    plan: Plan = []
    for slot in range(min(len(needs[0]), int(workload.requests[-1].at_s / SLOT_S) + 2)):
        wanted = [max(need[max(0, slot - hold) : slot + 1]) for need in needs]
        if boost > 1 and slot > rise:
            earlier = [max(need[max(0, slot - hold - rise) : slot - rise + 1]) for need in needs]
            wanted = [math.ceil(now * boost) if now > then else now for now, then in zip(wanted, earlier, strict=True)]
        layout = _within_budget(*wanted)
        if not plan or layout != plan[-1][1:]:
            plan.append(((slot + 1) * SLOT_S, *layout))
    return plan


# --- what a demand takes ---


def _needs(workload: Workload, prefill_use: float, decode_use: float, window_s: float) -> tuple[Needs, Needs]:
    """Workers of each role a slot needs at those utilisations. Prefill may lag by its objective, decode may not."""
    tokens, kv = demand_of(workload)
    width, slots = max(1, int(window_s / SLOT_S)), len(tokens)
    sums = np.concatenate([np.zeros(width), np.cumsum([0.0, *tokens]), np.full(width, sum(tokens))])
    windows = (sums[width:] - sums[:-width]) / (width * SLOT_S)  # of the tokens that end at each slot
    rates = [max(windows[i + 1 : i + 1 + width]) for i in range(slots)]
    half = max(1, width // 2)
    smooth = [float(np.mean(kv[max(0, i - half + 1) : i + half])) for i in range(slots)]
    per_prefill, per_decode = capacity(workload)
    return (
        [max(1, math.ceil(rate / (per_prefill * prefill_use))) for rate in rates],
        [max(1, math.ceil(max(smooth[max(0, i - 1) : i + 2]) / (per_decode * decode_use))) for i in range(slots)],
    )


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


def _within_budget(prefill: int, decode: int) -> tuple[int, int]:
    while prefill + decode > MAX_GPUS:
        prefill, decode = (prefill - 1, decode) if prefill > decode else (prefill, decode - 1)
    return prefill, decode
