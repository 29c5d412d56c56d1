"""Slots of elastic requests: the most that will be held, and who keeps what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.elastic.memory import Holding, NoRoom, kept_by, most_slots

HOLDINGS = st.lists(st.builds(Holding, held=st.integers(0, 50), left=st.integers(0, 50)), max_size=8)


@given(HOLDINGS)
def test_the_bound_is_what_running_all_to_their_ends_takes_at_most(requests: list[Holding]) -> None:
    steps = range(max((each.left for each in requests), default=0) + 1)
    lived = (sum(each.held + step for each in requests if step <= each.left) for step in steps)
    assert most_slots(requests) == max(lived, default=0)


def test_an_example_by_hand() -> None:
    """After 2 steps the first ends, and both hold 10 + 2 and 5 + 2; the other goes on alone to 5 + 9."""
    assert most_slots([Holding(10, 2), Holding(5, 9)]) == 19


@given(
    st.lists(st.integers(1, 60), max_size=5), st.lists(st.integers(0, 80), min_size=1, max_size=5), st.integers(0, 20)
)
def test_every_token_is_kept_once_where_there_is_room_by_as_few_as_can(
    prompts: list[int], free_slots: list[int], room: int
) -> None:
    needed = sum(prompts) + room
    if needed > sum(free_slots):
        with pytest.raises(NoRoom, match="do not fit"):
            kept_by(prompts, free_slots, room)
        return
    kept = kept_by(prompts, free_slots, room)
    assert [sum(count for _, count in owners) for owners in kept] == prompts
    taken = dict.fromkeys(range(len(free_slots)), 0)
    for owners in kept:
        for instance, count in owners:
            assert count > 0
            taken[instance] += count
    assert all(taken[instance] <= free_slots[instance] for instance in taken)
    used = sum(count > 0 for count in taken.values())
    most = sorted(free_slots, reverse=True)
    assert used == 0 or sum(most[: used - 1]) < needed, "one instance less would not have been enough"
