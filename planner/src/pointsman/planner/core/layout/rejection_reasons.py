"""Why a layout was not chosen, in the numbers by which the chosen one was."""

import math
from dataclasses import dataclass

from pointsman.api.protocol.names import LANGUAGE_ROLES
from pointsman.planner.core.layout.role_switches import kept_by, weighed_switches
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
        margin = ", with the margin for peaks" if attainment >= choice.policy.objectives.attainment else ""
        return short + margin + _queue(choice, point, layout)
    moved, at_a_time = abs(switched[0] - choice.now[0]), switches_at_a_time(choice.observation, choice.policy)
    if choice.switched != choice.now and moved > at_a_time:
        return f"{moved} workers would switch, at most {at_a_time} of {len(choice.observation.workers)} may at a time"
    switch_s = choice.state.switch_leads.lead_s(choice.policy.tuning)
    if choice.switched != choice.now and lead_s > switch_s and switched == choice.now:
        return f"would take {lead_s:.0f} s to start; a switch serves in {switch_s:.0f} s"
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
    budget = f"the budget {'is' if policy.encode is None else 'leaves'} {policy.max_gpus}"
    # Where more are there than the budget allows no plan is made that leaves as many, a switch included.
    beyond = policy.encode is None and sum(now) * each > policy.max_gpus and layout != choice.target
    if size * each > policy.max_gpus and (size > sum(choice.target) or beyond):
        return f"{size * each} GPUs, {budget}"
    if (size + leaving) * each > policy.max_gpus and size > sum(choice.target):
        return f"{size * each} GPUs in addition to {leaving * each} of draining workers, {budget}"
    for pool, role in enumerate(LANGUAGE_ROLES):
        bounds, word = policy.bounds(role), role.label
        if layout[pool] > bounds.most and layout[pool] > choice.target[pool]:
            return f"{layout[pool]} {word} workers, at most {bounds.most} are allowed"
        if layout[pool] < bounds.least and layout[pool] < choice.target[pool]:
            return f"{layout[pool]} {word} workers, minReplicas is {bounds.least}"
    starts, removes = (max(0, *(a - b for a, b in zip(*way, strict=True))) for way in ((layout, now), (now, layout)))
    if not policy.scale_out and (size > sum(now) or (starts and not policy.role_switch)):
        return "scale-out is not allowed"
    if not policy.scale_in and (size < sum(now) or (removes and not policy.role_switch)):
        return "scale-in is not allowed"
    if not choice.scales and size != sum(now):
        return "too few requests were seen yet to start or stop workers"
    if size * each < policy.min_gpus and size < sum(choice.target):
        return f"{size * each} GPUs, budget.minGpus is {policy.min_gpus}"
    return ""


def _against_switch(choice: Choice, layout: Layout, switched: Layout) -> str:
    """Why a switch that would be better is not made now."""
    wanting, now = choice.state.wanting, choice.now
    if choice.deferred is None or wanting is None or switched == now:
        return ""
    same_way = (layout[0] > now[0]) == (wanting[0] > now[0])
    return f"not yet: {choice.deferred}" if same_way else ""


def _short(choice: Choice, layout: Layout, fewer: list[int]) -> str:
    """Roles that have fewer than the chosen layout and than what is needed, and how many that is."""
    wanted, words = choice.wanted, []
    for pool in fewer:
        need = max(wanted.needed_now[pool], wanted.grow[pool])
        if layout[pool] < need:
            words.append((_role(pool), need))
    if not words:
        return ""
    roles, needs = " and ".join(role for role, _ in words), " and ".join(str(need) for _, need in words)
    return f"fewer {roles} workers than needed: {needs} needed"


def _queue(choice: Choice, point: OperatingPoint, layout: Layout) -> str:
    """What the queue adds to it: how long this layout would take to clear it, where that is too long."""
    wanted = choice.wanted
    takes_s, chosen_s = _clears_s(wanted, point, layout), _clears_s(wanted, point, choice.target)
    now = any(layout[pool] < wanted.needed_now[pool] for pool in (0, 1))
    wished_s = wanted.clear_s[0 if now else 1]
    if takes_s <= max(wished_s, chosen_s):
        return ""
    if math.isinf(takes_s):
        return f"; the queue of {wanted.backlog:.0f} would never be cleared"
    return f"; the queue of {wanted.backlog:.0f} would take {takes_s:.0f} s to clear (goal: {wished_s:.0f} s)"


