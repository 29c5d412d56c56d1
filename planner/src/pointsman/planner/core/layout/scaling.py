"""How many workers are started or removed, beside the switches of a decision and within its policy."""

import math

from pointsman.planner.core.layout.role_switches import SwitchStep
from pointsman.planner.core.sizing.pool_targets import Targets, cut, without_idle
from pointsman.planner.core.types import Layout, Observation, Policy, WorkerCondition


def scaled(observation: Observation, policy: Policy, wanted: Targets, step: SwitchStep) -> Layout:
    """The layout after switches and scaling."""
    now = observation.layout
    if beyond_budget(observation, policy):
        return _reduced(observation, policy, wanted)
    target = _started(observation, policy, wanted, step) if policy.scale_out else step.after
    calm = target == now == step.after and step.deferred is None
    if policy.scale_in and calm and not observation.unread:
        target = without_idle(
            now,
            Layout(wanted.prefill, wanted.decode).most(_least(policy)),
            math.ceil(policy.min_gpus / observation.gpus_each),
            wanted.load_ahead,
        )
    return _up_to_minimum(target, observation, policy, wanted) if policy.scale_out else target


def limited(observation: Observation, policy: Policy, wanted: Targets, target: Layout) -> bool:
    """Whether ``target`` has fewer workers than are needed because the policy allows no more."""
    if target.has(wanted.minimum):
        return False
    if beyond_budget(observation, policy):
        return policy.scale_in
    allowed = policy.scale_out and _bounds(policy).has(wanted.minimum)
    return not allowed or target.total >= _room(observation, policy)


def beyond_budget(observation: Observation, policy: Policy) -> bool:
    """Whether more workers are there than the budget allows: it was more when they were started, or they were less."""
    over = observation.gpus_in_use > policy.max_gpus + policy.reserved_gpus
    return over and observation.layout.total > _least(policy).total


def _started(observation: Observation, policy: Policy, wanted: Targets, step: SwitchStep) -> Layout:
    """A worker that another role can spare serves in seconds, a new one in minutes: only what the service lacks as a
    whole is started."""
    now, most, bounds = observation.layout, _room(observation, policy), _bounds(policy)
    after = step.coming if step.deferred is not None else step.after
    lacks = [max(0, min(grow, bound) - n) for grow, n, bound in zip(wanted.grow, after, bounds, strict=True)]
    # What a role needs once it has given workers is seen when they have gone: nothing is started in their place before.
    lacks = [0 if gave < had else lack for lack, gave, had in zip(lacks, after, now, strict=True)]
    spare = _spare(policy, wanted, after) if step.answered or _will_switch(policy, wanted, now, lacks) else 0
    target = list(step.after)
    for _ in range(min(sum(lacks) - spare, most - now.total)):
        # A role that is to give workers by a switch has them still: it may be at its bound.
        able = [role for role in (0, 1) if lacks[role] > 0 and target[role] < bounds[role]]
        if not able:
            break
        role = max(able, key=lambda role: lacks[role] / max(1, wanted.grow[role]))
        target[role], lacks[role] = target[role] + 1, lacks[role] - 1
    return Layout(*target)


def _will_switch(policy: Policy, wanted: Targets, now: Layout, lacks: list[int]) -> bool:
    """Whether a switch will bring what only is to be needed: it would be worth it then, and is allowed."""
    gain = policy.tuning.switch_min_gain
    worth = any(lack > gain * max(1, need) for lack, need in zip(lacks, wanted.grow, strict=True))
    return policy.switchable and worth and now.has(wanted.needed_now)


def _spare(policy: Policy, wanted: Targets, layout: Layout) -> int:
    """Workers that neither the present nor what is expected needs in their role."""
    return sum(max(0, n - need) for n, need in zip(layout, wanted.minimum.most(_least(policy)), strict=True))


def _up_to_minimum(target: Layout, observation: Observation, policy: Policy, wanted: Targets) -> Layout:
    """With as many workers as ``budget.minGpus`` asks for, each of the role that has the fewest for its load."""
    most, bounds, counts = _room(observation, policy), _bounds(policy), list(target)
    while sum(counts) * observation.gpus_each < policy.min_gpus and sum(counts) < most:
        able = [role for role in (0, 1) if counts[role] < bounds[role]]
        if not able:
            break
        counts[min(able, key=lambda role: counts[role] / wanted.load_ahead[role])] += 1
    return Layout(*counts)


def _reduced(observation: Observation, policy: Policy, wanted: Targets) -> Layout:
    """The present layout within the budget.

    Nobody is started in place of another, but for a role that has too few for anybody to be served.
    """
    now, most = observation.layout, _budget(observation, policy)
    if not policy.scale_in:
        return now
    need = wanted.load_ahead
    if wanted.needed.total <= most:
        need = max(1.0, float(wanted.prefill)), max(1.0, float(wanted.decode))
    least = _least(policy)
    # Of a part of the load nobody knows how few are enough.
    enough = now if observation.unread else Layout(*map(min, (wanted.prefill, wanted.decode), now))
    lowest = least if policy.scale_out else Layout(*map(min, now, least))
    return cut(enough.most(lowest), least, most, need)


def _least(policy: Policy) -> Layout:
    return Layout(max(1, policy.prefill.least), max(1, policy.decode.least))


def _bounds(policy: Policy) -> Layout:
    return Layout(policy.prefill.most, policy.decode.most)


def _room(observation: Observation, policy: Policy) -> int:
    """Workers there may be at most, beside those that still go."""
    leaving = sum(w.condition is WorkerCondition.DRAINING for w in observation.workers)
    return max(policy.max_gpus // observation.gpus_each - leaving, observation.layout.total)


def _budget(observation: Observation, policy: Policy) -> int:
    """Workers that the budget allows; no less than the pools must have."""
    return max(policy.max_gpus // observation.gpus_each, _least(policy).total)
