"""Which split of the same workers is better: by what each role needs, and by what clients get."""

from dataclasses import replace

import pytest

from pointsman.api.protocol.names import Role
from pointsman.planner.core.layout.role_switches import weighed_switches
from pointsman.planner.core.prediction_score import Score
from pointsman.planner.core.sizing.pool_targets import Targets
from pointsman.planner.core.state import State
from pointsman.planner.core.switch_guards import SwitchRecord
from pointsman.planner.core.types import Bounds, Layout
from unit.planner.scenes import POLICY, observed

SIX = replace(POLICY, max_gpus=6, prefill=Bounds(1, 5), decode=Bounds(1, 5))


def wanted(prefill: float, decode: float) -> Targets:
    """So many workers are needed now."""
    least = Layout(round(prefill), round(decode))
    return Targets(
        prefill=3, decode=3, rate_per_s=2.0, ahead_per_s=2.0, backlog=0.0, needed_now=least, load_now=(prefill, decode),
        load_ahead=(prefill, decode), needed=least, grow=least, kept=least, kept_of_both=6, planned_per_s=2.0,
        clear_s=(30.0, 30.0),
    )  # fmt: skip


def worth(state: State, need: tuple[float, float]) -> dict[Layout, float]:
    """What each other split of 3P3D is worth beyond what a switch must bring."""
    seen = observed(100.0, None, prefill=3, decode=3)
    found = weighed_switches(seen, SIX, wanted(*need), seen.layout, state, range(-4, 5))
    return {layout: round(value, 3) for layout, _, value in found}


@pytest.mark.parametrize(("observed_share", "moves"), [(None, False), (0.97, False), (0.93, True)])
def test_a_spare_worker_moves_where_there_is_least_to_spare_while_clients_get_less_than_they_should(
    observed_share: float | None, moves: bool
) -> None:
    """Real lengths on six GPUs: 3P3D has what both roles need, and one answer in ten is late."""
    found = worth(State(score=Score(observed=observed_share)), (1.4, 2.7))
    assert (found[Layout(2, 4)] > 0) is moves
    assert found[Layout(4, 2)] < 0
    assert max(found.values()) == found[Layout(2, 4)]


@pytest.mark.parametrize(("observed_share", "moves"), [(0.97, False), (0.8, True)])
def test_a_switch_that_was_wrong_is_undone_at_once_where_clients_suffer_from_it(
    observed_share: float, moves: bool
) -> None:
    """A decode worker was taken a moment ago; decode lacks a seventh of its need since."""
    state = State(score=Score(observed=observed_share))
    state = replace(state, history=replace(state.history, switches=(SwitchRecord(90.0, Role.PREFILL),)))
    assert (worth(state, (2.0, 3.5))[Layout(2, 4)] > 0) is moves
