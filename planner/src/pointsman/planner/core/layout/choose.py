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
from pointsman.planner.core.types import Decision, Layout, Observation, Policy, Reason

_ENOUGH: Final = (Reason.STEADY, Reason.SPARE_CAPACITY)
_ONE_SHORT: Final = (Reason.PREFILL_SHORT, Reason.DECODE_SHORT)


def layout(
    state: State, observation: Observation, policy: Policy, wanted: Targets, point: OperatingPoint
) -> tuple[State, Decision]:
    """The decision but for its routing numbers, and the state that remembers it."""
    now, over = observation.layout, beyond_budget(observation, policy)
    # 1. Switches. A plan for more than the budget is refused: none before what is beyond it has gone.
    if over:
        state, step = replace(state, history=state.history.nothing_wanted()), SwitchStep(now, now)
    else:
        state, step = switch(state, observation, policy, wanted, point)
    # 2. Starts and removals
    known = state.requests >= policy.tuning.ready_requests
    target = scaled(observation, policy, wanted, step) if known or over else step.after
    # 3. What else there was
    choice = Choice(state, observation, policy, wanted, point, now, step, target, known)
    alternatives = considered(choice)
    # 4. Why
    is_limited = (known or over) and limited(observation, policy, wanted, target)
    reason, words = _why(choice, is_limited, over)
    if reason not in _ENOUGH:
        # Without a worker of some role the present layout is no alternative, and serves nobody.
        here = next((a.expected_attainment for a in alternatives if a.layout == now), 0.0)
        words.append(layouts.present(here, policy.objectives.attainment))
    if reason not in (*_ENOUGH, Reason.UNSATISFIABLE) and not is_limited and (step.deferred is None or target != now):
        enough = target.most(wanted.minimum)
        why = next((a.rejected_because for a in alternatives if a.layout == enough), "")
        words.append(layouts.not_followed(enough, why) if why else "")
    unchanged = target == now == step.after
    if unchanged and step.deferred is not None:
        reason = Reason.SWITCH_DEFERRED
        words.append(layouts.deferred(step.deferred))
    decision = Decision(
        reason, sentences(*words), now.prefill, now.decode, observation.routing,
        inputs=inputs(choice), alternatives=alternatives,
    )  # fmt: skip
    if unchanged:
        return state, decision
    switches = switches_between(now, step.after)
    # What starts would be enough, what serves is not; or the role that lacks more gets a worker of the other one.
    if switches and (reason in _ENOUGH or (reason in _ONE_SHORT and target.total == now.total)):
        reason = Reason.PREFILL_SHORT if switches[0].target is Role.PREFILL else Reason.DECODE_SHORT
    change = layouts.change(in_short(now, step.after, target), now, target, reason)
    return state, replace(
        decision, reason=reason, message=sentences(change, *words),
        prefill=target.prefill, decode=target.decode, switches=switches, changes_layout=True,
    )  # fmt: skip


def _why(choice: Choice, is_limited: bool, over: bool) -> tuple[Reason, list[str]]:
    """The reason of what is done, and the sentences that lead to it: what is needed, and what the policy allows."""
    policy, wanted, now, target = choice.policy, choice.wanted, choice.now, choice.target
    short, enough = (
        _shortage(wanted.minimum, now),
        Layout(min(wanted.prefill, now.prefill), min(wanted.decode, now.decode)),
    )
    reason = short or (Reason.STEADY if enough == now else Reason.SPARE_CAPACITY)
    need, allowed = (enough, None) if short is None else (wanted.minimum, target if is_limited else None)
    changes = target != now or choice.step.after != now
    words = [layouts.situation(need, short is None, allowed, now, choice.observation.serving_layout, changes)]
    if over:
        gpus, most = choice.observation.gpus_in_use, policy.max_gpus + policy.reserved_gpus
        words.append(layouts.over_budget(gpus, most, policy.scale_in))
        reason = Reason.SPARE_CAPACITY if short is None and policy.scale_in else Reason.UNSATISFIABLE
    elif short is None and target.total > now.total:
        reason = _shortage(target, now) or reason
        words.append(layouts.minimum(policy.min_gpus))
    elif short is not None and is_limited and target == now:  # a change that helps in part says what it helps against
        reason = Reason.UNSATISFIABLE
    elif short is not None and target != now and target.has(wanted.grow) and now.has(target):
        # What is short at this moment no start would reach in time, and what it could reach needs fewer.
        reason = Reason.SPARE_CAPACITY
        words.append(layouts.too_late(choice.state.leads.lead_s(policy.start_s), target))
    return reason, words


def _shortage(need: Layout, now: Layout) -> Reason | None:
    """Which roles have fewer workers ``now`` than they need."""
    if need.prefill > now.prefill:
        return Reason.BOTH_SHORT if need.decode > now.decode else Reason.PREFILL_SHORT
    return Reason.DECODE_SHORT if need.decode > now.decode else None
