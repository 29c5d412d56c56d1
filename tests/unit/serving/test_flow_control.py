"""Flow control: who is in time goes, who is late waits for room, and what is idle is always given work."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.flow_control import FlowBounds, InFlight, can_decode, has_room, in_time

BOUNDS = FlowBounds(pending_tokens_per_prefill_worker=8000, decoding_per_decode_worker=20)
_COUNTS = st.integers(0, 50)
_UNDER_WAY = st.builds(InFlight, st.floats(0, 1e6), st.integers(0, 2000), _COUNTS, _COUNTS, _COUNTS)
_BOUNDS = st.builds(
    FlowBounds, st.none() | st.integers(1, 100_000), st.none() | st.integers(1, 500), st.none() | st.integers(1, 60_000)
)


def test_without_bounds_nothing_is_held() -> None:
    assert in_time(InFlight(1e9, 10**6, 1, 1, 9), FlowBounds())
    assert has_room(InFlight(1e9, 10**6, 1, 1, 9), FlowBounds())


def test_bounds_are_per_worker() -> None:
    assert not in_time(InFlight(8001, 5, 1, 2, 3), BOUNDS)
    assert in_time(InFlight(8001, 5, 2, 2, 3), BOUNDS)
    assert not can_decode(InFlight(0, 20, 1, 1, 0), BOUNDS)
    assert can_decode(InFlight(0, 20, 1, 2, 0), BOUNDS)


def test_what_was_waited_for_is_no_more_to_be_waited_for() -> None:
    bounds = replace(BOUNDS, slack_ms=1000)
    assert in_time(InFlight(4000, 5, 1, 1, 3), bounds, queued_ms=499)
    assert not in_time(InFlight(4000, 5, 1, 1, 3), bounds, queued_ms=501)
    assert not in_time(InFlight(0, 0, 1, 1, 0), bounds, queued_ms=1000)
    assert not in_time(InFlight(0, 0, 1, 1, 0), BOUNDS, queued_ms=1)  # how long it may wait is not known


def test_who_was_held_leaves_room_for_those_in_time() -> None:
    between = InFlight(5000, 5, 1, 2, 3)
    assert in_time(between, BOUNDS)
    assert not has_room(between, BOUNDS)
    assert has_room(InFlight(2000, 5, 1, 2, 3), BOUNDS)


def test_without_prefill_workers_those_that_decode_prefill() -> None:
    assert in_time(InFlight(15_000, 5, 0, 2, 3), BOUNDS)
    assert not in_time(InFlight(17_000, 5, 0, 2, 3), BOUNDS)


@given(_UNDER_WAY, _BOUNDS)
def test_whoever_has_room_would_have_been_in_time(in_flight: InFlight, bounds: FlowBounds) -> None:
    assert (in_time(in_flight, bounds) and can_decode(in_flight, bounds)) or not has_room(in_flight, bounds)


@given(_BOUNDS, _COUNTS, st.integers(1, 50))
def test_what_is_idle_is_given_work(bounds: FlowBounds, prefill: int, decode: int) -> None:
    assert has_room(InFlight(0, decode - 1, prefill, decode, 0), bounds)


@given(_COUNTS, st.integers(1, 50), st.integers(50, 100_000), st.data())
def test_a_prefill_worker_without_a_prompt_is_given_one_however_long_those_of_the_others_are(
    prefill: int, decode: int, bound: int, data: st.DataObject
) -> None:
    bounds, able = FlowBounds(pending_tokens_per_prefill_worker=bound), prefill or decode
    prompts = data.draw(st.lists(st.integers(1, 1_000_000), max_size=able - 1))
    pending = sum(bounds.counted(tokens) for tokens in prompts)
    assert has_room(InFlight(pending, 0, prefill, decode, len(prompts)), bounds)
    assert in_time(InFlight(pending, 0, prefill, decode, len(prompts)), bounds)


@given(st.integers(1, 50), st.integers(1, 100_000))
def test_who_finds_every_prefill_worker_busy_for_longer_than_it_may_wait_is_late(workers: int, bound: int) -> None:
    bounds = FlowBounds(pending_tokens_per_prefill_worker=bound)
    pending = sum(bounds.counted(tokens) for tokens in [3 * bound + 1] * workers)
    assert not in_time(InFlight(pending, 0, workers, 1, workers), bounds)


def test_without_a_bound_a_prompt_counts_as_it_is() -> None:
    assert FlowBounds().counted(100_000) == 100_000
    assert BOUNDS.counted(7000) == 7000


@given(_UNDER_WAY, _BOUNDS, st.floats(0, 1e5), st.integers(0, 100))
def test_more_under_way_never_makes_room(in_flight: InFlight, bounds: FlowBounds, tokens: float, requests: int) -> None:
    more = InFlight(
        in_flight.pending_tokens + tokens,
        in_flight.decoding + requests,
        in_flight.prefill_workers,
        in_flight.decode_workers,
        in_flight.pending_prompts + requests,
    )
    assert in_time(in_flight, bounds) or not in_time(more, bounds)
    assert can_decode(in_flight, bounds) or not can_decode(more, bounds)
    assert has_room(in_flight, bounds) or not has_room(more, bounds)


@pytest.mark.parametrize("field", ["pending_tokens_per_prefill_worker", "decoding_per_decode_worker", "slack_ms"])
def test_a_bound_below_one_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 0"):
        FlowBounds(**{field: 0})
