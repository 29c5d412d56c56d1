"""Why a layout was not chosen, in the numbers by which the chosen one was."""

import math
from dataclasses import dataclass

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.layout.role_switches import kept_by, weighed_switches
from pointsman.planner.core.messages import rejections
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.sizing.pool_targets import Targets, is_long
from pointsman.planner.core.state import State
from pointsman.planner.core.switch_guards import switches_at_a_time
from pointsman.planner.core.types import Layout, Observation, Policy, WorkerCondition


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and what it was chosen by. ``switched``: after the switches that are made now;
    ``deferred``: why another split must wait; ``holds``: why nothing is taken away; ``scales``: whether enough
    requests were seen for workers to be started or stopped."""

    state: State
    observation: Observation
    policy: Policy
    wanted: Targets
    now: Layout
    switched: Layout
    target: Layout
    deferred: str | None
    holds: str
    scales: bool


def rejection(
    choice: Choice, point: OperatingPoint, layout: Layout, switched: Layout, lead_s: float, attainment: float
) -> str:
    """Why ``layout`` is not what is done, although it would have this ``attainment`` in ``lead_s``."""
    why = _against_policy(choice, layout) or _against_switch(choice, layout, switched)
    if why:
        return why
    fewer = [pool for pool in (0, 1) if layout[pool] < choice.target[pool]]
    short = _short(choice, layout, fewer)
    if short:
        for_peaks = attainment >= choice.policy.objectives.attainment
        return _queue(choice, point, layout, rejections.short(short, for_peaks))
    moved, at_a_time = abs(switched[0] - choice.now[0]), switches_at_a_time(choice.observation, choice.policy)
    if choice.switched != choice.now and moved > at_a_time:
        return rejections.too_many_switches(moved, at_a_time, len(choice.observation.workers))
    switch_s = choice.state.switch_leads.lead_s(choice.policy.tuning)
    if choice.switched != choice.now and lead_s > switch_s and switched == choice.now:
        return rejections.slower_than_switch(lead_s, switch_s)
    if switched != choice.now and choice.switched == choice.now and sum(layout) == sum(choice.now):
        return _gain(choice, point, layout)
    if fewer:
        return _kept(choice, layout, fewer)
    return _more(choice, layout)


def _against_policy(choice: Choice, layout: Layout) -> str:
    """What the policy does not allow, or what is not known well enough to be done."""
    policy, observation, now = choice.policy, choice.observation, choice.now
    each, size = observation.gpus_each, sum(layout)
    leaving = sum(w.condition is WorkerCondition.DRAINING for w in observation.workers)
    budget, shares = policy.max_gpus, policy.encode is not None
    # Where more are there than the budget allows no plan is made that leaves as many, a switch included.
    beyond = policy.encode is None and sum(now) * each > policy.max_gpus and layout != choice.target
    if size * each > policy.max_gpus and (size > sum(choice.target) or beyond):
        return rejections.budget(size * each, budget, shares)
    if (size + leaving) * each > policy.max_gpus and size > sum(choice.target):
        return rejections.budget_with_draining(size * each, leaving * each, budget, shares)
    for pool, role in enumerate(LANGUAGE_ROLES):
        bounds = policy.bounds(role)
        if layout[pool] > bounds.most and layout[pool] > choice.target[pool]:
            return rejections.maximum(layout[pool], role, bounds.most)
        if layout[pool] < bounds.least and layout[pool] < choice.target[pool]:
            return rejections.minimum(layout[pool], role, bounds.least)
    starts, removes = (max(0, *(a - b for a, b in zip(*way, strict=True))) for way in ((layout, now), (now, layout)))
    if not policy.scale_out and (size > sum(now) or (starts and not policy.role_switch)):
        return rejections.not_allowed("scale-out")
    if not policy.scale_in and (size < sum(now) or (removes and not policy.role_switch)):
        return rejections.not_allowed("scale-in")
    if not choice.scales and size != sum(now):
        return rejections.too_few_requests()
    if size * each < policy.min_gpus and size < sum(choice.target):
        return rejections.below_min_gpus(size * each, policy.min_gpus)
    return ""


def _against_switch(choice: Choice, layout: Layout, switched: Layout) -> str:
    """Why a switch that would be better is not made now."""
    wanting, now = choice.state.wanting, choice.now
    if choice.deferred is None or wanting is None or switched == now:
        return ""
    same_way = (layout[0] > now[0]) == (wanting[0] > now[0])
    return rejections.not_yet(choice.deferred) if same_way else ""


def _short(choice: Choice, layout: Layout, fewer: list[int]) -> list[tuple[Role, int]]:
    """Roles that have fewer than the chosen layout and than what is needed, and how many that is."""
    wanted, found = choice.wanted, []
    for pool in fewer:
        need = max(wanted.needed_now[pool], wanted.grow[pool])
        if layout[pool] < need:
            found.append((LANGUAGE_ROLES[pool], need))
    return found


def _queue(choice: Choice, point: OperatingPoint, layout: Layout, why: str) -> str:
    """``why``, and what the queue adds: how long this layout would take to clear it, where that is too long."""
    wanted = choice.wanted
    takes_s, chosen_s = _clears_s(wanted, point, layout), _clears_s(wanted, point, choice.target)
    now = any(layout[pool] < wanted.needed_now[pool] for pool in (0, 1))
    wished_s = wanted.clear_s[0 if now else 1]
    if takes_s <= max(wished_s, chosen_s):
        return why
    if math.isinf(takes_s):
        return rejections.queue_never_cleared(why, wanted.backlog)
    return rejections.queue_cleared_late(why, wanted.backlog, takes_s, wished_s)


def _clears_s(wanted: Targets, point: OperatingPoint, layout: Layout) -> float:
    if wanted.backlog < 1:
        return 0.0
    spare_per_s = min(layout[0] * point.prefill_per_s, layout[1] * point.drain_per_s) - wanted.rate_per_s
    return wanted.backlog / spare_per_s if spare_per_s > 0 else math.inf


def _gain(choice: Choice, point: OperatingPoint, layout: Layout) -> str:
    """What another split would bring to those that serve, beside what it must."""
    keeps = kept_by(point, choice.observation, choice.wanted.rate_per_s, choice.state.forecaster.dispersion)
    moves = (layout[0] - choice.now[0],)
    found = weighed_switches(choice.observation, choice.policy, choice.wanted, choice.now, choice.state, moves)
    for _, gain, worth in found:
        if gain <= 0:
            return rejections.no_gain()
        if worth > 0 and keeps(layout[0] - choice.now[0]) < keeps(0) - choice.policy.tuning.max_attainment_loss:
            then, now = keeps(layout[0] - choice.now[0]), keeps(0)
            return rejections.loses(then, now)
        return rejections.little_gain(gain, gain - worth)
    return rejections.empty_role()


def _kept(choice: Choice, layout: Layout, fewer: list[int]) -> str:
    """Why workers that are not needed now are not given back."""
    wanted, target, now = choice.wanted, choice.target, choice.now
    if choice.policy.switchable:
        retained = min(wanted.retained_of_both, sum(target))
        if sum(layout) < retained:
            return rejections.retained(retained, None)
    else:
        for pool in fewer:
            retained = min(wanted.retained[pool], target[pool])
            if layout[pool] < retained:
                return rejections.retained(retained, LANGUAGE_ROLES[pool])
    if sum(layout) < sum(target) and is_long(wanted.backlog, wanted.rate_per_s):
        return rejections.during_queue(wanted.backlog)
    if any(choice.switched[pool] < now[pool] for pool in (0, 1)):
        return rejections.during_switch()
    if sum(layout) >= sum(target):
        return rejections.more_to_spare(LANGUAGE_ROLES[1 - fewer[0]], LANGUAGE_ROLES[fewer[0]])
    if sum(target) > sum(now):
        return rejections.during_start()
    return choice.holds or rejections.serves_less(target)


def _more(choice: Choice, layout: Layout) -> str:
    """Why workers that the chosen layout does not have are not started."""
    wanted, target, now, wanting = choice.wanted, choice.target, choice.now, choice.state.wanting
    tuning = choice.policy.tuning
    more = [pool for pool in (0, 1) if layout[pool] > target[pool]]
    for pool in more:
        role = LANGUAGE_ROLES[pool]
        if choice.deferred is not None and wanting is not None and wanting[pool] > now[pool]:
            return rejections.by_switch(role, choice.deferred)
        if now[pool] == target[pool] and wanted.grow[pool] <= now[pool] < wanted.needed[pool]:
            patience = (choice.state.memory.prefill, choice.state.memory.decode)[pool]
            if (left_s := patience.left_s(choice.observation.at_s, tuning)) > 0:
                return rejections.too_early(role, tuning.patience_s, left_s)
            return rejections.lowest_need(role, tuning.patience_s, patience.least)
        if wanted.grow[pool] > target[pool] and sum(target) < sum(now):
            return rejections.after_removal(role)
        if choice.policy.switchable and wanted.grow[pool] > target[pool]:
            return rejections.spare_worker(LANGUAGE_ROLES[1 - pool], role)
        if wanted.grow[pool] <= target[pool] < wanted.needed_now[pool]:
            start_s = choice.state.leads.lead_s(choice.policy.start_s)
            return rejections.shortage_ends(role, start_s, target[pool])
    if not more:
        return rejections.not_all_serve()
    return rejections.too_many([LANGUAGE_ROLES[pool] for pool in more], [target[pool] for pool in more])
