"""TokenScale-like (arXiv 2512.03416): token arrival rate against what each stage can pass, its "velocity".

Prefill: ``⌈λ_in / V_P⌉`` with V_P the input tokens one worker computes a second. Decode: ``⌈λ · L / V_D⌉`` with V_D the
tokens of memory one worker frees a second, which is the same as rate × residence over batch. One decode worker more
than that is convertible: while the prefill pool is behind, prompts are computed on decode workers (here: the
threshold goes to the highest there is, which converts them all a little instead of one wholly). The formulas are our
reading of the paper's.
"""

import math
from dataclasses import dataclass, replace

from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy, RoutingNumbers
from pointsman.planner.simulator.baselines.layouts import (
    ALL_REMOTE,
    NOTHING_SEEN,
    Seen,
    decode_requests_per_s,
    go_to,
    prefill_requests_per_s,
    routed,
    stay,
)
from pointsman.planner.simulator.types import Planner
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET

INTERVAL_S = 5.0
WINDOW_S = 10.0
CONVERTIBLE = 1
HOLD_S = 120.0  # before the pools may shrink
MOST_QUEUED = 32  # prompts, before others are computed where they decode


@dataclass(frozen=True, slots=True)
class State:
    """``wishes``: (when, prefill, decode) of the last ``HOLD_S``."""

    seen: Seen = NOTHING_SEEN
    wishes: tuple[tuple[float, int, int], ...] = ()


def decide(
    state: State, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None
) -> tuple[State, Decision, NextTick]:
    """One look."""
    tick = NextTick(INTERVAL_S)
    state = replace(state, seen=state.seen.after(observation, WINDOW_S))
    if base is None or not state.seen.known or observation.load is None:
        return state, routed(stay(observation, "not enough seen")), tick
    seen = state.seen
    decoded = decode_requests_per_s(seen, base, policy.objectives.tpot_ms, observation.kv_capacity_tokens)
    if decoded <= 0:
        return state, stay(observation, "no sequence fits"), tick
    prefill = max(1, math.ceil(seen.rate_per_s / prefill_requests_per_s(seen, base)))
    decode = max(1, math.ceil(seen.rate_per_s / decoded)) + CONVERTIBLE
    wishes = (*(wish for wish in state.wishes if wish[0] > now_s - HOLD_S), (now_s, prefill, decode))
    prefill, decode = max(wish[1] for wish in wishes), max(wish[2] for wish in wishes)
    depth = observation.service.prefill_queue_depth if observation.service else None
    waits_ms = (depth or 0.0) / prefill_requests_per_s(seen, base) * 1000
    behind = waits_ms > 0.5 * policy.objectives.ttft_ms
    routing = RoutingNumbers(DEFAULT_PREFILL_TOKEN_BUDGET, MOST_QUEUED) if behind else ALL_REMOTE
    decision = go_to(observation, policy, prefill, decode, f"{seen.rate_per_s:.1f} requests/s")
    return replace(state, wishes=wishes), routed(decision, routing), tick


def tokenscale() -> Planner:
    """The planner."""
    return Planner("TokenScale-like", decide, State, measured=True)
