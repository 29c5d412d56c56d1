"""What becomes of an encode target: the pools' shares of the one budget, and the decision with its words.

Where the budget is less than all pools need, it is split so that the scarcest gets the most of its work, and nobody
loses a worker for less than a twentieth more.
"""

from dataclasses import dataclass, replace

from pointsman.planner.core.encode.target import EncodeTarget
from pointsman.planner.core.messages import encoders
from pointsman.planner.core.sizing.pool_targets import Targets
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


def there(observation: Observation) -> int:
    """Replicas that encode: those that leave are none any more."""
    return sum(w.condition is not WorkerCondition.DRAINING for w in observation.encode_workers)


def shared(target: EncodeTarget | None, observation: Observation, policy: Policy, wanted: Targets) -> Shares:
    """The budget's parts. What an encode worker takes is never given to another before it is gone."""
    if policy.encode is None:
        return Shares(target, 0, policy, wanted)
    encodes, others = _gpus_each(observation), Layout(wanted.prefill, wanted.decode)
    encode, left = there(observation) if target is None else target.workers, wanted
    scarce = encode * encodes + others.total * observation.gpus_each > policy.max_gpus
    if target is not None and scarce:
        encode, workers = _split(target, observation, policy, wanted)
        left = _within(workers, observation, wanted)
    taken = encodes * max(encode, len(observation.encode_workers))
    rest = replace(policy, max_gpus=policy.max_gpus - taken, min_gpus=max(0, policy.min_gpus - taken))
    return Shares(target, encode, rest, left, scarce, None if left is wanted else others)


def _split(target: EncodeTarget, observation: Observation, policy: Policy, wanted: Targets) -> tuple[int, int]:
    """(encode workers, prefill and decode workers)."""
    each, encodes, work = observation.gpus_each, _gpus_each(observation), sum(wanted.load_ahead)
    least = max(1, policy.encode.least if policy.encode else 1), max(2, policy.prefill.least + policy.decode.least)

    def others(encode: int) -> int:
        return min(wanted.prefill + wanted.decode, (policy.max_gpus - encode * encodes) // each)

    def served(encode: int) -> float:
        return min(encode / target.busy, others(encode) / work)

    able = [n for n in range(least[0], target.workers + 1) if others(n) >= least[1]] or [least[0]]
    best, stays = max(able, key=served), min(max(there(observation), able[0]), able[-1])
    encode = best if served(best) > (1 + policy.tuning.switch_min_gain) * served(stays) else stays
    return encode, others(encode)


def _within(workers: int, observation: Observation, wanted: Targets) -> Targets:
    """``wanted`` with so many workers in all, where there are more; what only would be started the layout leaves."""
    now = observation.layout
    if workers >= now.total:
        return wanted
    able = range(max(1, workers - now.decode), min(now.prefill, workers - 1) + 1)
    need = wanted.load_ahead
    prefill = max(able, key=lambda p: min(p / need[0], (workers - p) / need[1]), default=now.prefill)
    return replace(wanted, prefill=prefill, decode=max(1, workers - prefill))


def keep_encode_pool(decision: Decision, observation: Observation, policy: Policy) -> Decision:
    """The decision where the encode pool stays as it is: at its desired replicas, also while a worker is replaced."""
    asked = there(observation) if observation.encode_replicas is None else observation.encode_replicas
    return decision if policy.encode is None else replace(decision, encode=asked or None)


def add_encode_decision(decision: Decision, observation: Observation, policy: Policy, shares: Shares) -> Decision:
    """The decision with the replicas that encode, the numbers behind them, and words for both."""
    if policy.encode is None:
        return decision
    has, target = there(observation), shares.target
    if target is None:
        message = encoders.unchanged(decision.message, has > 0)
        return keep_encode_pool(replace(decision, message=message), observation, policy)
    # What prefill and decode have or get in this decision is theirs; the rest of the budget is for more that encode.
    left = policy.max_gpus - (decision.prefill + decision.decode) * observation.gpus_each
    active = sum(w.condition is WorkerCondition.ACTIVE for w in observation.encode_workers)
    # Others start in the place of the stuck ones, which are given up when those serve.
    asked = shares.encode + (target.stuck if active < max(shares.encode, target.needed) else 0)
    most = max(min(asked, has), left // _gpus_each(observation))
    encode = min(asked, most, max(policy.encode.most, shares.encode))
    before = has if observation.encode_replicas is None else observation.encode_replicas
    need = encoders.need(max(target.needed_now, target.workers), has, target.stuck)
    changes = encode != before
    only = changes and not decision.changes_layout
    max_gpus, reason = policy.max_gpus if shares.scarce else None, decision.reason
    message = encoders.with_need(decision.message, "" if only else need, target.ttft_share, max_gpus)
    if shares.taken_from is not None and decision.changes_layout:
        reason = Reason.UNSATISFIABLE
        message = encoders.taken(shares.taken_from, need, policy.max_gpus, decision.layout)
    elif only and not decision.withdraws:
        reason = Reason.ENCODE_SHORT if encode > before else Reason.SPARE_CAPACITY
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


def _gpus_each(observation: Observation) -> int:
    return max((w.gpus for w in observation.encode_workers), default=1)
