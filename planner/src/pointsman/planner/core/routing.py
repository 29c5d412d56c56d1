"""The published threshold of the local/remote rule: additive increase, multiplicative decrease on what clients get.

A low threshold sends more prompts to the prefill pool and spares the decode steps; a high one keeps them on the decode
workers and spares the prefill queue. It is the fastest thing the planner can move: the next request already uses it.
"""

from pointsman.planner.core.types import Observation, Policy, RoutingNumbers

DECREASE = 0.7
INCREASE_TOKENS = 128
QUEUE_SHARE_OF_SLACK = 0.5  # waiting may use this much of the TTFT objective before prompts are kept local
TPOT_HEADROOM = 0.02  # above the objective's attainment before decode workers are given more prefills
LEAST_STEP_TOKENS = 64
LEAST_STEP_SHARE = 0.10


def threshold(observation: Observation, policy: Policy, prefill_wait_ms: float | None) -> RoutingNumbers:
    """The numbers to publish. ``prefill_wait_ms``: how long a request waits for a prefill worker now; None: unknown.

    Unknown attainment moves nothing. A change below 64 tokens and below 10 % is not made: it would be a plan for noise.
    """
    now = observation.routing
    if not policy.remote_prefill:
        return now
    service = observation.service
    tokens = float(now.max_local_prefill_tokens)
    goal = policy.objectives.attainment
    if service is not None and service.tpot_attainment is not None:
        if service.tpot_attainment < goal:
            tokens *= DECREASE
        elif (
            prefill_wait_ms is not None
            and prefill_wait_ms > QUEUE_SHARE_OF_SLACK * policy.objectives.ttft_ms
            and service.tpot_attainment >= min(goal + TPOT_HEADROOM, 1.0)
        ):
            tokens = max(tokens + INCREASE_TOKENS, tokens * (1 + LEAST_STEP_SHARE))
    wanted = int(min(max(tokens, policy.min_threshold_tokens), policy.max_threshold_tokens))
    step = abs(wanted - now.max_local_prefill_tokens)
    if step < LEAST_STEP_TOKENS and step < LEAST_STEP_SHARE * max(now.max_local_prefill_tokens, 1):
        wanted = now.max_local_prefill_tokens
    return RoutingNumbers(wanted, policy.max_queue_size)
