"""Who of the held goes next: those in time in the order they came, then the late, and nobody is lost."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.admission_queue import AdmissionQueue
from pointsman.serving.flow_control import FlowBounds, InFlight, can_decode, has_room, in_time

BOUNDS = FlowBounds(1000, 10, slack_ms=5000)
IDLE, DECODES_FULL, PROMPTS_FULL = InFlight(0, 0, 1, 1, 0), InFlight(0, 10, 1, 1, 0), InFlight(1500, 0, 1, 1, 2)
_UNDER_WAY = st.sampled_from(
    [IDLE, DECODES_FULL, PROMPTS_FULL, InFlight(500, 5, 1, 1, 1), InFlight(200, 9, 1, 1, 1), InFlight(900, 3, 2, 2, 1)]
)
_STEPS = st.lists(st.tuples(st.sampled_from(["come", "look", "leave"]), _UNDER_WAY, st.floats(0, 3)), max_size=60)


def test_who_waits_for_room_to_decode_goes_before_newcomers_while_in_time() -> None:
    line: AdmissionQueue[str] = AdmissionQueue()
    assert not line.passes(DECODES_FULL, BOUNDS)
    line.join("first", 0.0, DECODES_FULL, BOUNDS)
    assert not line.passes(IDLE, BOUNDS)
    line.join("second", 1.0, IDLE, BOUNDS)
    assert line.next(2.0, IDLE, BOUNDS) == "first"
    assert line.next(2.0, IDLE, BOUNDS) == "second"
    assert line.passes(IDLE, BOUNDS)


def test_who_is_late_lets_pass_and_goes_when_nobody_in_time_waits() -> None:
    line: AdmissionQueue[str] = AdmissionQueue()
    line.join("late", 0.0, PROMPTS_FULL, BOUNDS)
    assert line.passes(IDLE, BOUNDS)
    line.join("waits", 0.0, DECODES_FULL, BOUNDS)
    assert line.next(4.9, DECODES_FULL, BOUNDS) is None
    assert line.next(4.9, IDLE, BOUNDS) == "waits"
    line.join("too long", 5.0, DECODES_FULL, BOUNDS)
    assert line.next(10.0, IDLE, BOUNDS) == "late"
    assert line.next(10.0, IDLE, BOUNDS) == "too long"
    assert len(line) == 0


@given(_STEPS)
def test_everybody_goes_once_or_leaves_and_rules_are_kept(steps: list[tuple[str, InFlight, float]]) -> None:
    line: AdmissionQueue[int] = AdmissionQueue()
    now_s, came_s, out = 0.0, dict[int, float](), list[int]()
    for step, in_flight, seconds in steps:
        now_s += seconds
        if step == "come" and not line.passes(in_flight, BOUNDS):
            came_s[len(came_s)] = now_s
            line.join(len(came_s) - 1, now_s, in_flight, BOUNDS)
        elif step == "look":
            gone = line.next(now_s, in_flight, BOUNDS)
            if gone is not None:
                queued_ms = (now_s - came_s[gone]) * 1000
                assert (in_time(in_flight, BOUNDS, queued_ms) and can_decode(in_flight, BOUNDS)) or has_room(
                    in_flight, BOUNDS
                )
                out.append(gone)
            else:
                assert not len(line) or not has_room(in_flight, BOUNDS), "idle, and others are held"
        elif step == "leave" and came_s:
            number = int(seconds * 10) % len(came_s)
            if number not in out:
                line.leave(number)
                out.append(number)
        assert len(line) + len(out) == len(came_s)
        left = [number for number in came_s if number not in out]
        assert line.came_by(now_s) == left
        assert line.oldest_s == (came_s[left[0]] if left else None)
    while (gone := line.next(now_s + 100, IDLE, BOUNDS)) is not None:
        out.append(gone)
    assert sorted(out) == sorted(came_s)
