"""What else was considered: the layouts around the chosen one, what each takes and would achieve, and why not.

Nothing is decided here, and layouts are not ranked by one number: what each role needs, what those who serve can do of
it, and the policy decide. What they said of each layout is told in their own numbers.
"""

from typing import Final

from pointsman.api.protocol.names import LANGUAGE_ROLES
from pointsman.planner.core.layout.rejection_reasons import Choice, Way, objections
from pointsman.planner.core.types import Alternative, Layout, WorkerCondition
from pointsman.serving.flow_control import UNBOUNDED

_NEIGHBOURS: Final = ((1, -1), (-1, 1), (1, 0), (0, 1), (-1, 0), (0, -1))


def considered(choice: Choice) -> tuple[Alternative, ...]:
    """The chosen layout first, then the present one, those that are wanted or needed, and their neighbours.

    What a layout achieves is estimated at the load that is planned for and with the queue that is to be cleared.
    """
    observation, rate_per_s = choice.observation, choice.wanted.planned_per_s
    holds_back, scv = observation.routing.flow != UNBOUNDED, choice.state.forecaster.dispersion
    chosen, found = Way(choice.target, choice.step.after), []
    for way in _ways(choice, chosen):
        got = round(choice.point.attainment(rate_per_s, scv, *way.layout, holds_back=holds_back), 4)
        lead_s = _lead_s(choice, way)
        why = "" if way == chosen else next(objections(choice, way, lead_s, got))
        action, gpus = in_short(choice.now, way.switched, way.layout), way.layout.total * observation.gpus_each
        found.append(Alternative(*way.layout, gpus, got, round(lead_s, 1), action, why))
    return tuple(found)


def _ways(choice: Choice, chosen: Way) -> list[Way]:
    now, wanted, switches = choice.now, choice.wanted, choice.policy.role_switch
    need, wants = wanted.minimum, Layout(wanted.prefill, wanted.decode)
    layouts = [need.most(choice.target), wants, need, choice.state.history.wanting or now]
    layouts += [Layout(now.prefill + p, now.decode + d) for p, d in _NEIGHBOURS if switches or p * d == 0]
    ways = [chosen, Way(now, now)]
    if choice.step.after != now:  # by starts alone
        ways.append(Way(now.most(choice.target), now))
    ways += [Way(layout, _after_switches(now, layout) if switches else now) for layout in layouts]
    return [way for way in dict.fromkeys(ways) if min(way.layout) >= 1][:12]


def _after_switches(now: Layout, layout: Layout) -> Layout:
    to_prefill = max(0, min(layout.prefill - now.prefill, now.decode - layout.decode))
    to_decode = max(0, min(layout.decode - now.decode, now.prefill - layout.prefill))
    return Layout(now.prefill + to_prefill - to_decode, now.decode + to_decode - to_prefill)


def _lead_s(choice: Choice, way: Way) -> float:
    """Until every worker of it serves: those that switch in seconds, those that start when they are ready."""
    observation, policy, leads = choice.observation, choice.policy, choice.state.leads
    longest_s = 0.0
    for pool, role in enumerate(LANGUAGE_ROLES):
        of_role = [w.condition for w in observation.workers if w.role is role]
        moved = way.switched[pool] - choice.now[pool]
        switching = of_role.count(WorkerCondition.SWITCHING) + max(0, moved)
        coming = leads.ready_in_s(role, observation.at_s, policy.start_s, policy.tuning)
        coming += [choice.state.switch_leads.lead_s(policy.tuning)] * switching
        missing = way.layout[pool] - observation.serving(role) - min(0, moved)
        if missing > 0:
            ready_s = sorted(coming) + [leads.lead_s(policy.start_s)] * missing
            longest_s = max(longest_s, ready_s[missing - 1])
    return longest_s


def in_short(now: Layout, switched: Layout, target: Layout) -> str:
    """What the change is, in a word or two: stay, switch, scale-out, scale-in.

    A switch in place of a start is a switch: nobody who serves is taken away.
    """
    words = ["switch"] if switched != now else []
    if target.total > now.total:
        words.append("scale-out")
    elif target.total < now.total and switched == now:
        words.append("scale-in")
    return "+".join(words) or ("stay" if target == now else "replace")
