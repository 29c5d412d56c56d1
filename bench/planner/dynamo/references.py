"""What could be had: the cheapest fixed layout, a clairvoyant, and one who knows the present exactly but no future.

Both schedules come from the demand of each slot of five seconds: prefill tokens that arrive, and KV tokens that decode
when every request runs at its token objective, measured in a run with room to spare. The clairvoyant starts workers
early enough to be ready in time, keeps those that are needed again soon, and takes the best of a grid of utilisations:
what it reaches is achieved, not proven best.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from bench.planner.dynamo.dynosim import Hold, run_with_requests
from bench.planner.dynamo.workloads import MAX_GPUS, Workload

SLOT_S = 5.0
SERVES_ALL = 0.98
SHORTEST_STEP_MS = 5.74  # of the simulator's decode, at speed 1
Plan = list[tuple[float, int, int]]  # from when on, prefill, decode


@dataclass(frozen=True)
class Demand:
    """Per slot: prefill tokens that arrive, KV tokens decoding at once (their mean)."""

    prefill_tokens: list[float]
    kv_tokens: list[float]


def demand_of(workload: Workload) -> Demand:
    """From a run where nobody waits."""
    _, report = run_with_requests(workload, Hold(), 45, (8, 8))
    itl_s = workload.itl_ms / 1000
    end_s = max(q["terminal_time_ms"] / 1000 + q["output_length"] * itl_s for q in report.per_request)
    slots = int(end_s / SLOT_S) + 2
    prefill, kv = [0.0] * slots, [0.0] * slots
    for q in report.per_request:
        new_tokens = q["input_length"] - (q["reused_input_tokens"] or 0)
        prefill[min(slots - 1, int(q["arrival_time_ms"] / 1000 / SLOT_S))] += new_tokens
        starts = (q["decode_admit_ms"] or q["source_held_ms"] or q["first_token_ms"] or q["arrival_time_ms"]) / 1000
        ends = starts + q["output_length"] * itl_s
        context = q["input_length"] + q["output_length"] / 2
        for slot in range(int(starts / SLOT_S), min(slots - 1, int(ends / SLOT_S)) + 1):
            inside_s = min(ends, (slot + 1) * SLOT_S) - max(starts, slot * SLOT_S)
            kv[slot] += context * max(0.0, inside_s) / SLOT_S
    return Demand(prefill, kv)


# --- fixed layouts ---


def search_fixed(goodput: Callable[[int, int], float]) -> None:
    """Ask for the ``goodput`` of layouts along a staircase from where each role alone stops being the limit."""
    most = max(goodput(8, 8), goodput(10, 6))
    for level in (0.95, 0.99):
        goal = min(level, most - 0.002)
        prefill = next((p for p in range(1, 12) if goodput(p, min(8, MAX_GPUS - p)) >= goal), None)
        decode = next((d for d in range(1, 12) if goodput(min(8, MAX_GPUS - d), d) >= goal), None)
        if prefill is None or decode is None:
            continue
        for total in range(prefill + decode, MAX_GPUS + 1):
            if max(goodput(p, total - p) for p in range(prefill, total - decode + 1)) >= goal:
                break


def search_every(goodput: Callable[[int, int], float]) -> None:
    """Ask for the ``goodput`` of every layout, the cheapest first, until one serves all: for loads that no staircase
    fits, where a small layout may be as good as one that lost the first of what came."""
    for total in range(2, MAX_GPUS + 1):
        if max(goodput(p, total - p) for p in range(1, total)) >= SERVES_ALL:
            return


# --- schedules ---


def clairvoyant(workload: Workload, startup_s: float, demand: Callable[[], Demand]) -> dict[str, Callable[[], Plan]]:
    """Schedules that know the trace and pay the start, over a grid of utilisations and smoothings."""
    smoothings = [(5, 1), (20, 1)] + ([(60, 4)] if workload.real else [])
    return {
        f"use {prefill_use}/{decode_use}, {window_s} s": partial(
            _look_ahead, workload, startup_s, demand, prefill_use, decode_use, window_s, gaps
        )
        for prefill_use in (0.95, 0.8, 0.6)
        for decode_use in (1.1, 1.0, 0.85)
        for window_s, gaps in smoothings
    }


def causal(workload: Workload, startup_s: float, demand: Callable[[], Demand]) -> dict[str, Callable[[], Plan]]:
    """A few reactive schedules that know this moment's true demand; they start where everyone starts."""
    return {
        f"hold {hold_s:.0f} s, boost {boost}": partial(_reaction, workload, startup_s, demand, hold_s, boost)
        for hold_s in (startup_s, 300.0, 1200.0)
        for boost in (1.0, 1.6)
    }


