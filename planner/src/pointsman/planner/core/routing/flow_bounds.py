"""The numbers of flow control: how much a gateway may have under way before it holds requests back.

A prompt that finds more ahead of it than its prefill workers compute within the slack of the TTFT objective is late,
and a sequence beyond the batch that keeps the token objective makes all others late. See
``pointsman.serving.flow_control`` for what a gateway does then.
"""

import math

from pointsman.api.protocol.names import Role
from pointsman.planner.core.messages import routing
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.types import Observation, Policy
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds


def flow_bounds(observation: Observation, policy: Policy, point: OperatingPoint, rate_per_s: float) -> FlowBounds:
    """What to publish; None for a bound that cannot be kept (an objective that even an idle worker misses)."""
    if not policy.flow_control:
        return UNBOUNDED
    before, band = observation.routing.flow, policy.tuning.flow_dead_band
    lower_band = 0.05 if _too_slow(observation, policy) else None
    decoding = _decoding(point, rate_per_s / max(1, observation.serving(Role.DECODE)))
    pending, slack_ms = _pending_tokens(observation, point), point.slack_s * 1000
    found = FlowBounds(
        _settled(before.pending_tokens_per_prefill_worker, pending, observation.gateways, band),
        _settled(before.decoding_per_decode_worker, decoding, observation.gateways, band, lower_band=lower_band),
        _settled(before.slack_ms, slack_ms if pending is not None else None, 1, band),
    )
    return _lower(before, found) if observation.unread_gateways else found


def _lower(before: FlowBounds, found: FlowBounds) -> FlowBounds:
    """Of each bound the lower one: of a part of the load none is raised or taken away. The slack follows the load."""

    def lower(old: int | None, new: int | None) -> int | None:
        return min((bound for bound in (old, new) if bound is not None), default=None)

    return FlowBounds(
        lower(before.pending_tokens_per_prefill_worker, found.pending_tokens_per_prefill_worker),
        lower(before.decoding_per_decode_worker, found.decoding_per_decode_worker),
        before.slack_ms if found.slack_ms is None else found.slack_ms,
    )


def queue_limit(observation: Observation, policy: Policy, point: OperatingPoint) -> int:
    """Prompts in the prefill queue from which on others are prefilled where they decode.

    Those that may wait and still be in time fill the queue up to ``queue_full_share``: what is beyond would be late.
    """
    workers, before = max(1, observation.serving(Role.PREFILL)), observation.routing.max_prefill_queue_size
    limit = math.ceil(workers * _prompts_in_time(point) / policy.tuning.queue_full_share)
    return _settled(before, limit, 1, policy.tuning.flow_dead_band) or 1


def _too_slow(observation: Observation, policy: Policy) -> bool:
    """Whether too few answers are within the token objective. Unknown: no."""
    within = observation.service.tpot_attainment if observation.service else None
    return within is not None and within < policy.objectives.attainment


def is_overloaded(observation: Observation, policy: Policy) -> bool:
    """Whether requests wait at the gateways, or clients get less than the objective. Unknown: no."""
    service = observation.service
    if service is None:
        return False
    late = service.attainment is not None and service.attainment < policy.objectives.attainment
    return late or bool(service.held)


def in_words(bounds: FlowBounds) -> str:
    """From when on a gateway queues requests."""
    return routing.queueing(bounds.pending_tokens_per_prefill_worker, bounds.decoding_per_decode_worker)


def _pending_tokens(observation: Observation, point: OperatingPoint) -> float | None:
    """Tokens of prompts without a first token, for each prefill worker: of those that it computes within the slack, of
    those that it computed and that wait for their first step, and of those that decode workers compute meanwhile."""
    if point.queued_tokens <= 0 or point.reachable_s >= point.ttft_s:
        return None
    # Not their transfer: that takes longer the more are let through, where the network is slow.
    remote = point.queued_tokens * (_prompts_in_time(point) + point.first_step_s / point.prefill_s)
    local_share = 1 - point.remote_share
    if local_share <= 0 or point.local_s <= 0:
        return remote
    own_s = point.local_s / local_share  # of a decode worker, for one prompt
    pending_s = own_s + point.first_step_s
    # One that each decode worker computes, and those that wait for a step; not more than come while these are computed.
    decode = observation.serving(Role.DECODE)
    prompts = pending_s / own_s * decode / (observation.serving(Role.PREFILL) or max(1, decode))
    if point.remote_share > 0:
        prompts = min(prompts, local_share / point.remote_share * pending_s / point.prefill_s)
    return remote + prompts * point.local_tokens


def _prompts_in_time(point: OperatingPoint) -> float:
    """Prompts a prefill worker computes while a request may wait for it; at least one, so that no bound idles it."""
    return max(1.0, point.slack_s / point.prefill_s)


def _decoding(point: OperatingPoint, rate_per_s: float) -> float | None:
    """Sequences of a decode worker that gets so many requests a second, some of which it prefills itself."""
    batch = point.batch_beside_local(rate_per_s)
    return batch if batch >= 1 else None


def _settled(
    before: int | None, bound: float | None, gateways: int, band: float, *, lower_band: float | None = None
) -> int | None:
    """The share of one gateway, in whole numbers; what is in force where that hardly differs.

    ``lower_band``: the dead band where it falls, if that is another one.
    """
    if bound is None:
        return None
    share = max(1, round(bound / gateways))
    if before is None:
        return share
    change = band if lower_band is None or share >= before else lower_band
    return before if abs(share - before) <= change * before else share
