"""Which workers change their role: another split of the same workers, if it serves the present clearly better."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from pointsman.api.protocol.names import Role
from pointsman.planner.core import switch_guards
from pointsman.planner.core.messages import guards
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.sizing.pool_targets import Targets
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Layout, Observation, Policy, Switch
from pointsman.serving.flow_control import UNBOUNDED

Keeps = Callable[[int], float]
"""The share of requests within their objectives when so many decode workers have become prefill workers."""


@dataclass(frozen=True, slots=True)
class SwitchStep:
    """``after``: the layout after switches that are made now; ``coming``: after those that are wanted; ``deferred``:
    why these must wait; ``answered``: a switch is made, or will be sooner than a worker could start."""

    after: Layout
    coming: Layout
    deferred: str | None = None
    answered: bool = False


def switch(
    state: State, observation: Observation, policy: Policy, wanted: Targets, point: OperatingPoint
) -> tuple[State, SwitchStep]:
    """What switches, and the state that remembers what would."""
    now, history = observation.layout, state.history
    calm = replace(state, history=history.nothing_wanted())
    if not policy.role_switch:
        return calm, SwitchStep(now, now)
    best = _best_switch(observation, policy, wanted, state, point)
    if best == now:
        return calm, SwitchStep(now, now)
    same_way = history.wanting is not None and (history.wanting[0] - now[0]) * (best[0] - now[0]) > 0
    history = replace(history, wanting=best, wanting_ticks=history.wanting_ticks + 1 if same_way else 1)
    state = replace(state, history=history)
    gives = Role.DECODE if best[0] > now[0] else Role.PREFILL
    best = _step(now, best, switch_guards.switches_now(gives, observation, policy, history))
    sustained = 1 if _fails(observation, policy, wanted) else policy.tuning.switch_evaluations
    if history.wanting_ticks < sustained:
        return state, SwitchStep(now, best, guards.evaluations(history.wanting_ticks, sustained), answered=True)
    for switch in switches_between(now, best):
        why = switch_guards.against_switch(switch, observation, policy, history)
        if why is not None:
            soon = why.seconds <= state.leads.lead_s(policy.start_s)
            return state, SwitchStep(now, now, why.why, answered=soon)
    return state, SwitchStep(best, best, answered=True)


def _fails(observation: Observation, policy: Policy, wanted: Targets) -> bool:
    """Whether requests already wait because a role has far less than it needs, or nobody: no noise to be waited out."""
    need_p, need_d = wanted.load_now
    has_p, has_d = observation.serving_layout
    if min(has_p, has_d) == 0:
        return True
    return wanted.backlog > 0 and min(has_p / need_p, has_d / need_d) < policy.tuning.failing_share


def _best_switch(
    observation: Observation, policy: Policy, wanted: Targets, state: State, point: OperatingPoint
) -> Layout:
    """The layout of the same size that serves the present best; the present one when no other is clearly better.

    At most four workers switch, and of equally good layouts the one with the fewest switches.
    """
    now, most_lost = observation.layout, policy.tuning.max_attainment_loss
    best, best_gain = now, policy.tuning.switch_min_gain
    keeps = kept_by(point, observation, wanted.rate_per_s, state.forecaster.dispersion)
    moves = sorted(range(-4, 5), key=abs)
    for layout, gain in weighed_switches(observation, policy, wanted, moves):
        # Needs are whole workers: who lacks a hundredth of one seems to lack half, and the other role would pay for it.
        if gain > best_gain and keeps(layout[0] - now[0]) >= keeps(0) - most_lost:
            best, best_gain = layout, gain
    return best


def kept_by(point: OperatingPoint, observation: Observation, rate_per_s: float, arrival_scv: float) -> Keeps:
    """What share of requests those that serve keep within the objectives, with so many of them in the other role."""
    prefill, decode = observation.serving_layout
    holds_back = observation.routing.flow != UNBOUNDED

    @cache
    def keeps(moved: int) -> float:
        if prefill + moved < 1 or decode - moved < 1:
            return 0.0
        return point.attainment(rate_per_s, arrival_scv, prefill + moved, decode - moved, holds_back=holds_back)

    return keeps


def weighed_switches(
    observation: Observation, policy: Policy, wanted: Targets, moves: Sequence[int]
) -> Iterator[tuple[Layout, float]]:
    """(a layout with so many decode workers made prefill workers, the share of the need that it serves more).

    What only starts serves nobody yet: it is the workers that serve which are weighed, and a role without one of these
    gains nothing. Layouts that leave a role its bounds are left out.
    """
    need_p, need_d = wanted.load_now
    now, serving = observation.layout, observation.serving_layout

    def served(p: int, d: int) -> float:
        """The share of the need that the scarcer role has."""
        return min(1.0, p / need_p, d / need_d)

    for moved in moves:
        p, d = now[0] + moved, now[1] - moved
        if not (policy.prefill.least <= p <= policy.prefill.most and policy.decode.least <= d <= policy.decode.most):
            continue
        yield Layout(p, d), served(serving[0] + moved, serving[1] - moved) - served(*serving)


def switches_between(now: Layout, target: Layout) -> tuple[Switch, ...]:
    """Opposing changes are matched as switches; what is left over is scaling."""
    more_prefill, more_decode = target[0] - now[0], target[1] - now[1]
    if more_prefill > 0 > more_decode:
        return (Switch(Role.DECODE, Role.PREFILL, min(more_prefill, -more_decode)),)
    if more_decode > 0 > more_prefill:
        return (Switch(Role.PREFILL, Role.DECODE, min(more_decode, -more_prefill)),)
    return ()


def _step(now: Layout, target: Layout, most_switches: int) -> Layout:
    """``target``, or as far on the way to it as ``most_switches`` lead; the rest follows when they have ended."""
    switches = switches_between(now, target)
    if not switches or switches[0].count <= most_switches:
        return target
    toward = 1 if target[0] > now[0] else -1
    return Layout(now.prefill + toward * most_switches, now.decode - toward * most_switches)