def _clears_s(wanted: Targets, point: OperatingPoint, layout: Layout) -> float:
    if wanted.backlog < 1:
        return 0.0
    spare_per_s = min(layout[0] * point.prefill_per_s, layout[1] * point.drain_per_s) - wanted.rate_per_s
    return wanted.backlog / spare_per_s if spare_per_s > 0 else math.inf


def _gain(choice: Choice, point: OperatingPoint, layout: Layout) -> str:
    """What another split would bring to those that serve, beside what it must."""
    keeps = kept_by(point, choice.observation, choice.wanted.rate_per_s, choice.state.forecaster.dispersion)
    found = weighed_switches(
        choice.observation, choice.policy, choice.wanted, choice.now, choice.state.history, (layout[0] - choice.now[0],)
    )
    for _, gain, worth in found:
        if gain <= 0:
            return "serves no more of the present need"
        if worth > 0 and keeps(layout[0] - choice.now[0]) < keeps(0) - choice.policy.tuning.max_attainment_loss:
            then, now = keeps(layout[0] - choice.now[0]), keeps(0)
            return f"serving workers would keep {then:.0%} within objectives, not {now:.0%}"
        return f"serves {gain:.1%} more of the present need, a switch must gain {gain - worth:.1%}"
    return "one role would have no serving worker"


def _kept(choice: Choice, layout: Layout, fewer: list[int]) -> str:
    """Why workers that are not needed now are not given back."""
    wanted, target, now = choice.wanted, choice.target, choice.now
    if choice.policy.switchable:
        retained = min(wanted.kept_of_both, sum(target))
        if sum(layout) < retained:
            return f"{retained} workers of both roles are retained, because as many were needed recently"
    else:
        for pool in fewer:
            retained = min(wanted.kept[pool], target[pool])
            if layout[pool] < retained:
                return f"{retained} {_role(pool)} workers are retained, because as many were needed recently"
    if sum(layout) < sum(target) and is_long(wanted.backlog, wanted.rate_per_s):
        return f"no worker that serves is removed while {wanted.backlog:.0f} requests are queued"
    if any(choice.switched[pool] < now[pool] for pool in (0, 1)):
        return "removes serving workers during a switch"
    if sum(layout) >= sum(target):
        return f"{_role(1 - fewer[0])} has more workers to spare than {_role(fewer[0])}"
    if sum(target) > sum(now):
        return "no worker is removed while another is started"
    return choice.holds or f"serves less than {target}"


def _more(choice: Choice, layout: Layout) -> str:
    """Why workers that the chosen layout does not have are not started."""
    wanted, target, now, wanting = choice.wanted, choice.target, choice.now, choice.state.wanting
    tuning = choice.policy.tuning
    more = [pool for pool in (0, 1) if layout[pool] > target[pool]]
    for pool in more:
        if choice.deferred is not None and wanting is not None and wanting[pool] > now[pool]:
            return f"a switch will add a {_role(pool)} worker, but not yet: {choice.deferred}"
        if now[pool] == target[pool] and wanted.grow[pool] <= now[pool] < wanted.needed[pool]:
            patience = (choice.state.memory.prefill, choice.state.memory.decode)[pool]
            if (left_s := patience.left_s(choice.observation.at_s, tuning)) > 0:
                whole = f"{tuning.patience_s:.0f} s of metrics"
                return f"{_role(pool)} workers are started after {whole}; {left_s:.0f} s are left"
            lowest = f"the lowest need of the last {tuning.patience_s:.0f} s: {patience.least}"
            return f"{_role(pool)} workers are started for {lowest}"
        if wanted.grow[pool] > target[pool] and sum(target) < sum(now):
            return f"{_role(pool)} workers start once the removed workers are deleted"
        if choice.policy.switchable and wanted.grow[pool] > target[pool]:
            return f"{_role(1 - pool)} has a spare worker, which can switch to {_role(pool)} sooner than one starts"
        if wanted.grow[pool] <= target[pool] < wanted.needed_now[pool]:
            start_s = choice.state.leads.lead_s(choice.policy.start_s)
            return f"a {_role(pool)} worker started now serves in {start_s:.0f} s; {target[pool]} are enough then"
    if not more:
        return "not all of its workers would serve yet"
    roles, enough = " and ".join(map(_role, more)), " and ".join(str(target[pool]) for pool in more)
    return f"more {roles} workers than needed: {enough} {'is' if len(more) == 1 else 'are'} enough"


def _role(pool: int) -> str:
    return ("prefill", "decode")[pool]
