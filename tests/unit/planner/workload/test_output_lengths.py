"""Outputs follow the prompts that arrive, not those whose answers still end."""

import heapq
import operator
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Load
from pointsman.planner.core.workload.output_lengths import LEAST_ANSWERS, Answers, OutputLengths, Prompts
from pointsman.planner.core.workload.request_lengths import Lengths

TICK_S = 2.5
LONG, SHORT = 4096.0, 256.0  # prompts
ANSWERS = {LONG: 100.0, SHORT: 500.0}  # the usual answers to them


def known(count: float = 200.0) -> OutputLengths:
    return OutputLengths(tuple((round(prompt), count, tokens) for prompt, tokens in sorted(ANSWERS.items())))


def as_to(prompts: Prompts, *ended: Answers, of: OutputLengths | None = None) -> list[float]:
    """What the answers would have been, each beside as many requests."""
    _, tokens = (of or known()).as_to(prompts, ended)
    return tokens


def expected(prompts: Prompts, *ended: Answers) -> float:
    """The mean that is made of them."""
    weights, tokens = known().as_to(prompts, ended)
    return float(sum(map(operator.mul, weights, tokens)) / sum(weights))


def test_answers_that_end_are_taken_as_if_they_had_been_to_the_prompts_that_arrive() -> None:
    # twice the usual answers to short prompts: twice the usual ones are expected to long prompts
    assert as_to([(LONG, 1.0)], Answers(20, 1000, [(SHORT, 20)])) == [200.0]
    of_both = Answers(3, 500, [(SHORT, 3)]), Answers(2, 300, [(SHORT, 1), (LONG, 1)])
    assert as_to([(LONG, 0.75), (SHORT, 0.25)], *of_both) == [200.0, 200.0]


def test_where_nothing_is_known_of_what_was_answered_it_is_taken_as_it_is() -> None:
    few = known(LEAST_ANSWERS - 1.0)
    assert as_to([(LONG, 1.0)], Answers(20, 1000, [(SHORT, 20)]), of=few) == [1000.0]
    assert as_to([(LONG, 1.0)], Answers(20, 1000, [(64.0, 20)])) == [1000.0]
    assert as_to([(LONG, 1.0)], Answers(20, 1000, [])) == [1000.0]
    empty = OutputLengths(((round(SHORT), 200.0, 0.0), (round(LONG), 200.0, 100.0)))
    assert as_to([(LONG, 1.0)], Answers(20, 7, [(SHORT, 20)]), of=empty) == [7.0], "no multiple of nothing"


def test_twelve_answers_are_enough_to_know_what_is_usual() -> None:
    assert as_to([(LONG, 1.0)], Answers(20, 1000, [(SHORT, 20)]), of=known(12.0)) == [200.0]


def test_windows_weigh_as_many_answers_as_they_have_also_beside_unknown_ones() -> None:
    weights, _ = known().as_to([(LONG, 1.0)], [Answers(99, 100, [(LONG, 10)]), Answers(30, 300, [(64.0, 7)])])
    assert weights == [10, 30], "where nothing is known, as the requests that arrived"


def test_of_prompts_that_nobody_has_seen_the_same_is_expected_as_of_those_that_were_answered() -> None:
    """A tenth of the prompts is known and stays, the others are new ones: the tenth does not stand for all."""
    before = [(LONG, 0.9), (SHORT, 0.1)]
    assert as_to([(64.0, 1.0)], Answers(20, 140, before)) == [140.0]
    each = Answers(1, 100, [(LONG, 1)]), Answers(1, 500, [(SHORT, 1)])
    assert as_to([(64.0, 1.0)], *each) == [100.0, 500.0], "each as it was"
    assert as_to([(64.0, 0.9), (SHORT, 0.1)], Answers(20, 140, before)) == pytest.approx([0.9 * 140 + 0.1 * 500])


