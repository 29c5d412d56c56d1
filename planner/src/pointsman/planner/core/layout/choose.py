"""How many workers of each role, by switches and scaling, within the policy; and why."""

from dataclasses import replace
from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.planner.core.layout.alternatives import considered, in_short
from pointsman.planner.core.layout.inputs import inputs
from pointsman.planner.core.layout.rejection_reasons import Choice
from pointsman.planner.core.layout.role_switches import SwitchStep, switch, switches_between
from pointsman.planner.core.layout.scaling import beyond_budget, limited, scaled
from pointsman.planner.core.messages import layouts
from pointsman.planner.core.messages.words import sentences
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.sizing.pool_targets import Targets
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Alternative, Decision, Layout, Observation, Policy, Reason

SHORT: Final = (Reason.PREFILL_SHORT, Reason.DECODE_SHORT, Reason.BOTH_SHORT)
_ENOUGH: Final = (Reason.STEADY, Reason.SPARE_CAPACITY)


def layout(
    state: State,
    observation: Observation,
    policy: Policy,
    now_s: float,
    wanted: Targets,
    point: OperatingPoint,
) -> tuple[State, Decision]:
    """The decision but for its routing numbers, and the state that remembers it."""
    now, over = observation.layout, beyond_budget(observation, policy)
    # 1. Switches. A plan for more than the budget is refused: none before what is beyond it has gone.
    if over:
        state, step = replace(state, wanting=None, wanting_ticks=0), SwitchStep.none(now)
    else:
        state, step = switch(state, observation, policy, now_s, wanted, point)
    # 2. Starts and removals
    known = state.requests >= policy.tuning.ready_requests
    target = scaled(observation, policy, wanted, step) if known or over else step.after
    # 3. What else there was
    switches, deferred = switches_between(now, step.after), step.deferred
    holds = _holds(observation, switches=bool(switches), deferred=deferred is not None)
    choice = Choice(state, observation, policy, wanted, now, step.after, target, deferred, holds, known)
    alternatives = considered(choice, point)
    # 4. Why
    is_limited = (known or over) and limited(observation, policy, wanted, target)
    reason, words = _why(choice, is_limited, over)
    if reason not in _ENOUGH:
        words.append(_present(choice, alternatives))
    if reason in SHORT and not is_limited and (deferred is None or target != now):
        words.append(_not_followed(choice, alternatives))
    if target == now == step.after and deferred is not None:
        reason = Reason.SWITCH_DEFERRED
        words.append(layouts.deferred(deferred))
    decision = Decision(
        reason, sentences(*words), now.prefill, now.decode, observation.routing,
        inputs=inputs(state, wanted, point, now, observation), alternatives=alternatives,
    )  # fmt: skip
    if target == now == step.after:
        return state, decision
    # 5. What is remembered of it
    if switches and state.wanting == step.after and policy.switches_at_once:
        # What is left of it was seen for long enough already, and so was what is not made at once.
        state = replace(state, wanting=None, wanting_ticks=0)
    if switches and reason in _ENOUGH:  # what starts would be enough, what serves is not
        reason = Reason.PREFILL_SHORT if switches[0].target is Role.PREFILL else Reason.DECODE_SHORT
    change = layouts.change(in_short(now, step.after, target), now, target, reason)
    decision = replace(
        decision, reason=reason, message=sentences(change, *words),
        prefill=target.prefill, decode=target.decode, switches=switches, changes_layout=True,
    )  # fmt: skip
    return replace(state, history=state.history.remember(switches, now_s, policy)), decision


def _why(choice: Choice, is_limited: bool, over: bool) -> tuple[Reason, list[str]]:
    """The reason of what is done, and the sentences that lead to it."""
    policy, wanted, now, target = choice.policy, choice.wanted, choice.now, choice.target
    shortage = reason = _shortage(wanted, now)
    words, limits = [], False
    if over:
        gpus = now.total * choice.observation.gpus_each
        words.append(layouts.over_budget(gpus, policy.max_gpus, policy.scale_in))
        if reason in SHORT or not policy.scale_in:
            reason = Reason.UNSATISFIABLE
        elif reason is Reason.STEADY:
            reason = Reason.SPARE_CAPACITY
    if reason in _ENOUGH and target.total > now.total:
        reason = _shortage_of(target.prefill > now.prefill, target.decode > now.decode)
        words.append(layouts.minimum(policy.min_gpus))
    if is_limited and reason not in _ENOUGH:
        # A change that helps as far as it goes says what it helps against.
        reason = reason if target != now else Reason.UNSATISFIABLE
        limits = True
    if reason in SHORT and target != now and target.has(wanted.grow) and now.has(target):
        # What is short at this moment no start would reach in time, and what it could reach needs fewer.
        reason = Reason.SPARE_CAPACITY
        words.append(layouts.too_late(target))
    return reason, [_situation(choice, shortage, limits), *words]


def _shortage(wanted: Targets, now: Layout) -> Reason:
    need = wanted.minimum
    if not now.has(need):
        return _shortage_of(need.prefill > now.prefill, need.decode > now.decode)
    return Reason.STEADY if wanted.prefill >= now.prefill and wanted.decode >= now.decode else Reason.SPARE_CAPACITY


def _shortage_of(prefill: bool, decode: bool) -> Reason:
    if prefill and decode:
        return Reason.BOTH_SHORT
    return Reason.PREFILL_SHORT if prefill else Reason.DECODE_SHORT


def _situation(choice: Choice, shortage: Reason, limits: bool) -> str:
    """What is needed, and what the policy allows of it where it ``limits`` that."""
    wanted, now, target, serving = choice.wanted, choice.now, choice.target, choice.observation.serving_layout
    changes = target != now or choice.switched != now
    if shortage in SHORT:
        if limits:
            return layouts.needed_but_limited(wanted.minimum, now, serving, target)
        return layouts.needed(wanted.minimum, now, serving, changes)
    if shortage is Reason.SPARE_CAPACITY:
        return layouts.spare(Layout(wanted.prefill, wanted.decode), now, serving, changes)
    return layouts.enough(now, serving)


def _present(choice: Choice, alternatives: tuple[Alternative, ...]) -> str:
    """What the present layout would do; without a worker of some role it is no alternative and serves nobody."""
    here = next((a.expected_attainment for a in alternatives if a.layout == choice.now), 0.0)
    return layouts.present(here, choice.policy.objectives.attainment)


def _not_followed(choice: Choice, alternatives: tuple[Alternative, ...]) -> str:
    """Why what is needed is not what is done; empty: it is."""
    enough = alternatives[0].layout.most(choice.wanted.minimum)
    why = next((a.rejected_because for a in alternatives if a.layout == enough), "")
    return layouts.not_followed(enough, why) if why else ""


def _holds(observation: Observation, *, switches: bool, deferred: bool) -> str:
    """Why workers that could go stay, where a policy lets them go; empty: nothing keeps them."""
    if observation.unread:
        return layouts.unread_pages(observation.unread)
    return layouts.during_switch(switches) if switches or deferred else ""
