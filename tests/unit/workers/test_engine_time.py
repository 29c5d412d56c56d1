"""What prefills take of an engine's time: in all what the engine was busy, alone what each took."""

from collections.abc import Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.workers.core.engine_time import EngineTime

SPANS = st.lists(
    st.tuples(st.floats(0, 50), st.floats(0.01, 5)).map(lambda begun_took: (begun_took[0], sum(begun_took))),
    min_size=1,
    max_size=40,
)


def counted(spans: list[tuple[float, float]], given_up: Set[int] = frozenset()) -> list[float]:
    """What each prefill counts, in the order of their ends; a span is (begin, end), ``given_up`` by their numbers."""
    engine = EngineTime()
    events = sorted(
        [(begin, 0, number) for number, (begin, _) in enumerate(spans)]
        + [(end, 1, number) for number, (_, end) in enumerate(spans)]
    )
    found, begun = [], {}
    for at_s, ends, number in events:
        if not ends:
            begun[number] = engine.begun(at_s)
        elif number in given_up:
            engine.given_up(begun[number])
        else:
            found.append(engine.ended(begun[number], at_s))
    return found


def union_s(spans: list[tuple[float, float]]) -> float:
    """How long at least one of them lasted."""
    busy_s, until_s = 0.0, float("-inf")
    for begin, end in sorted(spans):
        busy_s += max(0.0, end - max(begin, until_s))
        until_s = max(until_s, end)
    return busy_s


def test_prefills_one_after_the_other_count_as_they_took() -> None:
    assert counted([(0.5, 1.0), (1.0, 1.5), (3.5, 4.0)]) == [0.5, 0.5, 0.5]


def test_prompts_of_one_pass_share_its_time() -> None:
    assert sum(counted([(1.0, 3.0)] * 3)) == pytest.approx(2.0)


def test_one_that_waited_for_the_pass_before_it_counts_from_its_end() -> None:
    assert counted([(1.0, 2.0), (1.1, 3.0)]) == pytest.approx([1.0, 1.0])


def test_one_that_was_given_up_counts_only_where_others_were_computed_beside_it() -> None:
    assert counted([(0.0, 4.0), (5.0, 7.0), (5.5, 6.0)], given_up={0, 2}) == [2.0], "not the five seconds before it"
    assert counted([(0.0, 5.0), (4.5, 6.0)], given_up={0}) == [1.5], "nor those in which it had the engine alone"


@given(SPANS)
def test_in_all_it_is_the_time_in_which_anything_was_computed(spans: list[tuple[float, float]]) -> None:
    assert sum(counted(spans)) == pytest.approx(union_s(spans))


@given(SPANS, st.sets(st.integers(0, 39)))
def test_those_that_were_given_up_make_it_neither_less_than_the_others_took_nor_more_than_the_engine_was_busy(
    spans: list[tuple[float, float]], given_up: set[int]
) -> None:
    done = [span for number, span in enumerate(spans) if number not in given_up]
    found = sum(counted(spans, given_up))
    assert union_s(done) - 1e-6 <= found <= union_s(spans) + 1e-6
    assert done or found == 0.0