def test_one_answer_counts_as_one_however_short_the_usual_ones_are() -> None:
    """Half of the prompts are answered with yes or no. One of these answers has 1000 tokens."""
    found = OutputLengths(((round(SHORT), 200.0, 1.0), (round(LONG), 200.0, 500.0)))
    usual = [Answers(1, 500, [(LONG, 1)]), Answers(1, 1, [(SHORT, 1)])] * 50
    weights, tokens = found.as_to([(SHORT, 0.5), (LONG, 0.5)], [*usual, Answers(1, 1000, [(SHORT, 1)])])
    assert sum(map(operator.mul, weights, tokens)) / sum(weights) == pytest.approx(250.5 * (250.5 * 100 + 1000) / 25051)


def test_answers_count_and_not_the_requests_that_arrived_meanwhile() -> None:
    prompts = [(LONG, 0.5), (SHORT, 0.5)]
    many = [Answers(25, 300, [(LONG, 12), (SHORT, 12)])] * 8
    assert expected(prompts, *many, Answers(25, 1500, [(SHORT, 1)])) == pytest.approx(
        300 * (8 * 24 * 300 + 1500) / (8 * 24 * 300 + 500)
    )


def test_the_look_that_sees_new_prompts_learns_nothing_of_their_answers_nor_do_those_of_the_next_minute() -> None:
    lengths, seen_s = Lengths(), 30 * 30.0
    for tick in range(40):
        prompt = LONG if tick * 30 < seen_s else SHORT
        answers = ((prompt, 100.0, 100 * ANSWERS[prompt]),)
        load = Load(4.0, prompt, output_tokens=ANSWERS[prompt], prompt_length_shares=((prompt, 1.0),), answers=answers)
        lengths = lengths.observe(load, 30.0, tick * 30.0)
        known = {bucket for bucket, _, _ in lengths.outputs.usual}
        since_s = tick * 30 - (lengths.changed_s or lengths.first_s or 0.0)
        assert (round(SHORT) in known) == (tick * 30 > seen_s and since_s > 60), tick
        assert (round(LONG) in known) == (tick * 30 > 60), "as at the first look"


def test_the_mean_is_that_of_the_tokens_where_the_prompts_stay() -> None:
    answers = [Answers(10, 200, [(LONG, 9), (SHORT, 1)]), Answers(30, 100, [(LONG, 27), (SHORT, 3)])]
    assert expected([(LONG, 0.9), (SHORT, 0.1)], *answers) == pytest.approx(125)


def test_a_usual_answer_is_the_mean_of_the_last_ones() -> None:
    found = (
        OutputLengths()
        .observe([(LONG, 4.0, 400.0)], ANSWERS)
        .observe([(LONG, 12.0, 2400.0), (SHORT, 1.0, 7.0)], ANSWERS)
    )
    assert found.usual == ((SHORT, 1.0, 7.0), (LONG, 16.0, 175.0))
    for _ in range(200):
        found = found.observe([(LONG, 50.0, 50 * 300.0)], ())
    _, (_, count, mean) = found.usual
    assert mean == pytest.approx(300.0)
    assert count == SHIPPED.memory_requests + 50


def test_answers_to_prompts_that_came_only_once_are_not_usual_ones() -> None:
    """A minute after them only the long ones are left of them."""
    assert OutputLengths().observe([(LONG, 20.0, 90_000.0)], {SHORT}).usual == ()
    assert known().observe([(LONG, 200.0, 200 * 300.0)], {SHORT}).usual[-1] == (round(LONG), 400.0, 200.0)


def test_long_answers_among_many_short_ones_are_no_change() -> None:
    """A tenth are chats of 400 tokens, the others are answered with yes or no: one request a second."""
    draw, lengths = random.Random(5), Lengths()
    for tick in range(400):
        requests = [(LONG, draw.expovariate(1 / 400)) if draw.random() < 0.1 else (64.0, 1.0) for _ in range(3)]
        by_prompt = {prompt: [tokens for of, tokens in requests if of == prompt] for prompt, _ in requests}
        load = Load(
            3 / TICK_S, sum(prompt for prompt, _ in requests) / 3,
            output_tokens=sum(tokens for _, tokens in requests) / 3,
            prompt_length_shares=tuple((prompt, len(each) / 3) for prompt, each in sorted(by_prompt.items())),
            answers=tuple((prompt, float(len(each)), sum(each)) for prompt, each in sorted(by_prompt.items())),
        )  # fmt: skip
        lengths = lengths.observe(load, TICK_S, TICK_S * tick)
        if tick > 60:
            assert lengths.output_tokens is not None
            assert 0.4 * 41 < lengths.output_tokens < 2.2 * 41, tick


