"""Kubernetes' HorizontalPodAutoscaler on each pool: prefill by waiting requests a worker, decode by KV-cache use.

``desired = ⌈current · metric / target⌉`` every 15 s, nothing within 10 % of the target, at most +100 % or 4 pods a step
upwards, downwards the largest wish of the last 300 s (kubernetes.io, "Horizontal Pod Autoscaling", algorithm details
and default behaviour). Targets: 2 waiting requests a prefill worker, 0.8 of the KV cache as in LLM examples for it.
"""

import math
from dataclasses import dataclass

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy
from pointsman.planner.simulator.baselines.layouts import go_to, routed, stay
from pointsman.planner.simulator.types import Planner

SYNC_S = 15.0
TOLERANCE = 0.1
STABILIZATION_S = 300.0
WAITING_EACH = 2.0
KV_USE = 0.8


@dataclass(frozen=True, slots=True)
class State:
    """Wishes of the last five minutes: (when, prefill, decode)."""

    wishes: tuple[tuple[float, int, int], ...] = ()


def decide(
    state: State, observation: Observation, policy: Policy, now_s: float, _base: PerformanceModel | None
) -> tuple[State, Decision, NextTick]:
    """One sync of both autoscalers."""
    tick = NextTick(SYNC_S)
    service = observation.service
    usages = [
        worker.kv_usage for worker in observation.workers if worker.role is Role.DECODE and worker.kv_usage is not None
    ]
    if service is None or service.prefill_queue_depth is None or not usages:
        return state, routed(stay(observation, "a metric is missing")), tick
    prefill, decode = observation.committed(Role.PREFILL), observation.committed(Role.DECODE)
    # A pod that is not ready counts as using nothing when scaling up.
    wanted_prefill = _desired(prefill, service.prefill_queue_depth / max(prefill, 1) / WAITING_EACH)
    wanted_decode = _desired(decode, sum(usages) / max(decode, 1) / KV_USE)
    recent = tuple(wish for wish in state.wishes if wish[0] > now_s - STABILIZATION_S)
    wishes = (*recent, (now_s, wanted_prefill, wanted_decode))
    if wanted_prefill < prefill:
        wanted_prefill = min(prefill, max(wish[1] for wish in wishes))
    if wanted_decode < decode:
        wanted_decode = min(decode, max(wish[2] for wish in wishes))
    decision = go_to(observation, policy, wanted_prefill, wanted_decode, "HPA")
    return State(wishes), routed(decision), tick


def _desired(current: int, ratio: float) -> int:
    if abs(ratio - 1) <= TOLERANCE:
        return current
    return min(max(math.ceil(current * ratio), 1), max(2 * current, current + 4))


def hpa() -> Planner:
    """The planner."""
    return Planner("HPA on queue and KV use", decide, State, measured=True)
