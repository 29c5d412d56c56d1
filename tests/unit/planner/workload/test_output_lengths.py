"""Outputs follow the prompts that arrive, not those whose answers still end."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Load
from pointsman.planner.core.workload.output_lengths import LEAST_ANSWERS, OutputLengths
from pointsman.planner.core.workload.request_lengths import Lengths

TICK_S = 2.5
LONG, SHORT = 4096.0, 256.0  # prompts
ANSWERS = {LONG: 100.0, SHORT: 500.0}  # the usual answers to them


def known(count: float = 200.0) -> OutputLengths:
    return OutputLengths(tuple((prompt, count, tokens) for prompt, tokens in sorted(ANSWERS.items())))


def test_answers_that_end_are_taken_as_if_they_had_been_to_the_prompts_that_arrive() -> None:
    # twice the usual answers to short prompts: twice the usual ones are expected to long prompts
    assert known().as_to([(LONG, 1.0)], [(1000.0, [(SHORT, 20.0)])]) == [200.0]
    of_both = known().as_to(
        [(LONG, 0.75), (SHORT, 0.25)], [(500.0, [(SHORT, 3.0)]), (300.0, [(SHORT, 1.0), (LONG, 1.0)])]
    )
    assert of_both == [200.0, 200.0]


def test_what_is_not_known_of_a_bucket_changes_nothing() -> None:
    few = known(LEAST_ANSWERS - 1.0)
    assert few.as_to([(LONG, 1.0)], [(1000.0, [(SHORT, 20.0)])]) == [1000.0]
    assert known().as_to([(64.0, 1.0)], [(1000.0, [(SHORT, 20.0)])]) == [1000.0]
    assert known().as_to([(LONG, 1.0)], [(1000.0, [(64.0, 20.0)])]) == [1000.0]
    assert known().as_to([(LONG, 1.0)], [(1000.0, [])]) == [1000.0]
    half_known = known().as_to([(LONG, 0.5), (64.0, 0.5)], [(1000.0, [(SHORT, 20.0)])])
    assert half_known == [200.0], "the part that is known stands for the rest"


def test_a_usual_answer_is_the_mean_of_the_last_ones() -> None:
    found = OutputLengths().observe([(LONG, 4.0, 400.0)]).observe([(LONG, 12.0, 2400.0), (SHORT, 1.0, 7.0)])
    assert found.usual == ((SHORT, 1.0, 7.0), (LONG, 16.0, 175.0))
    for _ in range(200):
        found = found.observe([(LONG, 50.0, 50 * 300.0)])
    _, (_, count, mean) = found.usual
    assert mean == pytest.approx(300.0)
    assert count == SHIPPED.memory_requests + 50


def lengths_of(mix: list[float], *, requests: int = 25, late: int = 4) -> list[float | None]:
    """Outputs after each window, in which ``requests`` prompts of that length arrive; their answers end ``late``
    windows later."""
    lengths, found = Lengths(), []
    for tick, prompt in enumerate(mix):
        ended = mix[tick - late] if tick >= late else None
        load = Load(
            requests / TICK_S, prompt, output_tokens=None if ended is None else ANSWERS[ended],
            prompt_length_shares=((prompt, 1.0),),
            answers=() if ended is None else ((ended, float(requests), requests * ANSWERS[ended]),),
        )  # fmt: skip
        lengths = lengths.observe(load, TICK_S, TICK_S * tick)
        found.append(lengths.output_tokens)
    return found


def test_when_a_mix_comes_back_its_answers_are_known_with_its_first_prompts() -> None:
    """The answers to the prompts of before still end for four windows."""
    turn = 40
    found = lengths_of([LONG] * turn + [SHORT] * turn + [LONG] * turn + [SHORT] * turn)
    assert found[turn - 1] == 100
    assert found[turn] == 100, "nobody has answered such prompts before"
    assert found[2 * turn - 1] == pytest.approx(500, rel=0.01)
    # the shares of lengths forget the prompts of before within some windows
    assert found[2 * turn] == pytest.approx(0.7 * 100 + 0.3 * 500, rel=0.01)
    assert found[2 * turn + 2] == pytest.approx(100, rel=0.15)
    assert found[3 * turn] == pytest.approx(0.7 * 500 + 0.3 * 100, rel=0.01)
    assert found[3 * turn + 2] == pytest.approx(500, rel=0.05)


def test_the_same_prompts_with_longer_answers_are_longer_answers() -> None:
    lengths = Lengths()
    for tick in range(60):
        tokens = 100.0 if tick < 40 else 400.0
        load = Load(
            10.0, LONG, output_tokens=tokens, prompt_length_shares=((LONG, 1.0),), answers=((LONG, 25.0, 25 * tokens),)
        )
        lengths = lengths.observe(load, TICK_S, TICK_S * tick)
        assert lengths.output_tokens == tokens


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 40), st.floats(1, 3000)), min_size=3, max_size=3), min_size=1, max_size=60
    )
)
def test_of_prompts_whose_shares_stay_the_buckets_change_nothing(windows: list[list[tuple[int, float]]]) -> None:
    """Whatever the answers are, where each window has the same prompts."""
    plain, by_bucket = Lengths(), Lengths()
    shares = ((64.0, 0.2), (SHORT, 0.3), (LONG, 0.5))
    for tick, window in enumerate(windows):
        tokens = sum(mean for _, mean in window) / 3
        answers = tuple((prompt, 100 * share, 100 * share * tokens) for prompt, share in shares)
        load = Load(40.0, 2000.0, output_tokens=tokens, prompt_length_shares=shares)
        plain = plain.observe(load, TICK_S, TICK_S * tick)
        by_bucket = by_bucket.observe(replace(load, answers=answers), TICK_S, TICK_S * tick)
        assert by_bucket.output_tokens == pytest.approx(plain.output_tokens)
