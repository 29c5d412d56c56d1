"""The line of held requests: its order, its length, its end."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.held import HeldLine

_STEPS = st.lists(st.tuples(st.sampled_from(["join", "leave", "release", "wait"]), st.integers(0, 20)), max_size=60)


def line(most: int = 100, hold_seconds: float = 600.0) -> HeldLine[int]:
    return HeldLine(most=most, hold_seconds=hold_seconds)


def send_all(held: HeldLine[int], room: int) -> list[int]:
    sent: list[int] = []
    held.release(lambda: len(sent) < room, sent.append)
    return sent


@given(_STEPS)
def test_it_is_a_queue_from_which_anybody_may_leave(steps: list[tuple[str, int]]) -> None:
    held, expected = line(most=8, hold_seconds=10.0), dict[int, float]()
    now_s, newest = 0.0, 0
    for step, number in steps:
        if step == "join":
            newest += 1
            assert held.join(newest, now_s) is (len(expected) < 8)
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
    held, under_way = line(), [0]
    for item in range(10):
        held.join(item, 0.0)

    def send(item: int) -> None:
        under_way[0] += item + 1

    held.release(lambda: under_way[0] < 6, send)
    assert (under_way[0], len(held)) == (6, 7)  # 1, 2 and 3


def test_the_end_is_due_for_everybody_and_nobody_joins_after_it() -> None:
    held = line()
    held.join(1, 0.0)
    held.join(2, 20.0)
    held.end_by(30.0)
    assert held.next_due_s == 30
    assert held.join(3, 29.9)
    assert held.overdue(29.9) == []
    assert held.overdue(30.0) == [1, 2, 3]
    assert not held.join(4, 30.0)
