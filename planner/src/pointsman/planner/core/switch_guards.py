"""What keeps a good decision from being taken too early, too often, or to and fro.

A guard is a question with a sentence for an answer: why not now. None means nothing stands in the way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pointsman.api.protocol.names import Role
from pointsman.planner.core.messages import guards
from pointsman.planner.core.types import Layout, Observation, Policy, Switch, WorkerCondition

SWITCH_WINDOW_S: Final = 600.0  # of ``switches_per_worker``


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """One switch: when it was first seen, under way or ended, and to which role."""

    at_s: float
    target: Role


@dataclass(frozen=True, slots=True)
class History:
    """The switches of the last ten minutes, and the one that the last evaluations would have liked."""

    switches: tuple[SwitchRecord, ...] = ()
    wanting: Layout | None = None  # the layout after the switch that is wanted
    wanting_ticks: int = 0

    def recent(self, now_s: float) -> tuple[SwitchRecord, ...]:
        """Those that count against the limit."""
        return tuple(r for r in self.switches if r.at_s > now_s - SWITCH_WINDOW_S)

    def nothing_wanted(self) -> "History":
        """The next switch must be wanted for as long again."""
        return replace(self, wanting=None, wanting_ticks=0)

    def begun(self, targets: Sequence[Role], layout: Layout, now_s: float) -> "History":
        """With switches to these roles that begin now, one for each worker. ``layout``: with them.

        A decision is no switch: its plan may be refused, wait for a person, or not be written at all.
        """
        if not targets:
            return self
        history = replace(self, switches=(*self.recent(now_s), *(SwitchRecord(now_s, role) for role in targets)))
        if self.wanting and any(self.wanting.of(role) > layout.of(role) for role in targets):
            return history  # what is left of it was wanted for long enough already
        return history.nothing_wanted()


def switches_at_a_time(observation: Observation, policy: Policy) -> int:
    """How many workers may be switching at once; never 0, or a small service could not move at all."""
    return max(1, math.ceil(policy.max_in_transition_share * len(observation.workers)))


class Wait(NamedTuple):
    """Why a switch must wait, and how many seconds; endless: it cannot be."""

    why: str
    seconds: float


def switches_now(source: Role, observation: Observation, policy: Policy, history: History) -> int:
    """How many workers of a role may change it at once, by all that is counted; at least 1, which may have to wait."""
    free = _most(observation, policy) - len(history.recent(observation.at_s))
    spare = observation.active(source) - policy.bounds(source).least
    return max(1, min(switches_at_a_time(observation, policy), free, spare))


def against_switch(switch: Switch, observation: Observation, policy: Policy, history: History) -> Wait | None:
    """Why this switch must wait or cannot be; None if it may go ahead."""
    now_s, most = observation.at_s, _most(observation, policy)
    # Needs are of the part of the load that is known, and the rest may be of another kind. A role without any worker
    # gets one all the same.
    if observation.unread_gateways and min(observation.serving_layout) > 0:
        waits_s = math.inf if observation.unreadable_gateways else policy.stale_after_s
        return Wait(guards.unread_gateways(observation.unread_gateways), waits_s)
    recent = history.recent(now_s)
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
