"""The future-memory bound: the peak, and which steps keep every request able to end."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.elastic.memory import MemoryBound, SlotDemand, choose_safe_steps, is_safe, peak_slots

DEMANDS = st.lists(st.builds(SlotDemand, tokens=st.integers(0, 50), future_tokens=st.integers(0, 50)), max_size=8)
FEW = st.lists(st.builds(SlotDemand, tokens=st.integers(0, 9), future_tokens=st.integers(0, 9)), max_size=5)


@given(DEMANDS)
def test_the_peak_is_what_running_all_to_their_ends_takes(requests: list[SlotDemand]) -> None:
    steps = range(max((each.future_tokens for each in requests), default=0) + 1)
    occupied = (sum(each.tokens + step for each in requests if step <= each.future_tokens) for step in steps)
    assert peak_slots(requests) == max(occupied, default=0)


def test_an_example_by_hand() -> None:
    """After 2 steps the first ends, and both have 10 + 2 and 5 + 2; the other goes on alone to 5 + 9."""
    assert peak_slots([SlotDemand(10, 2), SlotDemand(5, 9)]) == 19


@given(FEW, FEW, st.integers(0, 60))
def test_the_bound_over_many_candidates_is_the_peak(
    running: list[SlotDemand], candidates: list[SlotDemand], slots: int
) -> None:
    bound, admitted = MemoryBound(running, slots), list(running)
    for candidate in candidates:
        fits = peak_slots([*admitted, candidate]) <= slots
        assert bound.copy().fits(candidate) == bound.fits(candidate) == fits
        if fits:
            bound.add(candidate)
            admitted.append(candidate)


@given(FEW, st.integers(0, 60))
def test_a_state_is_safe_if_some_order_ends_all(requests: list[SlotDemand], slots: int) -> None:
    def ends(order: tuple[SlotDemand, ...]) -> bool:
        free = slots - sum(each.tokens for each in order)
        for each in order:
            if free < each.future_tokens:
                return False
            free += each.tokens
        return True

    expected = sum(each.tokens for each in requests) <= slots and any(ends(each) for each in permutations(requests))
    assert is_safe(requests, slots) == expected
    if peak_slots(requests) <= slots:
        assert expected


@given(FEW, FEW, st.integers(0, 60), st.data())
def test_safe_steps_and_every_part_of_them_stay_safe(
    candidates: list[SlotDemand], others: list[SlotDemand], slots: int, data: st.DataObject
) -> None:
    candidates = [each for each in candidates if each.future_tokens]
    steps = choose_safe_steps(candidates, others, slots)
    if not is_safe([*candidates, *others], slots):
        assert steps == set(range(len(candidates)))
        return
    part = data.draw(st.sets(st.sampled_from(sorted(steps)))) if steps else set()
    after = [
        SlotDemand(each.tokens + (index in part), each.future_tokens - (index in part))
        for index, each in enumerate(candidates)
    ]
    assert is_safe([*after, *others], slots)
    if candidates and not others:
        assert steps, "in a safe state a request can always step"


@pytest.mark.parametrize(("tokens", "may_step"), [(5, True), (7, False)])
def test_a_request_waits_if_its_step_would_lock_a_paused_one(tokens: int, may_step: bool) -> None:
    """By hand, 19 slots: the paused one has 10 and needs 2 more. With 5 + 1 there are 3 left; with 7 + 1 only 1."""
    steps = choose_safe_steps([SlotDemand(tokens, 14 - tokens)], [SlotDemand(10, 2)], 19)
    assert (0 in steps) == may_step