def test_the_first_windows_of_new_prompts_do_not_stand_for_all_that_follow() -> None:
    lengths = Lengths()
    for tick in range(100):
        lengths = lengths.observe(
            Load(4.0, LONG, prompt_length_shares=((LONG, 1.0),), output_tokens=1.0), 2.5, 2.5 * tick
        )
    for tick in range(100, 112):  # of the first four windows, which show the change, by chance
        seen = ((64.0, 1.0),) if tick < 104 else ((64.0, 0.6), (SHORT, 0.4))
        load = Load(10.0, 140.0, prompt_length_shares=seen, output_tokens=1.0)
        lengths = lengths.observe(load, 2.5, 2.5 * tick)
    assert dict(lengths.shares)[SHORT] > 0.25


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
    assert found[2 * turn] == pytest.approx(0.9 * 100 + 0.1 * 500, rel=0.01)
    assert found[2 * turn + 2] == pytest.approx(100, rel=0.15)
    assert found[3 * turn] == pytest.approx(0.9 * 500 + 0.1 * 100, rel=0.01)
    assert found[3 * turn + 2] == pytest.approx(500, rel=0.05)


@pytest.mark.parametrize(("before", "after"), [(500.0, 500.0), (500.0, 250.0)])
def test_the_first_answers_to_prompts_that_nobody_has_seen_are_the_short_ones_and_say_little(
    before: float, after: float
) -> None:
    """Answers as uneven as exponential times, at 10 requests/s and 30 ms a token: to prompts of LONG tokens, and from
    500 s on of SHORT ones. Nothing below two thirds of the truth is believed for the next minutes."""
    draw, lengths = random.Random(3), Lengths()
    decoding: list[tuple[float, float, int]] = []  # (when it ends, its prompt, its tokens)
    for tick in range(300):
        prompt, mean = (LONG, before) if tick < 200 else (SHORT, after)
        now_s = TICK_S * (tick + 1)
        for _ in range(25):
            tokens = max(1, round(draw.expovariate(1 / mean)))
            heapq.heappush(decoding, (now_s - draw.random() * TICK_S + 0.03 * tokens, prompt, tokens))
        ended: dict[float, list[int]] = {}
        while decoding[0][0] <= now_s:
            _, of_prompt, tokens = heapq.heappop(decoding)
            ended.setdefault(of_prompt, []).append(tokens)
        every = [tokens for each in ended.values() for tokens in each]
        load = Load(
            10.0, prompt, output_tokens=sum(every) / len(every) if every else None,
            prompt_length_shares=((prompt, 1.0),),
            answers=tuple((of_prompt, float(len(each)), float(sum(each))) for of_prompt, each in sorted(ended.items())),
        )  # fmt: skip
        lengths = lengths.observe(load, TICK_S, now_s)
        if tick >= 200:
            assert lengths.output_tokens is not None
            assert lengths.output_tokens > 2 / 3 * after
    assert lengths.output_tokens == pytest.approx(after, rel=0.15)


def test_the_same_prompts_with_longer_answers_are_longer_answers() -> None:
    lengths = Lengths()
    for tick in range(60):
        tokens = 100.0 if tick < 40 else 400.0
        load = Load(
            10.0, LONG, output_tokens=tokens, prompt_length_shares=((LONG, 1.0),), answers=((LONG, 25.0, 25 * tokens),)
        )
        lengths = lengths.observe(load, TICK_S, TICK_S * tick)
        assert lengths.output_tokens == pytest.approx(tokens)


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
