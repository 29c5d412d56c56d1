"""Lengths: the long mean while nothing changes, the new one as soon as it is certain."""

import random

import pytest

from pointsman.planner.core.lengths import MOST_LENGTH_WINDOWS, Lengths
from pointsman.planner.core.types import Load

TICK_S = 2.5


def after(prompts: list[float], spread: float = 0.25, per_window: int = 25) -> Lengths:
    """Windows of so many requests each, with those mean prompts."""
    draw, found = random.Random(1), Lengths()
    for tick, prompt in enumerate(prompts):
        mean = sum(draw.gauss(prompt, spread * prompt) for _ in range(per_window)) / per_window
        found = found.observe(Load(per_window / TICK_S, mean, 0.0, 100.0), TICK_S, TICK_S * tick)
    return found


def test_noise_is_averaged_over_minutes() -> None:
    assert after([4000.0] * 100).prompt_tokens == pytest.approx(4000, rel=0.01)


def test_a_change_is_followed_with_its_first_window() -> None:
    assert after([4000.0] * 100 + [500.0]).prompt_tokens == pytest.approx(500, rel=0.1)


def test_and_what_was_before_is_soon_forgotten() -> None:
    lengths = after([4000.0] * 100 + [500.0] * 5)
    assert lengths.prompt_tokens == pytest.approx(500, rel=0.05)
    assert len(lengths.windows) <= 6


def test_lengths_that_differ_a_lot_from_request_to_request_are_no_change() -> None:
    lengths = after([1000.0] * 300, spread=1.0)
    assert len(lengths.windows) > 100
    assert lengths.prompt_tokens == pytest.approx(1000, rel=0.1)


def test_skewed_lengths_are_seldom_taken_for_a_change() -> None:
    # Log-normal with a standard deviation like the mean's, as real prompts are: eight minutes for each of 30 services.
    alarms = 0
    for seed in range(30):
        draw, found = random.Random(seed), Lengths()
        for tick in range(200):
            mean = sum(draw.lognormvariate(8.5, 0.8) for _ in range(8)) / 8
            found = found.observe(Load(8 / TICK_S, mean, 0.0, 100.0), TICK_S, TICK_S * tick)
        alarms += found.changed_s is not None
    assert alarms <= 3


def test_a_window_without_lengths_changes_nothing_and_memory_is_bounded() -> None:
    lengths = after([4000.0] * 20)
    assert lengths.observe(Load(3.0), TICK_S, 60.0) == lengths
    assert len(after([4000.0] * 400, per_window=1).windows) <= MOST_LENGTH_WINDOWS


def test_outputs_that_nobody_ended_in_a_window_stay_as_they_were() -> None:
    lengths = after([4000.0] * 20).observe(Load(10.0, 4000.0, 0.0, None), TICK_S, 60.0)
    assert lengths.output_tokens == pytest.approx(100)


def test_longer_outputs_are_not_judged_by_those_that_end_first() -> None:
    # 15 answers a second of 600 ± 150 tokens, 25 ms each, in the place of 100: only the short ones end at first.
    draw, found = random.Random(2), Lengths()
    for tick in range(40):
        found = found.observe(Load(15.0, 4000.0, 0.0, 100.0, measured=15 * TICK_S), TICK_S, TICK_S * tick)
    changed_s = 40 * TICK_S
    began = [(changed_s + n / 15, max(8.0, draw.gauss(600, 150))) for n in range(15 * 60)]
    seen = {}
    for tick in range(41, 56):
        now_s = TICK_S * tick
        ended = [tokens for at_s, tokens in began if now_s - TICK_S < at_s + 0.025 * tokens <= now_s]
        if ended:
            load = Load(15.0, 4000.0, 0.0, sum(ended) / len(ended), measured=float(len(ended)))
            found = found.observe(load, TICK_S, now_s)
        seen[now_s - changed_s] = found.output_tokens
    assert seen[25.0] == pytest.approx(600, rel=0.04)
    assert seen[37.5] == pytest.approx(600, rel=0.04)
