"""Why a layout was not chosen, in the numbers by which the chosen one was."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.layout.role_switches import SwitchStep, kept_by, switches_between, weighed_switches
from pointsman.planner.core.messages import layouts, rejections
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.sizing.pool_targets import Targets, is_long
from pointsman.planner.core.state import State
from pointsman.planner.core.switch_guards import switches_at_a_time
from pointsman.planner.core.types import Layout, Observation, Policy, WorkerCondition


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and what it was chosen by. ``scales``: whether enough requests were seen for workers to be
    started or stopped."""

    state: State
    observation: Observation
    policy: Policy
    wanted: Targets
    point: OperatingPoint
    now: Layout
    step: SwitchStep
    target: Layout
    scales: bool


class Way(NamedTuple):
    """A layout and the way to it. ``switched``: the layout after its switches alone."""

    layout: Layout
    switched: Layout


def objections(choice: Choice, way: Way, lead_s: float, attainment: float) -> Iterator[str]:
    """What is against a layout, although it would have this ``attainment`` in ``lead_s``. The first one counts."""
    yield from _forbidden(choice, way.layout)
    yield from _worse(choice, way, attainment)
    yield from _needless(choice, way, lead_s)


def _forbidden(choice: Choice, layout: Layout) -> Iterator[str]:
    """What the policy does not allow, or what is not known well enough to be done."""
    observation, policy, now, target = choice.observation, choice.policy, choice.now, choice.target
    gpus = layout.total * observation.gpus_each
    draining = sum(w.gpus for w in observation.workers if w.condition is WorkerCondition.DRAINING)
    if gpus > policy.max_gpus or (gpus + draining > policy.max_gpus and layout.total > target.total):
        yield rejections.budget(gpus, draining, policy.max_gpus, policy.encode is not None)
    for role in LANGUAGE_ROLES:
        count, chosen, bounds = layout.of(role), target.of(role), policy.bounds(role)
        if count > max(bounds.most, chosen):
            yield rejections.limit(count, role, "maxReplicas", bounds.most)
        if count < min(bounds.least, chosen):
            yield rejections.limit(count, role, "minReplicas", bounds.least)
    replaces = not policy.role_switch and bool(switches_between(now, layout))
    if not policy.scale_out and (layout.total > now.total or replaces):
        yield rejections.not_allowed("scale-out")
    if not policy.scale_in and (layout.total < now.total or replaces):
        yield rejections.not_allowed("scale-in")
    if not choice.scales and layout.total != now.total:
        yield rejections.TOO_FEW_REQUESTS
    if gpus < policy.min_gpus and layout.total < target.total:
        yield rejections.limit(gpus, None, "budget.minGpus", policy.min_gpus)


def _worse(choice: Choice, way: Way, attainment: float) -> Iterator[str]:
    """What is too few for the need, and switches that must wait or do not help."""
    state, observation, policy, wanted = choice.state, choice.observation, choice.policy, choice.wanted
    (layout, switched), now, step = way, choice.now, choice.step
    gains = 0 if (state.history.wanting or now).prefill > now.prefill else 1
    if step.deferred is not None and layout[gains] > (now if switched != now else choice.target)[gains]:
        yield layouts.deferred(step.deferred)
    if any(has < min(chosen, need) for has, chosen, need in zip(layout, choice.target, wanted.minimum, strict=True)):
        queue = wanted.backlog if is_long(wanted.backlog, wanted.rate_per_s) else 0.0
        yield rejections.short(wanted.minimum, attainment >= policy.objectives.attainment, queue)
    moved, most_moved = switched.prefill - now.prefill, switches_at_a_time(observation, policy)
    if step.after != now and abs(moved) > most_moved:
        yield rejections.too_many_switches(most_moved, len(observation.workers))
    if step.after == now and moved and layout.total == now.total:
        keeps = kept_by(choice.point, observation, wanted.rate_per_s, state.forecaster.dispersion)
        for _, gain in weighed_switches(observation, policy, wanted, (moved,)):
            if gain <= policy.tuning.switch_min_gain:
                yield rejections.little_gain(gain, policy.tuning.switch_min_gain)
            elif keeps(moved) < keeps(0) - policy.tuning.max_attainment_loss:
                yield rejections.loses(keeps(moved), keeps(0))


def _needless(choice: Choice, way: Way, lead_s: float) -> Iterator[str]:
    """Why workers that would go stay, and why those that would start do not."""
    state, observation, policy, wanted = choice.state, choice.observation, choice.policy, choice.wanted
    (layout, switched), now, target, step = way, choice.now, choice.target, choice.step
    kept = min(wanted.retained_of_both, target.total)
    if policy.switchable and layout.total < kept:
        yield rejections.retained(kept, None)
    for role in () if policy.switchable else LANGUAGE_ROLES:
        if layout.of(role) < (kept := min(wanted.retained.of(role), target.of(role))):
            yield rejections.retained(kept, role)
    if layout.total < target.total and is_long(wanted.backlog, wanted.rate_per_s):
        yield rejections.during_queue(wanted.backlog)
    if layout.total < target.total and observation.unread:
        yield layouts.unread_pages(observation.unread)
    more = [role for role in LANGUAGE_ROLES if layout.of(role) > target.of(role)]
    starts = any(wanted.grow.of(role) > target.of(role) for role in more)
    switches = step.after != now or step.deferred is not None
    removes, fewer = target.total < now.total, layout.total < target.total
    if (starts and removes) or (fewer and (switches or target.total > now.total)):
        yield rejections.ONE_AT_A_TIME
    for role in more:
        patience = state.memory.prefill if role is Role.PREFILL else state.memory.decode
        if now.of(role) == target.of(role) and wanted.grow.of(role) <= now.of(role) < wanted.needed.of(role):
            left_s = patience.left_s(observation.at_s, policy.tuning)
            yield rejections.too_early(role, policy.tuning.patience_s, left_s)
    if any(step.after.of(role) < now.of(role) and target.of(role) < wanted.grow.of(role) for role in more):
        yield rejections.NONE_FOR_WHO_GIVES
    start_s, switch_s = state.leads.lead_s(policy.start_s), state.switch_leads.lead_s(policy.tuning)
    if lead_s > switch_s and switched == now and (step.after != now or (policy.switchable and starts)):
        yield rejections.slower_than_switch(lead_s, switch_s)
    if any(wanted.grow.of(role) <= target.of(role) < wanted.needed_now.of(role) for role in more):
        yield layouts.too_late(start_s, target)
    yield rejections.too_many(target, layout.total) if more else rejections.NO_OTHER_REASON
