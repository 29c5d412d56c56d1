"""What else was considered: the layouts around the chosen one, what each takes and would achieve, and why not.

Nothing is decided here, and layouts are not ranked by one number: what each role needs, what those who serve can do of
it, and the policy decide. What they said of each layout is told in their own numbers.
"""

from dataclasses import dataclass
from typing import Final

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.layout.rejection_reasons import Choice, rejection
from pointsman.planner.core.layout.role_switches import switches_between
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.types import Alternative, Layout, WorkerCondition
from pointsman.serving.flow_control import UNBOUNDED

_NEIGHBOURS: Final = ((1, -1), (-1, 1), (1, 0), (0, 1), (-1, 0), (0, -1))


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A layout and the way to it. ``switched``: the layout after its switches alone."""

    layout: Layout
    switched: Layout


def considered(choice: Choice, point: OperatingPoint) -> tuple[Alternative, ...]:
    """The chosen layout first, then the present one, those that are wanted or needed, and their neighbours.

    What a layout achieves is estimated at ``point``, at the load that is planned for and with the queue that is to be
    cleared.
    """
    observation, wanted, now = choice.observation, choice.wanted, choice.now
    holds_back, scv = observation.routing.flow != UNBOUNDED, choice.state.forecaster.dispersion
    each, chosen, found = observation.gpus_each, _Weighed(choice.target, choice.switched), []
    chosen_lead_s = _lead_s(choice, chosen)
    for weighed in _weighed(choice, chosen):
        prefill, decode = weighed.layout
        got = round(point.attainment(wanted.planned_per_s, scv, prefill, decode, holds_back=holds_back), 4)
        lead_s = chosen_lead_s if weighed == chosen else _lead_s(choice, weighed)
        why = "" if weighed == chosen else rejection(choice, point, weighed.layout, weighed.switched, lead_s, got)
        action = "stay" if weighed == _Weighed(now, now) else in_short(now, weighed.switched, weighed.layout)
        gpus = (prefill + decode) * each
        found.append(Alternative(prefill, decode, gpus, got, round(lead_s, 1), action, why))
    return tuple(found)


def _weighed(choice: Choice, chosen: _Weighed) -> list[_Weighed]:
    now, wanted = choice.now, choice.wanted
    need = wanted.minimum
    layouts = [need.most(choice.target), Layout(wanted.prefill, wanted.decode), need]
    if choice.state.wanting is not None:
        layouts.append(choice.state.wanting)
    beside = [(p, d) for p, d in _NEIGHBOURS if choice.policy.role_switch or p * d == 0]
    layouts += [Layout(now.prefill + p, now.decode + d) for p, d in beside]
    ways = [chosen, _Weighed(now, now)]
    if choice.switched != now:  # by starts alone
        ways.append(_Weighed(now.most(choice.target), now))
    for layout in layouts:
        opposite = choice.policy.role_switch and bool(switches_between(now, layout))
        ways.append(_Weighed(layout, _after_switches(now, layout) if opposite else now))
    return [way for way in dict.fromkeys(ways) if min(way.layout) >= 1][:12]


def _after_switches(now: Layout, layout: Layout) -> Layout:
    moved = sum(s.count if s.target is Role.PREFILL else -s.count for s in switches_between(now, layout))
    return Layout(now.prefill + moved, now.decode - moved)


def _lead_s(choice: Choice, weighed: _Weighed) -> float:
    """Until every worker of it serves: those that switch in seconds, those that start when they are ready."""
    observation, policy, leads = choice.observation, choice.policy, choice.state.leads
    longest_s = 0.0
    for pool, role in enumerate(LANGUAGE_ROLES):
        of_role = [w.condition for w in observation.workers if w.role is role]
        moved = weighed.switched[pool] - choice.now[pool]
        coming = leads.ready_in_s(role, observation.at_s, policy.start_s, policy.tuning)
        coming += [choice.state.switch_leads.lead_s(policy.tuning)] * (
            of_role.count(WorkerCondition.SWITCHING) + max(0, moved)
        )
        missing = weighed.layout[pool] - observation.serving(role) - min(0, moved)
        if missing > len(coming):
            longest_s = max(longest_s, leads.lead_s(policy.start_s))
        elif missing > 0:
            longest_s = max(longest_s, sorted(coming)[missing - 1])
    return longest_s


def in_short(now: Layout, switched: Layout, target: Layout) -> str:
    """What the change is, in a word or two: switch, scale-out, scale-in.

    A switch in place of a start is a switch: nobody who serves is taken away.
    """
    words = ["switch"] if switched != now else []
    if target.total > now.total:
        words.append("scale-out")
    elif target.total < now.total and switched == now:
        words.append("scale-in")
    return "+".join(words) or "replace"
