"""What keeps a good decision from being taken too early, too often, or to and fro.

A guard is a question with a sentence for an answer: why not now. None means nothing stands in the way.
"""

import math
from dataclasses import dataclass

from pointsman.planner.core.types import Observation, Policy, Switch, WorkerCondition, WorkerRole

SUSTAINED_TICKS = 3
SWITCH_WINDOW_S = 600.0


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """One switch that was decided: when, and to which role."""

    at_s: float
    target: WorkerRole


@dataclass(frozen=True, slots=True)
class History:
    """What was decided lately: bounded by the window it is asked about."""

    switches: tuple[SwitchRecord, ...] = ()

    def remember(self, switches: tuple[Switch, ...], now_s: float) -> "History":
        """With these switches added and those older than the window dropped."""
        new = tuple(SwitchRecord(now_s, s.target) for s in switches for _ in range(s.count))
        kept = tuple(r for r in self.switches if r.at_s > now_s - SWITCH_WINDOW_S)
        return History((*kept, *new))


def switches_at_a_time(observation: Observation, policy: Policy) -> int:
    """How many workers may be switching at once; never 0, or a small service could not move at all."""
    return max(1, math.ceil(policy.max_in_transition_share * len(observation.workers)))


def against_switch(switch: Switch, observation: Observation, policy: Policy, history: History) -> str | None:
    """Why this switch must wait or cannot be; None if it may go ahead."""
    now_s = observation.at_s
    recent = [r for r in history.switches if r.at_s > now_s - SWITCH_WINDOW_S]
    if len(recent) + switch.count > policy.max_switches_per_10_min:
        return f"{len(recent)} switches in the last 10 minutes, at most {policy.max_switches_per_10_min} are allowed"
    opposite = [r.at_s for r in recent if r.target is not switch.target]
    if opposite and now_s - max(opposite) < policy.opposite_after_s:
        waits = policy.opposite_after_s - (now_s - max(opposite))
        return f"a switch the other way was {now_s - max(opposite):.0f} s ago: {waits:.0f} s to wait"
    in_transition = sum(w.condition is WorkerCondition.SWITCHING for w in observation.workers)
    allowed = switches_at_a_time(observation, policy)
    if in_transition + switch.count > allowed:
        return f"{in_transition} workers are switching, at most {allowed} of {len(observation.workers)} may at a time"
    settled = [
        w
        for w in observation.workers
        if w.role is switch.source
        and w.condition is WorkerCondition.ACTIVE
        and (w.role_since_s is None or now_s - w.role_since_s >= policy.min_dwell_s)
    ]
    if len(settled) < switch.count:
        return f"no {switch.source} worker has kept its role for {policy.min_dwell_s:.0f} s yet"
    if observation.active(switch.source) - switch.count < policy.bounds(switch.source).least:
        return f"{switch.source} would have fewer than its least, {policy.bounds(switch.source).least}"
    return None
