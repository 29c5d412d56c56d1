"""The line of held requests: its length and its end. Its order: tests/unit/serving/test_admission_queue.py."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.admission_queue import BoundedAdmissionQueue
from pointsman.serving.flow_control import FlowBounds, InFlight

IDLE, FULL = InFlight(0, 0, 1, 1, 0), InFlight(1000, 0, 1, 1, 1)
BOUNDS = FlowBounds(100)  # what finds FULL is late
_STEPS = st.lists(st.tuples(st.sampled_from(["join", "leave", "release", "wait"]), st.integers(0, 20)), max_size=60)


def line(most: int = 100, hold_seconds: float = 600.0) -> BoundedAdmissionQueue[int]:
    return BoundedAdmissionQueue(most=most, hold_seconds=hold_seconds)


def send_all(held: BoundedAdmissionQueue[int], room: int) -> list[int]:
    sent: list[int] = []
    held.release(0.0, lambda: IDLE if len(sent) < room else FULL, BOUNDS, sent.append)
    return sent


@given(_STEPS)
def test_it_is_a_queue_from_which_anybody_may_leave(steps: list[tuple[str, int]]) -> None:
    held, expected = line(most=8, hold_seconds=10.0), dict[int, float]()
    now_s, newest = 0.0, 0
    for step, number in steps:
        if step == "join":
            newest += 1
            assert held.join(newest, now_s, FULL, BOUNDS) is (len(expected) < 8)
            if len(expected) < 8:
                expected[newest] = now_s
        elif step == "leave":
            held.leave(number)
            expected.pop(number, None)
        elif step == "release":
            first = list(expected)[:number]
            assert send_all(held, number) == first
            expected = {item: at for item, at in expected.items() if item not in first}
        else:
            now_s += number
            late = [item for item, at in expected.items() if now_s - at >= 10]
            assert held.overdue(now_s) == late
            expected = {item: at for item, at in expected.items() if item not in late}
        assert len(held) == len(expected)
        assert held.next_due_s == (min(expected.values()) + 10 if expected else None)
    assert held.empty() == list(expected)
    assert not len(held)


def test_each_release_is_judged_with_the_one_before_it() -> None:
    held, pending = line(), [0]
    for item in range(10):
        held.join(item, 0.0, FULL, BOUNDS)

    def send(item: int) -> None:
        pending[0] += 5 * (item + 1)

    held.release(0.0, lambda: InFlight(pending[0], 0, 1, 1, 10 - len(held)), BOUNDS, send)
    assert (pending[0], len(held)) == (50, 6)  # 5, 10, 15 and 20: the first beyond thirty ended it


def test_the_end_is_due_for_everybody_and_nobody_joins_after_it() -> None:
    held = line()
    held.join(1, 0.0, FULL, BOUNDS)
    held.join(2, 20.0, FULL, BOUNDS)
    held.end_by(30.0)
    assert held.next_due_s == 30
    assert held.join(3, 29.9, FULL, BOUNDS)
    assert held.overdue(29.9) == []
    assert held.overdue(30.0) == [1, 2, 3]
    assert not held.join(4, 30.0, FULL, BOUNDS)
