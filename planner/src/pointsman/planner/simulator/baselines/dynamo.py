"""Dynamo-like: the planner of NVIDIA Dynamo 1.6.1, by its code (``core/throughput_scaling.py``,
``core/load_scaling.py``).

Throughput loop: ``⌈demand / rps⌉`` of each pool, no head-room, last value as the prediction, at most 8 a step; with the
load loop on it is only a floor. Load loop, every 5 s: +1 where the estimated TTFT (queue drained, then one mean
prompt) or the estimated step is over the objective, -1 where after consolidation it would stay below 0.8 of it. While
anything starts or drains the load loop only looks. Intervals 60 s and 5 s: its documentation's advice for changing
load, and kinder to it than its default of 180 s without a load loop.
"""

import math
from dataclasses import dataclass, replace

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy, WorkerCondition
from pointsman.planner.simulator.baselines.layouts import (
    NOTHING_SEEN,
    Seen,
    decode_requests_per_s,
    go_to,
    prefill_requests_per_s,
    routed,
    stay,
)
from pointsman.planner.simulator.types import Planner

LOAD_S = 5.0
THROUGHPUT_S = 60.0
SENSITIVITY = 0.8
MOST_A_STEP = 8


@dataclass(frozen=True, slots=True)
class State:
    """``floor``: what the throughput loop last wanted; arrivals are counted from one of its decisions to the next."""

    seen: Seen = NOTHING_SEEN
    arrivals: float = 0.0
    counted_s: float = 0.0
    next_s: float = THROUGHPUT_S
    floor: tuple[int, int] = (1, 1)


def decide(
    state: State, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None
) -> tuple[State, Decision, NextTick]:
    """One tick of both loops."""
    tick = NextTick(LOAD_S)
    load = observation.load
    if load is not None:
        state = replace(
            state,
            seen=state.seen.after(observation, THROUGHPUT_S / 3),
            arrivals=state.arrivals + load.arrivals_per_s * observation.window_s,
            counted_s=state.counted_s + observation.window_s,
        )
    if base is None or not state.seen.known:
        return state, routed(stay(observation, "the model is not ready")), tick
    now = observation.committed(Role.PREFILL), observation.committed(Role.DECODE)
    target = now
    if now_s >= state.next_s and state.counted_s > 0:
        rate = state.arrivals / state.counted_s
        floor = _floor(replace(state.seen, rate_per_s=rate), observation, policy, base, now)
        state = replace(state, floor=floor, arrivals=0.0, counted_s=0.0, next_s=now_s + THROUGHPUT_S)
        target = max(now[0], floor[0]), max(now[1], floor[1])
    moving = {WorkerCondition.STARTING, WorkerCondition.DRAINING, WorkerCondition.SWITCHING}
    if target == now and load is not None and not any(w.condition in moving for w in observation.workers):
        target = _reacted(state, observation, policy, base, now)
    decision = go_to(observation, policy, *target, f"floor {state.floor[0]}P{state.floor[1]}D")
    return state, routed(decision), tick


def _floor(
    seen: Seen, observation: Observation, policy: Policy, base: PerformanceModel, now: tuple[int, int]
) -> tuple[int, int]:
    decoded = decode_requests_per_s(seen, base, policy.objectives.tpot_ms, observation.kv_capacity_tokens)
    prefill = math.ceil(seen.rate_per_s / prefill_requests_per_s(seen, base))
    decode = math.ceil(seen.rate_per_s / decoded) if decoded > 0 else now[1]
    return (
        min(max(prefill, 1, now[0] - MOST_A_STEP), now[0] + MOST_A_STEP),
        min(max(decode, 1, now[1] - MOST_A_STEP), now[1] + MOST_A_STEP),
    )


def _reacted(
    state: State, observation: Observation, policy: Policy, base: PerformanceModel, now: tuple[int, int]
) -> tuple[int, int]:
    seen, objectives, (prefill, decode) = state.seen, policy.objectives, now
    depth = (observation.service.prefill_queue_depth if observation.service else None) or 0.0
    own_ms = base.prefill_ms(seen.prompt_tokens, 0)
    queue_ms = depth / prefill / prefill_requests_per_s(seen, base) * 1000
    slack_ms = objectives.ttft_for(seen.prompt_tokens) - own_ms
    if queue_ms > slack_ms:
        prefill += 1
    elif prefill > state.floor[0] and queue_ms * prefill / (prefill - 1) < SENSITIVITY * slack_ms:
        prefill -= 1
    running = [w for w in observation.workers if w.role is Role.DECODE and w.in_flight is not None]
    batch = sum(w.in_flight or 0 for w in running) / max(len(running), 1)
    context = seen.prompt_tokens + seen.output_tokens / 2
    room = observation.kv_capacity_tokens or math.inf
    if batch >= 1:
        step_ms = base.decode_step_ms(batch, batch * context)
        fuller = batch * decode / (decode - 1) if decode > 1 else math.inf
        if step_ms > objectives.tpot_ms or batch * context > room:
            decode += 1
        elif (
            decode > max(state.floor[1], 1)
            and base.decode_step_ms(fuller, fuller * context) < SENSITIVITY * objectives.tpot_ms
            and fuller * context < SENSITIVITY * room
        ):
            decode -= 1
    return prefill, decode


def dynamo() -> Planner:
    """The planner."""
    return Planner("Dynamo-like", decide, State, measured=True)
