"""What keeps a good decision from being taken too early, too often, or to and fro.

A guard is a question with a sentence for an answer: why not now. None means nothing stands in the way.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from pointsman.api.protocol.names import Role
from pointsman.planner.core.messages import guards
from pointsman.planner.core.types import Observation, Policy, Switch, WorkerCondition, other

SWITCH_WINDOW_S: Final = 600.0  # of ``switches_per_worker``


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """One switch: when it was decided or, where a person is asked first, seen to begin; and to which role."""

    at_s: float
    target: Role
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

    def but_for(self, target: Role) -> tuple[SwitchRecord, ...]:
        """Without the last wish, if it was for this role."""
        count = len(self.switches)
        while count > 0 and self.switches[count - 1].wished and self.switches[count - 1].target is target:
            count -= 1
        return self.switches[:count]


def switches_at_a_time(observation: Observation, policy: Policy) -> int:
    """How many workers may be switching at once; never 0, or a small service could not move at all."""
    return max(1, math.ceil(policy.max_in_transition_share * len(observation.workers)))


class Wait(NamedTuple):
    """Why a switch must wait, and how many seconds; endless: it cannot be."""

    why: str
    seconds: float


def switches_now(source: Role, observation: Observation, policy: Policy, history: History) -> int:
    """How many workers of a role may change it at once, by all that is counted; at least 1, which may have to wait."""
    recent = _recent(history, other(source), observation.at_s)
    free = _most(observation, policy) - len(recent)
    return max(1, min(switches_at_a_time(observation, policy), free))


def against_switch(switch: Switch, observation: Observation, policy: Policy, history: History) -> Wait | None:
    """Why this switch must wait or cannot be; None if it may go ahead."""
    now_s, most = observation.at_s, _most(observation, policy)
    # Needs are of the part of the load that is known, and the rest may be of another kind. A role without any worker
    # gets one all the same.
    if observation.unread_gateways and min(observation.serving_layout) > 0:
        waits_s = math.inf if observation.unreadable_gateways else policy.stale_after_s
        return Wait(guards.unread_gateways(observation.unread_gateways), waits_s)
    recent = _recent(history, switch.target, now_s)
    if (beyond := len(recent) + switch.count - most) > 0:
        ended_s = sorted(r.at_s for r in recent)[beyond - 1] if beyond <= len(recent) else math.inf
        waits_s = ended_s + SWITCH_WINDOW_S - now_s
        return Wait(guards.switches_in_window(len(recent), most), waits_s)
    in_transition = sum(w.condition is WorkerCondition.SWITCHING for w in observation.workers)
    allowed = switches_at_a_time(observation, policy)
    if in_transition + switch.count > allowed:
        return Wait(guards.in_transition(in_transition, allowed, len(observation.workers)), 0.0)
    least = policy.bounds(switch.source).least
    if observation.active(switch.source) - switch.count < least:
        return Wait(guards.minimum(switch.source, least), math.inf)
    return None


def _most(observation: Observation, policy: Policy) -> int:
    """Switches that are allowed in the window: each worker may go and come back."""
    return policy.tuning.switches_per_worker * max(3, len(observation.workers))


def _recent(history: History, target: Role, now_s: float) -> list[SwitchRecord]:
    return [r for r in history.but_for(target) if r.at_s > now_s - SWITCH_WINDOW_S]
