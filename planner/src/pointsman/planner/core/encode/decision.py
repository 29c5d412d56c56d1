"""What becomes of an encode target: the pools' shares of the one budget, and the decision with its words.

Where the budget is less than all pools need, it is split so that the scarcest gets the most of its work, and nobody
loses a worker for less than a twentieth more.
"""

from dataclasses import dataclass, replace
from typing import Final

from pointsman.planner.core.encode.target import EncodeMemory, EncodeTarget
from pointsman.planner.core.messages import encoders
from pointsman.planner.core.sizing.pool_targets import Targets
from pointsman.planner.core.types import Decision, Layout, Observation, Policy, Reason, WorkerCondition

_QUIET: Final = (Reason.STEADY, Reason.THRESHOLD, Reason.FLOW_CONTROL)


@dataclass(frozen=True, slots=True)
class Shares:
    """``encode``: workers it may have; ``policy`` and ``wanted``: what is left to prefill and decode; ``scarce``: the
    budget is less than all of them need; ``taken_from``: what these two wanted, where they give workers away for it."""

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
        return Shares(0, policy, wanted)
    each, encodes = observation.gpus_each, _gpus_each(observation)
    encode, others = there(observation) if target is None else target.workers, wanted.prefill + wanted.decode
    scarce = target is not None and encode * encodes + others * each > policy.max_gpus
    taken_from = None
    if target is not None and scarce:
        encode, others = _split(target, observation, policy, wanted)
        wanted = _within(others, observation, before := wanted)
        taken_from = None if wanted is before else Layout(before.prefill, before.decode)
    taken = encodes * max(encode, len(observation.encode_workers))
    rest = replace(policy, max_gpus=policy.max_gpus - taken, min_gpus=max(0, policy.min_gpus - taken))
    return Shares(encode, rest, wanted, scarce, taken_from)


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


def add_encode_decision(
    decision: Decision,
    memory: EncodeMemory,
    observation: Observation,
    policy: Policy,
    target: EncodeTarget | None,
    shares: Shares,
) -> Decision:
    """The decision with the replicas that encode, the numbers behind them, and words for both."""
    if policy.encode is None:
        return decision
    has = there(observation)
    if target is None:
        message = encoders.unchanged(decision.message, has > 0)
        return keep_encode_pool(replace(decision, message=message), observation, policy)
    # What prefill and decode have or get in this decision is theirs; the rest of the budget is for more that encode.
    left = policy.max_gpus - (decision.prefill + decision.decode) * observation.gpus_each
    stuck = len(memory.leads.stuck(observation.at_s, policy.start_s, policy.tuning))
    active = sum(w.condition is WorkerCondition.ACTIVE for w in observation.encode_workers)
    # Others start in the place of the stuck ones, which are given up when those serve.
    asked = shares.encode + (stuck if active < max(shares.encode, target.needed) else 0)
    most = max(min(asked, has), left // _gpus_each(observation))
    encode = min(asked, most, max(policy.encode.most, shares.encode))
    before = has if observation.encode_replicas is None else observation.encode_replicas
    need = _need(target, has, stuck)
    only = encode != before and not decision.changes_layout
    message = encoders.with_need(decision.message, "" if only else need, target.ttft_share)
    reason, short = decision.reason, target.needed_now > has
    if shares.scarce:
        message = encoders.scarce(message, policy.max_gpus)
    if shares.taken_from is not None and decision.changes_layout:
        reason = Reason.UNSATISFIABLE
        message = encoders.taken(shares.taken_from, need, policy.max_gpus, decision.layout)
    elif encode != before and not decision.changes_layout and not decision.withdraws:
        reason = Reason.ENCODE_SHORT if encode > before else Reason.SPARE_CAPACITY
    elif short and encode <= has and reason in _QUIET:
        reason = Reason.UNSATISFIABLE
    if only:
        message = encoders.only_scaled(message, before, encode, need)
    elif encode != before:
        message = encoders.scaled(message, before, encode)
    return replace(
        decision,
        reason=reason,
        message=message,
        encode=encode,
        changes_encode=encode != before,
        inputs=(*decision.inputs, *_inputs(target, has)),
    )


def _need(target: EncodeTarget, has: int, stuck: int) -> str:
    return encoders.need(max(target.needed_now, target.workers), has, stuck)


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
