"""What else was considered: the layouts next to the present one, and what each would achieve."""

from typing import Final

from pointsman.planner.core.sizing import OperatingPoint
from pointsman.planner.core.state import State
from pointsman.planner.core.switching import MOVE_COST
from pointsman.planner.core.targets import Targets
from pointsman.planner.core.types import Alternative, Observation, Policy
from pointsman.serving.flow_control import NOTHING_HELD

GPU_COST: Final = 0.01  # of attainment, per GPU: breaks ties towards the smaller layout


def considered(
    state: State,
    observation: Observation,
    policy: Policy,
    wanted: Targets,
    now: tuple[int, int],
    target: tuple[int, int],
    point: OperatingPoint,
) -> tuple[Alternative, ...]:
    """The chosen layout, the present one, and their neighbours, and what each achieves at the load planned for."""
    each, goal = observation.gpus_each, policy.objectives.attainment
    rate_per_s, holds_back = max(wanted.rate_per_s, wanted.high_rate_per_s), observation.routing.flow != NOTHING_HELD
    neighbours = [(now[0] + p, now[1] + d) for p, d in ((1, -1), (-1, 1), (1, 0), (0, 1))]
    found = []
    for p, d in dict.fromkeys([target, now, *neighbours]):
        if p < 1 or d < 1:
            continue
        got = point.attainment(rate_per_s, state.forecaster.dispersion, p, d, holds_back=holds_back)
        moves = max(abs(p - now[0]), abs(d - now[1]))
        cost = -min(got, goal) + GPU_COST * (p + d) * each + MOVE_COST * moves
        why = "" if (p, d) == target else _against(policy, (p, d), target, each)
        switched = (p, d) if (p - now[0]) * (d - now[1]) < 0 else now
        action = "stay" if (p, d) == now else in_short(now, switched, (p, d))
        found.append(Alternative(p, d, (p + d) * each, round(got, 4), round(cost, 4), action, why))
    return tuple(found)


def _against(policy: Policy, layout: tuple[int, int], target: tuple[int, int], each: int) -> str:
    if sum(layout) * each > policy.max_gpus:
        return f"{sum(layout) * each} GPUs, the budget is {policy.max_gpus}"
    less = [role for role, a, b in zip(("prefill", "decode"), layout, target, strict=True) if a < b]
    if less:
        return f"less {' and '.join(less)} than needed"
    return "more than needed"


def in_short(now: tuple[int, int], switched: tuple[int, int], target: tuple[int, int]) -> str:
    """What the change is, in a word or two: switch, scale-out, scale-in."""
    words = ["switch"] if switched != now else []
    if sum(target) > sum(now):
        words.append("scale-out")
    elif sum(target) < sum(now):
        words.append("scale-in")
    return "+".join(words) or "replace"
