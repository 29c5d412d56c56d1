"""The published threshold of the local/remote rule.

A low threshold sends more prompts to the prefill pool and spares the decode steps; a high one keeps them on the decode
workers and spares the prefill queue. It is the fastest thing the planner can move: the next request already uses it.

Two things bound it from above. What clients get (multiplicative decrease, additive increase, as in TCP): a model is
never quite right. And what the decode workers can prefill beside their steps by the model: clients notice only when it
is too late, and a threshold that is too high by the model would come down again. A step that gives them nothing more to
do (no prompt is that long) is not kept from it by their being too few already.
"""

import math
from typing import Final

from pointsman.planner.core.margin import ATTAINMENT_HEADROOM
from pointsman.planner.core.sizing import BUCKET_REACH, OperatingPoint
from pointsman.planner.core.types import Observation, Policy, RoutingNumbers, WorkerRole
from pointsman.serving.local_remote import DEFAULT_RULE

DECREASE: Final = 0.7
INCREASE_TOKENS: Final = 128
RECOVER_TOKENS: Final = 64
QUEUE_SHARE_OF_TTFT: Final = 0.5  # waiting may use this much of the TTFT objective before prompts are kept local
RATE_HEADROOM: Final = 1.1  # in the rate, likewise: what is raised should not have to come down at once
REACHES: Final = tuple(BUCKET_REACH**n for n in (0.0, 0.5, 1.0, 1.5))  # of a bucket of lengths, what is tried
STEP_TOKENS: Final = 64  # numbers are multiples of this: a smaller change would be a plan for noise


def highest(observation: Observation, policy: Policy) -> int:
    """The highest threshold that may be thought of next, in tokens; 0 where all is prefilled where it decodes."""
    now = observation.routing.max_local_prefill_tokens
    return max(now, DEFAULT_RULE.max_local_prefill_tokens) + INCREASE_TOKENS if policy.remote_prefill else 0


def threshold(
    observation: Observation,
    policy: Policy,
    point: OperatingPoint,
    rate_per_s: float,
    deviations: float,
    prefill_wait_ms: float | None,
) -> RoutingNumbers:
    """The numbers to publish.

    ``deviations``: of the decode pool's staffing; ``prefill_wait_ms``: how long a request waits for a prefill worker
    now, None: unknown. Unknown attainment moves nothing. Below where every service begins (512 tokens) the threshold
    comes back by itself while decode steps are fine; above, only a long prefill queue raises it.
    """
    now = observation.routing
    service = observation.service
    if not policy.remote_prefill or service is None or service.tpot_attainment is None:
        return now
    decoders = observation.serving(WorkerRole.DECODE)

    def needs(tokens: int, rate: float) -> float:
        return point.at_threshold(tokens).decode_workers(rate, deviations)

    def fits(tokens: int, rate: float) -> bool:
        return needs(tokens, rate) <= decoders

    tokens = now.max_local_prefill_tokens
    goal = policy.objectives.attainment
    local = any(prompts.local_share(tokens) > 0 for prompts in point.prompts)
    comfortable = service.tpot_attainment >= min(goal + ATTAINMENT_HEADROOM, 1.0)
    queues = prefill_wait_ms is not None and prefill_wait_ms > QUEUE_SHARE_OF_TTFT * point.ttft_s * 1000
    raised = None
    if local and service.tpot_attainment < goal:
        tokens = int(tokens * DECREASE) // STEP_TOKENS * STEP_TOKENS
    elif comfortable and queues:
        raised = (tokens + INCREASE_TOKENS) // STEP_TOKENS * STEP_TOKENS
    elif comfortable and tokens < DEFAULT_RULE.max_local_prefill_tokens:
        raised = (tokens + RECOVER_TOKENS) // STEP_TOKENS * STEP_TOKENS
    if raised is not None:
        rate = RATE_HEADROOM * rate_per_s
        gives_nothing = all(needs(raised, r) <= needs(tokens, r) for r in (rate_per_s, rate))
        if fits(raised, rate) or gives_nothing:  # too few already, but not for this
            tokens = raised
    if local and not fits(tokens, rate_per_s):
        lengths = sorted((p.shortest * reach for p in point.prompts for reach in REACHES), reverse=True)
        shorter = [math.floor(length / STEP_TOKENS) * STEP_TOKENS for length in lengths if length < tokens]
        # Too few whatever they leave to others: what spares them most, and of that the highest. A lower one would be
        # raised again at once.
        spares = min((tokens, *shorter, 0), key=lambda t: needs(t, rate_per_s))
        tokens = next((t for t in shorter if fits(t, rate_per_s)), spares)
    tokens = min(max(tokens, policy.min_threshold_tokens), policy.max_threshold_tokens)
    return RoutingNumbers(tokens, policy.max_queue_size)
