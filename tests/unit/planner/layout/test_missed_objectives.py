"""A layout that clients get too little of is not kept for what the model says of it."""

from dataclasses import replace

import pytest

from pointsman.planner.core.layout.role_switches import kept_by, missed_by_clients
from pointsman.planner.core.prediction_score import Score
from pointsman.planner.core.sizing.operating_point import Unreachable
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Service
from unit.planner.operating_points import point
from unit.planner.scenes import LONG, POLICY, observed

GOAL = POLICY.objectives.attainment
LATE = State(score=Score(observed=GOAL - 0.05))


def test_what_clients_get_is_taken_for_the_present_split_alone() -> None:
    seen = observed(0, LONG)
    assert missed_by_clients(LATE, seen, POLICY, point()) == GOAL - 0.05
    estimated, bounded = (kept_by(point(), seen, 5.0, 1.0, each) for each in (None, GOAL - 0.05))
    assert (estimated(0), bounded(0)) == (pytest.approx(1.0, abs=0.01), GOAL - 0.05)
    assert all(estimated(moved) == bounded(moved) for moved in (-1, 1, 2, 9))


def test_nothing_is_missed_without_a_request_that_ended_lately_or_by_requests_that_no_layout_serves() -> None:
    idle = observed(0, LONG, service=Service(prefill_queue_depth=0.0))
    assert missed_by_clients(LATE, idle, POLICY, point()) is None
    assert missed_by_clients(State(), observed(0, LONG), POLICY, point()) is None
    assert missed_by_clients(State(score=Score(observed=GOAL)), observed(0, LONG), POLICY, point()) is None
    hopeless = replace(point(), unreachable=Unreachable(ttft_share=0.08))
    assert missed_by_clients(LATE, observed(0, LONG), POLICY, hopeless) is None
