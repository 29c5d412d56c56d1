"""What keeps a good decision from being taken too early, too often, or to and fro.

A guard is a question with a sentence for an answer: why not now. None means nothing stands in the way.
"""

import math
from dataclasses import dataclass
from typing import Final

from pointsman.planner.core.types import Observation, Policy, Switch, WorkerCondition, WorkerRole

SWITCH_TICKS: Final = 3  # a switch must be wanted in so many
SWITCH_WINDOW_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """One switch: when it was decided or, where a person is asked first, seen to begin; and to which role."""

    at_s: float
    target: WorkerRole
    wished: bool = False  # decided where nothing is carried out


@dataclass(frozen=True, slots=True)
class History:
    """What was switched lately: bounded by the window it is asked about."""

    switches: tuple[SwitchRecord, ...] = ()
    switching: tuple[str, ...] = ()  # workers that changed their role at the last look, where decided is not yet made

    def look(self, observation: Observation, policy: Policy) -> "History":
        """With the switches that have begun since the last look, where those decided are not made at once."""
        if policy.switches_at_once:  # they are remembered when they are decided; mere wishes never were
            return History(tuple(r for r in self.switches if not r.wished))
        on_their_way = {w.name: w.role for w in observation.workers if w.condition is WorkerCondition.SWITCHING}
        begun = tuple(
            SwitchRecord(observation.at_s, role) for name, role in on_their_way.items() if name not in self.switching
        )
        before = self.switches if policy.only_thinks else tuple(r for r in self.switches if not r.wished)
        for record in begun:
            before = History(before).but_for(record.target)  # somebody does what was wished
        recent = tuple(r for r in before if r.at_s > observation.at_s - SWITCH_WINDOW_S)
        return History((*recent, *begun), tuple(on_their_way))

    def remember(self, switches: tuple[Switch, ...], now_s: float, policy: Policy) -> "History":
        """With these switches added and those older than the window dropped.

        Where nothing is carried out the same wish comes again and again: it is one switch, made when first wished.
        Where a person is asked it is remembered when it begins.
        """
        if not (policy.switches_at_once or policy.only_thinks):
            return self
        wished = policy.only_thinks
        new = tuple(SwitchRecord(now_s, s.target, wished) for s in switches for _ in range(s.count))
        kept = tuple(r for r in self.switches if r.at_s > now_s - SWITCH_WINDOW_S)
        if wished and new and len(self.but_for(new[0].target)) < len(self.switches):
            new = ()
        return History((*kept, *new), self.switching)

    def but_for(self, target: WorkerRole) -> tuple[SwitchRecord, ...]:
        """Without the last wish, if it was for this role."""
        count = len(self.switches)
        while count > 0 and self.switches[count - 1].wished and self.switches[count - 1].target is target:
            count -= 1
        return self.switches[:count]


def switches_at_a_time(observation: Observation, policy: Policy) -> int:
    """How many workers may be switching at once; never 0, or a small service could not move at all."""
    return max(1, math.ceil(policy.max_in_transition_share * len(observation.workers)))


def against_switch(switch: Switch, observation: Observation, policy: Policy, history: History) -> str | None:
    """Why this switch must wait or cannot be; None if it may go ahead."""
    now_s = observation.at_s
    recent = [r for r in history.but_for(switch.target) if r.at_s > now_s - SWITCH_WINDOW_S]
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
