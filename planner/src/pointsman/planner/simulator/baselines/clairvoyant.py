"""A schedule made with the trace in hand: what nobody can know, as the bound for everybody.

From the trace and the true engine follow, slot by slot, the work for prefill and the sequences in decode; from them the
workers each pool needs. What starts is ordered its lead earlier, valleys shorter than that are not emptied, and every
schedule is played with the leads and the noise that all others have. Several head-rooms are tried: the result is the
cheapest that reaches the attainment. It is what was achieved, not a proof that nothing is better.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy, RoutingNumbers
from pointsman.planner.simulator.baselines.layouts import ALL_REMOTE, clamped, go_to, routed, stay
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Floats, Planner, Result, Simulation, Trace

SLOT_S = 2.5
PREFILL_USES = (0.95, 0.8, 0.65)  # of a worker's time
DECODE_USES = (1.05, 0.95)  # of the batch that keeps the objective
LONGEST_SMOOTHING_S = 20.0  # over which prefill work may be moved: its requests can wait


@dataclass(frozen=True, slots=True)
class Need:
    """Per slot: seconds of prefill work, sequences in decode, and the KV tokens they hold."""

    work_s: Floats
    sequences: Floats
    kv_tokens: Floats


def search(trace: Trace, simulation: Simulation, policy: Policy, attainment: float = 0.95) -> Result:
    """The cheapest schedule that reaches ``attainment``; where none does, the one with the most."""
    need = needed(trace, simulation, policy)
    found: list[Result] = []
    for uses in product(PREFILL_USES, DECODE_USES):
        schedule = scheduled(need, simulation, policy, *uses)
        found.append(simulate(trace, simulation, policy, following(schedule)))
    enough = [result for result in found if result.attainment >= attainment]
    if enough:
        return min(enough, key=lambda result: result.gpu_hours)
    return max(found, key=lambda result: (round(result.attainment, 3), -result.gpu_hours))


def needed(trace: Trace, simulation: Simulation, policy: Policy) -> Need:
    """What the trace asks of each slot, with decode as slow as the objective allows."""
    tpot_s = policy.objectives.tpot_ms / 1000
    slots = int((trace.duration_s + float(trace.output_tokens.max(initial=1)) * tpot_s) / SLOT_S) + 2
    work, sequences, kv = np.zeros(slots), np.zeros(slots), np.zeros(slots)
    for at_s, prompt, output, work_s in zip(
        trace.arrival_s.tolist(),
        trace.prompt_tokens.tolist(),
        trace.output_tokens.tolist(),
        prefill_work_s(trace, simulation).tolist(),
        strict=True,
    ):
        work[int(at_s / SLOT_S)] += work_s
        begin, end = at_s / SLOT_S, (at_s + output * tpot_s) / SLOT_S
        for slot in range(int(begin), min(int(end), slots - 1) + 1):
            share = min(end, slot + 1) - max(begin, slot)
            sequences[slot] += share
            kv[slot] += share * (prompt + output / 2)
    return Need(work, sequences, kv)


def prefill_work_s(trace: Trace, simulation: Simulation) -> Floats:
    """Seconds of a prefill worker that each request takes, what the cache holds of it left out."""
    engine, cache = simulation.engine, simulation.prefix_cache
    model = engine.performance
    cached = cache.assumed_hit_share if cache.enabled else 0.0
    fixed_ms = model.prefill_ms(0, 0)
    work = np.zeros(len(trace))
    known: set[int] = set()
    for index, prompt in enumerate(trace.prompt_tokens.tolist()):
        held = int(prompt * cached)
        if trace.prefix_blocks is not None and cache.enabled:
            blocks = trace.prefix_blocks[index]
            matched = next((i for i, block in enumerate(blocks) if block not in known), len(blocks))
            held = min(matched * trace.block_tokens, prompt - 1)
            known.update(blocks)
        own_ms = model.prefill_ms(prompt - held, held) - fixed_ms
        share_of_step = min(prompt / simulation.routing.prefill_token_budget, 1.0)
        work[index] = simulation.truth.prefill_kappa * (own_ms + fixed_ms * share_of_step) / 1000
    return work


def scheduled(
    need: Need,
    simulation: Simulation,
    policy: Policy,
    prefill_use: float,
    decode_use: float,
) -> tuple[tuple[int, int], ...]:
    """(prefill, decode) to ask for at the beginning of each slot."""
    smoothing_s = min(2 * policy.objectives.ttft_ms / 1000, LONGEST_SMOOTHING_S)
    width = max(1, round(smoothing_s / SLOT_S))
    # Work may be done up to the smoothing later, never earlier.
    rate = np.convolve(need.work_s, np.ones(width) / width)[: len(need.work_s)] / SLOT_S
    prefill = np.maximum(np.ceil(rate / prefill_use), 1).astype(int)
    decode = np.array(
        [
            decoders(float(n), float(k), simulation, policy, decode_use)
            for n, k in zip(need.sequences, need.kv_tokens, strict=True)
        ]
    )
    lead = math.ceil((simulation.leads.start_s + simulation.leads.reaction_s) / SLOT_S)
    pools = [most_ahead(without_valleys(pool, lead), lead) for pool in (prefill, decode)]
    gpus = simulation.engine.gpus
    return tuple(clamped(int(p), int(d), policy, gpus) for p, d in zip(*pools, strict=True))


def decoders(sequences: float, kv_tokens: float, simulation: Simulation, policy: Policy, use: float) -> int:
    """The fewest decode workers whose step keeps the objective and whose KV caches hold it."""
    engine, kappa = simulation.engine, simulation.truth.decode_kappa
    for workers in range(1, policy.decode.most + 1):
        batch, kv = sequences / workers, kv_tokens / workers
        fits = kv <= 0.9 * engine.kv_capacity_tokens and batch <= engine.max_batch
        if fits and (
            batch < 1 or kappa * engine.performance.decode_step_ms(batch, kv) <= use * policy.objectives.tpot_ms
        ):
            return workers
    return policy.decode.most


def without_valleys(need: Sequence[int] | np.ndarray, slots: int) -> np.ndarray:
    """Valleys of at most ``slots`` filled: to empty and start again would cost more than to keep."""
    filled = np.array(need)
    for level in range(1, int(filled.max(initial=1)) + 1):
        at = np.flatnonzero(filled >= level)
        for before, after in pairwise(at.tolist()):
            if 1 < after - before <= slots:
                filled[before:after] = np.maximum(filled[before:after], level)
    return filled


def most_ahead(need: np.ndarray, slots: int) -> np.ndarray:
    """The most needed from each slot to ``slots`` later."""
    padded = np.concatenate([need, np.full(slots, need[-1])])
    ahead: np.ndarray = np.lib.stride_tricks.sliding_window_view(padded, slots + 1).max(axis=1)
    return ahead


def following(
    schedule: Sequence[tuple[int, int]],
    name: str = "clairvoyant",
    routings: Sequence[RoutingNumbers] = (ALL_REMOTE,),
) -> Planner:
    """A planner that asks for the schedule's layouts and routing, a slot each; the last one for all that follow."""

    def decide(
        state: tuple[int, int] | None,
        observation: Observation,
        policy: Policy,
        now_s: float,
        _base: PerformanceModel | None,
    ) -> tuple[tuple[int, int] | None, Decision, NextTick]:
        slot = int(now_s / SLOT_S)
        target = schedule[min(slot, len(schedule) - 1)]
        now = observation.committed(Role.PREFILL), observation.committed(Role.DECODE)
        # Asked for again when something else came of it, but not while it is being done.
        if target == state and (observation.plan_in_progress or target == now):
            decision = stay(observation, "as scheduled")
        else:
            decision = go_to(observation, policy, *target, "as scheduled", switching=True)
        return target, routed(decision, routings[min(slot, len(routings) - 1)]), NextTick(SLOT_S)

    return Planner(name, decide, lambda: None)
