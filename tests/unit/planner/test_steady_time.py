"""The planner's time goes on whatever becomes of the wall clock."""

from datetime import timedelta

from pointsman.planner.steady_time import SteadyTime
from unit.planner.hands import BEGIN, Hands


def test_it_is_the_wall_clock_until_that_is_set() -> None:
    hands = Hands()
    steady = SteadyTime(hands)
    assert steady.now_s() == BEGIN.timestamp()
    hands.go(10)
    assert steady.now_s() == BEGIN.timestamp() + 10


def test_a_wall_clock_that_is_set_changes_nothing() -> None:
    for jump in (timedelta(hours=-1), timedelta(days=400)):
        hands = Hands()
        steady = SteadyTime(hands)
        hands.wall += jump
        hands.go(2.5)
        assert steady.now_s() == BEGIN.timestamp() + 2.5


def test_after_a_restart_it_goes_on_from_a_memory_of_the_future() -> None:
    hands = Hands()
    steady = SteadyTime(hands)
    later_s = BEGIN.timestamp() + 3600
    steady.not_before(later_s)
    hands.go(1)
    assert steady.now_s() == later_s + 1
    steady.not_before(later_s - 100)
    assert steady.now_s() == later_s + 1, "an older memory does not turn it back"
