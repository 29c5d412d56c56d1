"""The published threshold of the local/remote rule: additive increase, multiplicative decrease on what clients get.

A low threshold sends more prompts to the prefill pool and spares the decode steps; a high one keeps them on the decode
workers and spares the prefill queue. It is the fastest thing the planner can move: the next request already uses it.
"""

from pointsman.planner.core.types import Observation, Policy, RoutingNumbers
from pointsman.serving.local_remote import DEFAULT_RULE

DECREASE = 0.7
INCREASE_TOKENS = 128
RECOVER_TOKENS = 64
QUEUE_SHARE_OF_SLACK = 0.5  # waiting may use this much of the TTFT objective before prompts are kept local
TPOT_HEADROOM = 0.02  # above the objective's attainment before decode workers are given more prefills
STEP_TOKENS = 64  # numbers are multiples of this: a smaller change would be a plan for noise


def threshold(observation: Observation, policy: Policy, prefill_wait_ms: float | None) -> RoutingNumbers:
    """The numbers to publish. ``prefill_wait_ms``: how long a request waits for a prefill worker now; None: unknown.

    Unknown attainment moves nothing. Below where every service begins (512 tokens) the threshold comes back by itself
    while decode steps are fine; above, only a long prefill queue raises it.
    """
    now = observation.routing
    service = observation.service
    if not policy.remote_prefill or service is None or service.tpot_attainment is None:
        return now
    tokens = now.max_local_prefill_tokens
    goal = policy.objectives.attainment
    comfortable = service.tpot_attainment >= min(goal + TPOT_HEADROOM, 1.0)
    if service.tpot_attainment < goal:
        tokens = int(tokens * DECREASE) // STEP_TOKENS * STEP_TOKENS
    elif comfortable and prefill_wait_ms is not None and prefill_wait_ms > _patience_ms(policy):
        tokens = (tokens + INCREASE_TOKENS) // STEP_TOKENS * STEP_TOKENS
    elif comfortable and tokens < DEFAULT_RULE.max_local_prefill_tokens:
        tokens = (tokens + RECOVER_TOKENS) // STEP_TOKENS * STEP_TOKENS
    tokens = min(max(tokens, policy.min_threshold_tokens), policy.max_threshold_tokens)
    return RoutingNumbers(tokens, policy.max_queue_size)


def _patience_ms(policy: Policy) -> float:
    return QUEUE_SHARE_OF_SLACK * policy.objectives.ttft_ms
