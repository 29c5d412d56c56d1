"""Arrow-like (arXiv 2505.11916): a fixed number of stateless instances that flip between the pools, and nothing else.

A decode instance with the least load becomes prefill when the predicted TTFT (queue over the pool, then the prompt)
breaks its objective and decode can spare it; the other way round when a step is about to break its objective, which
has priority.
"""

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

INTERVAL_S = 2.5
WINDOW_S = 10.0
TPOT_AT_RISK = 0.9
SPARE = 0.8  # of the objective, after giving one away
TTFT_AT_RISK = 0.7


@dataclass(frozen=True, slots=True)
class State:
    """Mean load."""

    seen: Seen = NOTHING_SEEN


def decide(
    state: State, observation: Observation, policy: Policy, _now_s: float, base: PerformanceModel | None
) -> tuple[State, Decision, NextTick]:
    """One look; at most one flip at a time."""
    tick = NextTick(INTERVAL_S)
    state = replace(state, seen=state.seen.after(observation, WINDOW_S))
    moving = any(worker.condition is not WorkerCondition.ACTIVE for worker in observation.workers)
    if base is None or not state.seen.known or observation.load is None or moving:
        return state, routed(stay(observation, "nothing to decide on")), tick
    seen, objectives = state.seen, policy.objectives
    prefill, decode = observation.committed(Role.PREFILL), observation.committed(Role.DECODE)
    depth = (observation.service.prefill_queue_depth if observation.service else None) or 0.0
    each_per_s = prefill_requests_per_s(seen, base)
    ttft_ms = depth / prefill / each_per_s * 1000 + base.prefill_ms(seen.prompt_tokens, 0)
    decoded = decode_requests_per_s(seen, base, objectives.tpot_ms, observation.kv_capacity_tokens)
    busy = seen.rate_per_s / (decode * decoded) if decoded > 0 else 1.0
    working = seen.rate_per_s / (prefill * each_per_s)
    if busy > TPOT_AT_RISK and prefill > 1 and working * prefill / (prefill - 1) < 1:
        return state, go_to(observation, policy, prefill - 1, decode + 1, "TPOT at risk", switching=True), tick
    late = ttft_ms > TTFT_AT_RISK * objectives.ttft_for(seen.prompt_tokens) or working > 1
    if late and decode > 1 and busy * decode / (decode - 1) < SPARE:
        return state, go_to(observation, policy, prefill + 1, decode - 1, "TTFT at risk", switching=True), tick
    return state, routed(stay(observation, "within objectives")), tick


def arrow() -> Planner:
    """The planner."""
    return Planner("Arrow-like", decide, State, measured=True)
