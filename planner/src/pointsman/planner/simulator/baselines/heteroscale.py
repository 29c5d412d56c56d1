"""HeteroScale-like (arXiv 2508.19559): decode tokens a second and instance as the one signal, both pools in one ratio.

Proportional control with a band of ±10 %; latency only as a guard: one step out while TTFT or TPOT is over 1.2 times
its objective. The ratio is what the model says for the first lengths seen, and then stays, as in the paper; the
target is 0.7 of what a decode worker makes at its objective. (Band and guard factor are from third parties' accounts
of the paper.)
"""

import math
from dataclasses import dataclass, replace

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy
from pointsman.planner.simulator.baselines.layouts import (
    NOTHING_SEEN,
    Seen,
    decode_requests_per_s,
    go_to,
    prefill_requests_per_s,
    routed,
    stay,
)
from pointsman.planner.simulator.latencies import TimedService
from pointsman.planner.simulator.types import Planner

INTERVAL_S = 15.0
BAND = 0.10
UTILISATION = 0.7
GUARD = 1.2
COOL_DOWN_S = 120.0
WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class State:
    """``ratio``: prefill workers for each decode worker; ``tokens_per_s``: target of one decode worker."""

    seen: Seen = NOTHING_SEEN
    ratio: float = math.nan
    tokens_per_s: float = math.nan
    moved_s: float = -math.inf


def decide(
    state: State, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None
) -> tuple[State, Decision, NextTick]:
    """One look."""
    tick = NextTick(INTERVAL_S)
    state = replace(state, seen=state.seen.after(observation, WINDOW_S))
    if base is None or not state.seen.known or now_s < 2 * WINDOW_S:
        return state, routed(stay(observation, "not enough seen")), tick
    if math.isnan(state.ratio):
        tpot_ms = policy.objectives.tpot_ms
        decoded = decode_requests_per_s(state.seen, base, tpot_ms, observation.kv_capacity_tokens)
        if decoded <= 0:
            return state, stay(observation, "no sequence fits"), tick
        ratio = decoded / prefill_requests_per_s(state.seen, base)
        state = replace(state, ratio=ratio, tokens_per_s=UTILISATION * decoded * state.seen.output_tokens)
    decode = observation.committed(Role.DECODE)
    ratio = state.seen.rate_per_s * state.seen.output_tokens / (decode * state.tokens_per_s)
    wanted, why = decode, "within the band"
    if abs(ratio - 1) > BAND:
        wanted, why = math.ceil(decode * ratio), f"{ratio:.2f} of the target"
    service = observation.service
    late = isinstance(service, TimedService) and (
        1000 * (service.ttft_p95_s or 0) > GUARD * policy.objectives.ttft_ms
        or 1000 * (service.tpot_p95_s or 0) > GUARD * policy.objectives.tpot_ms
    )
    if late and wanted <= decode:
        wanted, why = decode + 1, "latency guard"
    if wanted < decode and now_s - state.moved_s < COOL_DOWN_S:
        return state, stay(observation, "cooling down"), tick
    if late and now_s - state.moved_s < COOL_DOWN_S and why == "latency guard":
        return state, stay(observation, "cooling down"), tick
    if wanted != decode:
        prefill = max(1, math.ceil(wanted * state.ratio))
        return replace(state, moved_s=now_s), routed(go_to(observation, policy, prefill, wanted, why)), tick
    return state, routed(stay(observation, why)), tick


def heteroscale() -> Planner:
    """The planner."""
    return Planner("HeteroScale-like", decide, State, measured=True)
