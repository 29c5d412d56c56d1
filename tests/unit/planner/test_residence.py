"""How long answers are, from those that are not finished: at once when they grow, never because there are more."""

from collections import deque

import pytest

from pointsman.planner.core.lengths import Lengths
from pointsman.planner.core.types import Load

TICK_S = 2.5
STEP_S = 0.025


def served(rates: list[int], outputs: list[int]) -> Lengths:
    """Each window so many requests begin to decode, each for so many tokens; 40 tokens a second and sequence."""
    decoding: deque[tuple[float, int]] = deque()  # (when it ends, its tokens)
    lengths = Lengths()
    for tick, (rate, output) in enumerate(zip(rates, outputs, strict=True), 1):
        now_s = tick * TICK_S
        decoding.extend((now_s + output * STEP_S, output) for _ in range(rate))
        ended = [tokens for ends_s, tokens in decoding if ends_s <= now_s]
        decoding = deque(one for one in decoding if one[0] > now_s)
        lengths = lengths.observe(
            Load(
                arrivals_per_s=rate / TICK_S,
                prompt_tokens=1000.0,
                output_tokens=sum(ended) / len(ended) if ended else None,
                started_per_s=rate / TICK_S,
                decoding=float(len(decoding)),
                step_ms=STEP_S * 1000,
            ),
            TICK_S,
            now_s,
        )
    return lengths


def test_longer_answers_are_seen_before_the_first_of_them_has_ended() -> None:
    # 400 tokens take ten seconds: after four windows nobody that was given so many has ended.
    lengths = served([30] * 44, [100] * 40 + [400] * 4)
    assert lengths.finished_tokens == 100
    assert lengths.output_tokens is not None
    assert lengths.output_tokens > 250


def test_more_requests_of_the_same_length_are_not_longer_answers() -> None:
    rates = [12] * 40 + [60] * 6
    for ticks in range(41, 47):
        assert served(rates[:ticks], [200] * ticks).output_tokens == 200


def test_what_is_not_finished_never_becomes_a_finished_length() -> None:
    grown = served([30] * 44, [100] * 40 + [400] * 4)
    quiet = grown.observe(Load(0.4, prompt_tokens=1000.0), TICK_S, 45 * TICK_S)
    assert quiet.output_tokens == 100


def test_a_part_that_is_not_known_leaves_the_finished_lengths() -> None:
    known = served([30] * 44, [100] * 40 + [400] * 4)
    load = Load(12.0, prompt_tokens=1000.0, output_tokens=100.0, started_per_s=12.0, decoding=None, step_ms=25.0)
    assert known.observe(load, TICK_S, 45 * TICK_S).output_tokens == 100


def test_held_requests_that_begin_all_at_once_do_not_make_answers_short_again() -> None:
    """Answers of 300 and 900 tokens, and 200 of them that a gateway held begin together: only short ones ended yet."""
    rates = [30] * 44 + [0] * 2 + [200] + [30] * 3
    outputs = [100] * 40 + [300, 900] * 5
    before, after = (served(rates[:ticks], outputs[:ticks]) for ticks in (49, 50))
    assert (before.finished_tokens, after.finished_tokens) == (300, 300)
    assert after.residence.longer_than(300) is None
    assert before.output_tokens == after.output_tokens == pytest.approx(600, rel=0.1)


def test_the_few_that_decode_from_before_a_pause_make_no_long_answers_of_those_that_began_after_it() -> None:
    pause = 20
    rates = [24] * 39 + [2] + [0] * pause + [24] * 8
    outputs = [200] * 39 + [4000] + [200] * (pause + 8)
    for ticks in range(40 + pause + 1, len(rates) + 1):
        assert served(rates[:ticks], outputs[:ticks]).output_tokens == pytest.approx(200, rel=0.3), ticks


def test_that_answers_were_long_is_forgotten_when_they_are_short_again() -> None:
    rates = [30] * 44 + [30] * 16
    lengths = served(rates, [100] * 40 + [400] * 4 + [100] * 16)
    assert lengths.output_tokens is not None
    assert lengths.output_tokens < 200
