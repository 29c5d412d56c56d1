"""How long answers are while most of those that were begun have not ended: never so short as those that end first."""

import random
from collections import deque
from collections.abc import Callable

import pytest

from pointsman.planner.core.types import Load
from pointsman.planner.core.workload.request_lengths import Lengths

TICK_S = 2.5
STEP_S = 0.025
PER_WINDOW = 60


def exponential(draw: random.Random) -> int:
    return 1 + int(draw.expovariate(1 / 400))


def served(windows: int, length: Callable[[random.Random], int], seed: int = 1, blind: range = range(0)) -> Lengths:
    """A service that gets its first requests now, sixty a window; 40 tokens a second and sequence."""
    draw = random.Random(seed)
    decoding: deque[tuple[float, int]] = deque()  # (when it ends, its tokens)
    lengths = Lengths()
    for tick in range(1, windows + 1):
        now_s = tick * TICK_S
        for request in range(PER_WINDOW):
            tokens = length(draw)
            decoding.append((now_s - TICK_S * (1 - request / PER_WINDOW) + tokens * STEP_S, tokens))
        ended = [tokens for ends_s, tokens in decoding if ends_s <= now_s]
        decoding = deque(one for one in decoding if one[0] > now_s)
        load = Load(
            arrivals_per_s=PER_WINDOW / TICK_S,
            prompt_tokens=1000.0,
            output_tokens=sum(ended) / len(ended) if ended else None,
            ended_per_s=len(ended) / TICK_S,
            decoding=None if tick in blind else float(len(decoding)),
            step_ms=STEP_S * 1000,
        )
        lengths = lengths.observe(load, TICK_S, now_s)
    return lengths


@pytest.mark.parametrize("seed", range(5))
def test_ten_seconds_after_the_first_request_answers_are_not_as_short_as_those_that_ended(seed: int) -> None:
    lengths = served(4, exponential, seed)
    assert lengths.finished_tokens is not None
    assert lengths.output_tokens is not None
    assert lengths.finished_tokens < 240  # of 400: no answer is older than ten seconds
    assert 270 < lengths.output_tokens <= 400


@pytest.mark.parametrize("seed", range(5))
def test_and_never_much_longer_than_they_are(seed: int) -> None:
    for windows in range(4, 80, 4):
        found = served(windows, exponential, seed).output_tokens
        assert found is not None
        assert found < 1.25 * 400


def test_answers_of_one_length_are_known_soon_after_the_first_of_them_ended() -> None:
    # After 10 s, 15 s and 100 s; each takes 6.25 s.
    assert served(4, lambda _: 250).output_tokens == pytest.approx(250, rel=0.3)
    assert served(6, lambda _: 250).output_tokens == pytest.approx(250, rel=0.1)
    assert served(40, lambda _: 250).output_tokens == pytest.approx(250, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_and_so_are_answers_of_about_one_length(seed: int) -> None:
    """Half a minute after the first request, for answers of 500 tokens, which take 12.5 s, with a quarter more or
    less."""
    found = served(12, lambda draw: round(draw.gammavariate(16, 500 / 16)), seed)
    assert found.output_tokens == pytest.approx(500, rel=0.15)


def test_short_answers_that_all_end_at_first_do_not_stand_for_the_long_ones_that_still_run() -> None:
    """In the first window three of four answers end, of 10 tokens; the fourth is a long one."""
    lengths = Lengths().observe(Load(1.6, 1000.0, 0.0, 10.0, ended_per_s=1.2, decoding=1.0, step_ms=25.0), 2.5, 2.5)
    assert not lengths.first.over
    lengths = served(12, lambda draw: 10 if draw.random() < 0.85 else 1500)
    assert not lengths.first.over
    assert lengths.output_tokens is not None
    assert lengths.output_tokens > 50, "of 234; those that ended have 10"


def test_nobody_is_taken_for_longer_than_what_could_be_decoded_since_the_start() -> None:
    # One of twelve ends in the first window, with one token.
    found = served(2, lambda draw: 1 if draw.random() < 1 / 12 else 10_000)
    assert found.output_tokens is not None
    assert found.output_tokens <= 2 * TICK_S / STEP_S


def test_those_that_ended_say_enough_when_few_of_those_begun_still_run() -> None:
    lengths = served(80, lambda _: 100)
    assert lengths.first.over
    assert lengths.output_tokens == lengths.finished_tokens == 100


def test_a_window_in_which_a_worker_did_not_answer_counts_neither_for_tokens_nor_for_ends() -> None:
    whole, without = (served(12, exponential, blind=blind).first for blind in (range(0), range(5, 7)))
    assert without.ended < whole.ended
    assert without.output_tokens == pytest.approx(whole.output_tokens, rel=0.25)


def test_it_is_over_when_answers_become_short() -> None:
    lengths = served(20, exponential)
    assert not lengths.first.over
    for tick in range(21, 40):
        load = Load(4.8, 1000.0, None, 20.0, ended_per_s=4.8, decoding=2.4, step_ms=25.0)
        lengths = lengths.observe(load, TICK_S, tick * TICK_S)
    assert lengths.first.over
    assert lengths.output_tokens == pytest.approx(20, rel=0.1)


def test_tokens_that_nobody_counted_are_not_none() -> None:
    lengths = served(6, exponential)
    load = Load(24.0, 1000.0, ended_per_s=24.0, decoding=200.0, step_ms=None)
    assert lengths.observe(load, TICK_S, 7 * TICK_S).first == lengths.first
