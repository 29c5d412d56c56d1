"""The published threshold of the local/remote rule.

A low threshold sends more prompts to the prefill pool and spares the decode steps; a high one keeps them on the decode
workers and spares the prefill queue. It is the fastest thing the planner can move: the next request already uses it.

Two things bound it from above. What clients get (multiplicative decrease, as in TCP, where local prefills can be what
they suffer from): a model is never quite right. And what the decode workers can prefill beside their steps by the
model: clients notice only when it is too late, and a threshold that is too high by the model would come down again. A
step that gives them nothing more to do (no prompt is that long) is not kept from it by their being too few already.

What came down comes back after a rest, at once as far as the model lets it; where it then had to come down again soon,
the rest doubles: a load between two thresholds is no reason to go to and fro.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.planner.core.hysteresis import RaiseHoldoff, more_than_enough
from pointsman.planner.core.sizing.operating_point import BUCKET_REACH, OperatingPoint
from pointsman.planner.core.types import Objectives, Observation, Policy, RoutingNumbers
from pointsman.serving.local_remote import DEFAULT_RULE
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET

STEP_TOKENS: Final = 64  # numbers are multiples of this: a smaller change would be a plan for noise


def threshold(
    rest: RaiseHoldoff,
    observation: Observation,
    policy: Policy,
    point: OperatingPoint,
    rate_per_s: float,
    deviations: float,
    prefill_wait_ms: float | None,
) -> tuple[RaiseHoldoff, RoutingNumbers]:
    """The numbers to publish, and what is remembered of the threshold.

    ``deviations``: of the decode pool's staffing; ``prefill_wait_ms``: how long a request waits for a prefill worker
    now, None: unknown. Unknown attainment moves nothing. Below where every service begins (512 tokens) the threshold
    comes back by itself while decode steps are fine; above, only a long prefill queue raises it.
    """
    now, now_s, tuning = observation.routing, observation.at_s, policy.tuning
    service = observation.service
    if not policy.remote_prefill or service is None or service.tpot_attainment is None:
        return rest, now
    decoders = observation.serving(Role.DECODE)

    def needs(tokens: int, rate: float) -> float:
        return point.at_threshold(tokens).decode_workers(rate, deviations)

    def fits(tokens: int, rate: float) -> bool:
        return needs(tokens, rate) <= decoders

    def may_rise_to(tokens: int) -> bool:
        if observation.unread_gateways:
            return False  # of a part of the load nobody knows what fits
        rate = tuning.rate_headroom * rate_per_s
        # Too few already, but not for this.
        return fits(tokens, rate) or all(needs(tokens, r) <= needs(before, r) for r in (rate_per_s, rate))

    before = tokens = now.max_local_prefill_tokens
    goal, usual = policy.objectives.attainment, DEFAULT_RULE.max_local_prefill_tokens
    rests_s = rest.since_lowered_s(now_s)
    # Answers that began before it came down say nothing of it.
    answered = rests_s >= answer_s(point, policy.objectives)
    comfortable = service.tpot_attainment >= more_than_enough(goal)
    queues = prefill_wait_ms is not None and prefill_wait_ms > 0.5 * point.ttft_s * 1000
    rises: Iterator[int] = iter(())
    late = 1 - service.tpot_attainment
    here = point.at_threshold(before)
    if answered and late > 1 - goal and local_prefills_can_be_why(here, rate_per_s / max(1, decoders), late):
        tokens = int(before * tuning.threshold_decrease) // STEP_TOKENS * STEP_TOKENS
    elif comfortable and queues and rests_s >= rest.rest_s:
        rises = iter(((before + tuning.threshold_increase_tokens) // STEP_TOKENS * STEP_TOKENS,))
    elif comfortable and before < usual and rests_s >= max(rest.rest_s, tuning.holdoff_s):
        rises = (t for t in (usual, *_lengths(point, usual)) if t > before)
    tokens = next((t for t in rises if may_rise_to(t)), tokens)
    if point.local_share(before) > 0 and not fits(tokens, rate_per_s):
        shorter = [*_lengths(point, tokens)]
        # Too few whatever they leave to others: what spares them most, and of that the highest. A lower one would be
        # raised again at once.
        spares = min((tokens, *shorter, 0), key=lambda t: needs(t, rate_per_s))
        tokens = next((t for t in shorter if fits(t, rate_per_s)), spares)
    tokens = min(tokens, DEFAULT_PREFILL_TOKEN_BUDGET)  # a longer prompt takes more than one pass of the engine
    if tokens != before:
        first_s = tuning.holdoff_s
        rest = rest.lowered(now_s, first_s, 16 * first_s) if tokens < before else rest.raised(now_s)
    return rest, replace(now, max_local_prefill_tokens=tokens)


def answer_s(point: OperatingPoint, objectives: Objectives) -> float:
    """How long an answer of the mean length takes that just keeps the token objective; seconds."""
    return point.output_tokens * objectives.tpot_ms / 1000


def local_prefills_can_be_why(point: OperatingPoint, rate_per_s: float, late: float) -> bool:
    """Whether the prefills of a decode worker that gets so many requests a second can have made ``late`` of them so.

    Not where they stopped fewer than half as many, or made those that they stopped longer by less than a twentieth.
    """
    local = 1 - point.remote_share
    decoding_s = point.output_tokens * point.step_s
    stops = rate_per_s * local * decoding_s  # of an answer
    longer_s = max(1.0, stops) * point.local_s / max(local, 1e-9)  # of those that were stopped
    return stops >= 0.5 * late and longer_s >= 0.05 * decoding_s


def _lengths(point: OperatingPoint, below: int) -> Iterator[int]:
    """Thresholds worth a thought, from the highest: at, or within, a bucket of lengths."""
    reaches = [BUCKET_REACH**n for n in (0.0, 0.5, 1.0, 1.5)]
    lengths = sorted((p.shortest * reach for p in point.prompts for reach in reaches), reverse=True)
    return (math.floor(length / STEP_TOKENS) * STEP_TOKENS for length in lengths if length < below)
