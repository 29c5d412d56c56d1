"""A plan that waits for a person is withdrawn when the present layout has been enough for long.

Not at the first look at which nothing is wanted: loads go up and down, and a person who is asked, and asked no more,
and asked again, stops listening. It must be unwanted for as long as spare workers must be spare before they go.
"""

from dataclasses import replace

from pointsman.planner.core.messages import decisions
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, Observation, Policy, Reason, target_in_words


def withdrawal(state: State, decision: Decision, observation: Observation, policy: Policy) -> tuple[State, Decision]:
    """The decision, or the one that withdraws the plan that waits; and how long that plan was seen not to be wanted.

    Any look at which a layout is wanted, this or another, or at which nothing is known, begins the time anew.
    """
    asked = observation.awaiting_approval
    if asked is None or not _content(decision, asked) or observation.unread_gateways:
        return replace(state, unwanted_s=None), decision
    # What was looked at counts, not what has passed: while nobody looked it may have been wanted.
    unwanted_s = 0.0 if state.unwanted_s is None else state.unwanted_s + observation.window_s
    long_s = max(
        12 * policy.interval_s,
        min(48 * policy.interval_s, 120.0),  # a guard may wait half of it, and begin again
        policy.scale_in_stabilization_s,
        state.leads.lead_s(policy.start_s),
    )
    if unwanted_s < long_s:
        return replace(state, unwanted_s=unwanted_s), decision
    message = decisions.withdrawn(target_in_words(asked), unwanted_s, decision.message)
    withdrawn = replace(decision, reason=Reason.WITHDRAWN, message=message, withdraws=True)
    return replace(state, unwanted_s=None), withdrawn


def _content(decision: Decision, asked: tuple[int, ...]) -> bool:
    """Whether the pools are left as they are for their own sake: not for a guard, a wait, a limit or the unknown."""
    if decision.changes_pools:
        return False
    fewer = sum(asked) < sum(decision.target)  # spare workers are what that plan is about
    return decision.reason is Reason.STEADY or (decision.reason is Reason.SPARE_CAPACITY and not fewer)