def _look_ahead(
    workload: Workload, startup_s: float, demand: Callable[[], Demand], prefill_use: float, decode_use: float,
    window_s: float, gaps: int,
) -> Plan:  # fmt: skip
    needs = _needs(workload, demand(), prefill_use, decode_use, window_s)
    keep = int(startup_s / SLOT_S * gaps)
    return _ahead(_without_gaps(needs[0], keep), _without_gaps(needs[1], keep), startup_s + 1)


def _reaction(workload: Workload, startup_s: float, demand: Callable[[], Demand], hold_s: float, boost: float) -> Plan:
    needs = _needs(workload, demand(), 0.8, 0.95, 60 if workload.name == "moon_conv" else 5)
    now = list(zip(*needs, strict=True))[: int(workload.duration_s / SLOT_S) + 2]
    return [*_reactive(now, startup_s, hold_s, boost)]


def _reactive(
    now: list[tuple[int, int]], startup_s: float, hold_s: float, boost: float
) -> Iterator[tuple[float, int, int]]:
    """``boost``: as many times the need after a rise, until what queued meanwhile is done."""
    hold, rise = int(hold_s / SLOT_S), int((startup_s + 60) / SLOT_S)
    last = None
    for slot in range(len(now)):
        wanted = [max(n[role] for n in now[max(0, slot - hold) : slot + 1]) for role in (0, 1)]
        if boost > 1 and slot > rise:
            earlier = now[max(0, slot - hold - rise) : slot - rise + 1]
            for role in (0, 1):
                if wanted[role] > max(n[role] for n in earlier):
                    wanted[role] = math.ceil(wanted[role] * boost)
        layout = _within_budget(*wanted)
        if layout != last:
            yield max(0.001, (slot + 1) * SLOT_S), *layout
            last = layout


def _needs(
    workload: Workload, demand: Demand, prefill_use: float, decode_use: float, window_s: float
) -> tuple[list[int], list[int]]:
    """Workers of each role a slot needs at those utilisations. Prefill may lag by its objective, decode may not."""
    width = max(1, int(window_s / SLOT_S))
    sums = [0.0]
    for tokens in demand.prefill_tokens:
        sums.append(sums[-1] + tokens)
    slots = len(demand.prefill_tokens)
    rates = [
        max((sums[min(slots, i + j)] - sums[max(0, i + j - width)]) / (width * SLOT_S) for j in range(1, width + 1))
        for i in range(slots)
    ]
    half = max(1, width // 2)
    windows = [demand.kv_tokens[max(0, i - half + 1) : i + half] for i in range(slots)]
    smooth = [sum(window) / len(window) for window in windows]
    per_prefill, per_decode = capacity(workload)
    prefill = [max(1, math.ceil(rate / (per_prefill * prefill_use))) for rate in rates]
    decode = [max(1, math.ceil(max(smooth[max(0, i - 1) : i + 2]) / (per_decode * decode_use))) for i in range(slots)]
    return prefill, decode


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


def _without_gaps(need: list[int], gap: int) -> list[int]:
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


def _ahead(prefill: list[int], decode: list[int], lead_s: float) -> Plan:
    """Changes early enough: at each slot the most that is needed until what starts now is ready."""
    slots = math.ceil(lead_s / SLOT_S)
    plan: Plan = []
    for i in range(len(prefill)):
        layout = _within_budget(max(prefill[i : i + slots + 1]), max(decode[i : i + slots + 1]))
        if not plan or layout != plan[-1][1:]:
            plan.append((max(0.001, i * SLOT_S), *layout))
    return plan


def _within_budget(prefill: int, decode: int) -> tuple[int, int]:
    while prefill + decode > MAX_GPUS:
        prefill, decode = (prefill - 1, decode) if prefill > decode else (prefill, decode - 1)
    return prefill, decode
