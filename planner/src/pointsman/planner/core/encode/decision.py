"""What becomes of an encode target: the pools' shares of the one budget, and the decision with its words.

Where the budget is less than all pools need, the scarcest gets the most of its work, and the encode pool more than that
if so more requests are in time: gateways hold back what prefill and decode cannot serve, so that the others are in
time, but no images. Where encode workers fall behind, all of these become late.
"""

from dataclasses import dataclass, replace

from pointsman.planner.core.encode.target import EncodeTarget
from pointsman.planner.core.messages import encoders, layouts
from pointsman.planner.core.sizing.pool_targets import Targets, cut
from pointsman.planner.core.types import Decision, Layout, Observation, Policy, Reason, WorkerCondition


@dataclass(frozen=True, slots=True)
class Shares:
    """``target``: of the encode pool; ``encode``: workers it may have; ``policy`` and ``wanted``: what is left to
    prefill and decode; ``scarce``: the budget is less than all pools need; ``taken_from``: what prefill and decode
    wanted, where they give workers to the encode pool."""

    target: EncodeTarget | None
    encode: int
    policy: Policy
    wanted: Targets
    scarce: bool = False
    taken_from: Layout | None = None


def shared(target: EncodeTarget | None, observation: Observation, policy: Policy, wanted: Targets) -> Shares:
    """The budget's parts. GPUs of an encode worker are given to other pools when it is gone, and not before."""
    if policy.encode is None:
        return Shares(target, 0, policy, wanted)
    if observation.encode is None:
        target = None  # an old measurement changes no pool
    encodes, has, now = observation.encode_gpus, observation.encode_desired, observation.layout
    encode, left, others = has if target is None else target.workers, wanted, Layout(wanted.prefill, wanted.decode)
    over = observation.gpus_in_use > policy.max_gpus
    scarce = encode * encodes + others.total * observation.gpus_each > policy.max_gpus
    if scarce and (over or target is not None):
        # An encode pool whose load is unknown stays, unless prefill and decode would fall below their minimum.
        encode, workers = _split(target, min(encode, has) if over else encode, observation, policy, wanted)
        if workers < now.total:  # else the layout leaves out what would be started
            left = replace(wanted, **cut(now, Layout(1, 1), workers, wanted.load_ahead)._asdict())
    # Beyond the budget nothing is started: workers that still drain are no reason to remove more.
    taken = encodes * (encode if over else max(encode, len(observation.encode_workers)))
    max_gpus, min_gpus = policy.max_gpus - taken, max(0, policy.min_gpus - taken)
    rest = replace(policy, max_gpus=max_gpus, min_gpus=min_gpus, reserved_gpus=taken)
    return Shares(target, encode, rest, left, scarce, None if left is wanted else others)


def _split(
    target: EncodeTarget | None, most: int, observation: Observation, policy: Policy, wanted: Targets
) -> tuple[int, int]:
    """(encode workers, prefill and decode workers). All pools leave each other their minimum."""
    has, each, work = observation.encode_desired, observation.gpus_each, sum(wanted.load_ahead)
    least = max(1, policy.encode.least if policy.encode else 1), max(2, policy.prefill.least + policy.decode.least)
    lowest, clearly = min(most, least[0] if policy.scale_in else has), policy.tuning.rate_headroom
    left = ((policy.max_gpus - encode * observation.encode_gpus) // each for encode in range(most + 1))
    others = [min(wanted.prefill + wanted.decode, workers) for workers in left]
    able = [encode for encode in range(lowest, most + 1) if others[encode] >= least[1]] or [lowest]
    stays = min(max(has, able[0]), able[-1])
    if target is None:
        return stays, others[stays]
    even = max(able, key=lambda n: min(n / target.busy, others[n] / work) * (clearly if n == stays else 1.0))

    def in_time(n: int) -> float:
        # Estimates near the limit of a pool are very different from one look to the next.
        kept = target.kept(n, times=1.0 if n == stays else clearly)
        return kept * min(1.0, others[n] / work) * (clearly if n == max(even, stays) else 1.0)

    encode = max(range(even, able[-1] + 1), key=in_time)
    return encode, others[encode]


def keep_encode_pool(decision: Decision, observation: Observation, policy: Policy) -> Decision:
    """The decision where the encode pool stays as it is: at its desired replicas, also while a worker is replaced."""
    return decision if policy.encode is None else replace(decision, encode=observation.encode_desired or None)


def add_encode_decision(decision: Decision, observation: Observation, policy: Policy, shares: Shares) -> Decision:
    """The decision with the replicas that encode, the numbers behind them, and words for both."""
    if policy.encode is None:
        return decision
    has = sum(w.condition is not WorkerCondition.DRAINING for w in observation.encode_workers)
    target, before = shares.target, observation.encode_desired
    if target is None and shares.encode < before:
        why = layouts.over_budget(observation.gpus_in_use, policy.max_gpus, policy.scale_in)
        message = encoders.scaled(decision.message, before, shares.encode, why)
        reason = decision.reason if decision.changes_layout else Reason.SPARE_CAPACITY
        return replace(decision, reason=reason, message=message, encode=shares.encode, changes_encode=True)
    if target is None:
        message = encoders.unchanged(decision.message, has > 0, observation.encode is not None)
        return keep_encode_pool(replace(decision, message=message), observation, policy)
    # What prefill and decode have or get in this decision is theirs; the rest of the budget is for more that encode.
    left = policy.max_gpus - (decision.prefill + decision.decode) * observation.gpus_each
    active = sum(w.condition is WorkerCondition.ACTIVE for w in observation.encode_workers)
    # Others start in the place of the stuck ones, which are given up when those serve.
    replaces = active < max(shares.encode, target.needed) or not policy.scale_in
    asked = shares.encode + (target.stuck if replaces else 0)
    most = max(min(asked, before), left // observation.encode_gpus)
    encode = min(asked, most, max(policy.encode.most, shares.encode))
    need = encoders.need(max(target.needed_now, target.workers), has, target.stuck, policy.encode.most)
    changes = encode != before
    only = changes and not decision.changes_layout
    max_gpus, reason = policy.max_gpus if shares.scarce else None, decision.reason
    message = encoders.with_need(decision.message, "" if only else need, target.ttft_share, max_gpus)
    if shares.taken_from is not None and decision.changes_layout:
        reason = Reason.UNSATISFIABLE
        message = encoders.taken(shares.taken_from, need, policy.max_gpus, decision.layout)
    elif only:
        less = Reason.UNSATISFIABLE if shares.scarce else Reason.SPARE_CAPACITY
        reason = Reason.ENCODE_SHORT if encode > before else less
    elif encode <= has < target.needed_now and reason in (Reason.STEADY, Reason.THRESHOLD, Reason.FLOW_CONTROL):
        reason = Reason.UNSATISFIABLE
    if changes:
        message = encoders.scaled(message, before, encode, need if only else "")
    inputs = (*decision.inputs, *_inputs(target, has))
    return replace(decision, reason=reason, message=message, encode=encode, changes_encode=changes, inputs=inputs)


def _inputs(target: EncodeTarget, has: int) -> tuple[tuple[str, float], ...]:
    numbers = {
        "imagesPerSecond": target.rate_per_s * target.queue.images,
        "imagesPerRequest": target.queue.images,
        "encodeMilliseconds": target.queue.image_s * 1000,
        "encodeWorkers": float(has),
        "encodeNeededNow": float(target.needed_now),
        "encodeNeeded": float(target.needed),
        "encodeTtftShare": target.ttft_share,
    }
    return tuple((name, round(value, 4)) for name, value in numbers.items())
