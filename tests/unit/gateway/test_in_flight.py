"""What is in flight is counted, never drifts, and never shuts out the only request."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.in_flight import InFlightBound, Place


def test_there_are_so_many_places_and_one_that_is_left_is_free() -> None:
    bound = InFlightBound(2, 100)
    first, second = bound.enter(), bound.enter()
    assert first is not None
    assert second is not None
    assert bound.enter() is None
    first.leave()
    first.leave()
    assert bound.requests == 1
    assert bound.enter() is not None


def test_a_request_that_is_alone_has_room_whatever_its_size() -> None:
    bound = InFlightBound(2, 100)
    first, second = bound.enter(), bound.enter()
    assert first is not None
    assert second is not None
    assert first.take(1000)
    assert first.take(2000)
    assert not second.take(1)
    first.leave()
    assert second.take(1)


def test_asking_for_room_takes_none() -> None:
    bound = InFlightBound(2, 100)
    first, second = bound.enter(), bound.enter()
    assert first is not None
    assert second is not None
    assert first.take(60)
    assert second.has_room_for(40)
    assert not second.has_room_for(41)
    assert first.has_room_for(1000)
    assert bound.bytes == 60


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=60))
def test_counts_never_drift(steps: list[tuple[int, int]]) -> None:
    bound = InFlightBound(4, 100)
    places: dict[int, Place] = {}
    for number, total in steps:
        place = places.get(number)
        if place is None:
            place = bound.enter()
            assert (place is None) == (len(places) >= 4)
            if place is not None:
                places[number] = place
        elif not place.take(total) or total % 7 == 0:
            places.pop(number).leave()
        assert bound.requests == len(places)
        assert bound.bytes <= 100
    for place in places.values():
        place.leave()
    assert (bound.requests, bound.bytes) == (0, 0)
