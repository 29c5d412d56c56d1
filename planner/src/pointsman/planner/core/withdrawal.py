"""A plan that waits for a person is withdrawn when nobody wants it any more.

Not at the first look at which nothing is wanted: loads go up and down, and a person who is asked, and asked no more,
and asked again, stops listening. It must be unwanted for as long as spare workers must be spare before they go.
"""

from dataclasses import replace
from typing import Final

from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, Observation, Policy, Reason

UNWANTED_TICKS: Final = 12  # at least; guards that count ticks have had their say twice


def withdrawal(state: State, decision: Decision, observation: Observation, policy: Policy) -> tuple[State, Decision]:
    """The decision, or the one that withdraws the plan that waits; and since when that plan is not wanted.

    Any look at which a layout is wanted, this or another, or at which nothing is known, begins the time anew.
    """
    asked = observation.awaiting_approval
    if asked is None or not _content(decision, asked):
        return replace(state, unwanted_since_s=None), decision
    since_s = observation.at_s if state.unwanted_since_s is None else state.unwanted_since_s
    long_s = max(
        UNWANTED_TICKS * policy.interval_s, policy.scale_in_stabilization_s, state.leads.lead_s(policy.start_s)
    )
    waited_s = observation.at_s - since_s
    if waited_s < long_s:
        return replace(state, unwanted_since_s=since_s), decision
    message = f"{asked[0]}P{asked[1]}D was not wanted for {waited_s:.0f} s: nobody is asked for it now"
    withdrawn = replace(
        decision, reason=Reason.NO_LONGER_WANTED, message=f"{message}; {decision.message}", withdraws=True
    )
    return replace(state, unwanted_since_s=None), withdrawn


def _content(decision: Decision, asked: tuple[int, int]) -> bool:
    """Whether the layout is left as it is for its own sake: not for a guard, a wait, a limit, or what is unknown."""
    if decision.changes_layout:
        return False
    fewer = sum(asked) < decision.prefill + decision.decode  # spare workers are what that plan is about
    return decision.reason is Reason.STEADY or (decision.reason is Reason.SPARE_CAPACITY and not fewer)
