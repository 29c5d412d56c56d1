"""What prefills take of an engine's time: in all what the engine was busy, alone what each took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.workers.core.engine_time import EngineTime


def counted(spans: list[tuple[float, float]]) -> list[float]:
    """What each prefill counts, in the order of their ends; a span is (begin, end)."""
    engine = EngineTime()
    events = sorted([(begin, 0) for begin, _ in spans] + [(end, 1) for _, end in spans])
    found = []
    for at_s, ends in events:
        if ends:
            found.append(engine.ended(at_s))
        else:
            engine.begun(at_s)
    return found


def test_prefills_one_after_the_other_count_as_they_took() -> None:
    assert counted([(0.5, 1.0), (1.0, 1.5), (3.5, 4.0)]) == [0.5, 0.5, 0.5]


def test_prompts_of_one_pass_share_its_time() -> None:
    assert sum(counted([(1.0, 3.0)] * 3)) == pytest.approx(2.0)


def test_one_that_waited_for_the_pass_before_it_counts_from_its_end() -> None:
    assert counted([(1.0, 2.0), (1.1, 3.0)]) == pytest.approx([1.0, 1.0])


def test_one_that_was_given_up_counts_only_where_others_were_computed_beside_it() -> None:
    engine = EngineTime()
    engine.begun(0.0)
    engine.given_up()
    engine.begun(5.0)
    engine.begun(5.5)
    engine.given_up()
    assert engine.ended(7.0) == 2.0, "not the five seconds before it"


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 5)), min_size=1, max_size=40))
def test_in_all_it_is_the_time_in_which_anything_was_computed(spans: list[tuple[float, float]]) -> None:
    spans = [(begin, begin + took) for begin, took in spans]
    busy_s, until_s = 0.0, float("-inf")
    for begin, end in sorted(spans):
        busy_s += max(0.0, end - max(begin, until_s))
        until_s = max(until_s, end)
    assert sum(counted(spans)) == pytest.approx(busy_s)
