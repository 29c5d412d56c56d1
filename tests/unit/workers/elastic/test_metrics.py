"""What the manager of an elastic group counts of what its instances say."""

import pytest
from prometheus_client import CollectorRegistry

from pointsman.serving.elastic.iterations import Move, Prompt, Step
from pointsman.serving.elastic.requests import Iteration
from pointsman.workers.elastic.manager.metrics import ManagerMetrics

PROMPTS = (Prompt("r", (1, 2), ((0, 2),)),)
STEPS = (Step("r", 1, 2, 0, (0,)),)
MOVES = (Move("r", 0, 1, 2),)


@pytest.mark.parametrize(
    ("iteration", "reason"),
    [
        (Iteration(1, ("a", "b"), prompts=PROMPTS), "scale_down"),
        (Iteration(1, ("a", "b"), steps=STEPS), "scale_up"),
        (Iteration(1, ("a", "b"), moves=MOVES, why_moved="vacate"), "vacate"),
        (Iteration(1, ("a", "b"), moves=MOVES, why_moved="drain"), "drain"),
    ],
)
def test_bytes_that_a_member_moved_are_counted_under_the_reason_of_the_iteration(
    iteration: Iteration, reason: str
) -> None:
    metrics = ManagerMetrics(CollectorRegistry())
    nothing = dict.fromkeys(("scale_down", "scale_up", "vacate", "drain"), 0)
    assert metrics.totals().moved_bytes == nothing
    for moved_bytes in (0, 64, 36):
        metrics.moved(iteration, moved_bytes)
    assert metrics.totals().moved_bytes == nothing | {reason: 100}


def test_moves_that_only_measure_are_not_counted() -> None:
    metrics = ManagerMetrics(CollectorRegistry())
    metrics.moved(Iteration(1, ("a", "b"), moves=MOVES), 64)
    assert set(metrics.totals().moved_bytes.values()) == {0}
