"""Lengths: the long mean while nothing changes, the new one as soon as it is certain."""

import random

import pytest

from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Load
from pointsman.planner.core.workload.request_lengths import MOST_LENGTH_WINDOWS, Lengths

TICK_S = 2.5


def after(prompts: list[float], spread: float = 0.25, per_window: int = 25, tuning: Tuning = SHIPPED) -> Lengths:
    """Windows of so many requests each, with those mean prompts."""
    draw, found = random.Random(1), Lengths()
    for tick, prompt in enumerate(prompts):
        mean = sum(draw.gauss(prompt, spread * prompt) for _ in range(per_window)) / per_window
        found = found.observe(Load(per_window / TICK_S, mean, 0.0, 100.0), TICK_S, TICK_S * tick, tuning)
    return found


def test_noise_is_averaged_over_minutes() -> None:
    assert after([4000.0] * 100).prompt_tokens == pytest.approx(4000, rel=0.01)


def test_a_change_is_followed_with_its_first_window() -> None:
    assert after([4000.0] * 100 + [500.0]).prompt_tokens == pytest.approx(500, rel=0.1)


def test_and_what_was_before_is_soon_forgotten() -> None:
    lengths = after([4000.0] * 100 + [500.0] * 5)
    assert lengths.prompt_tokens == pytest.approx(500, rel=0.05)
    assert len(lengths.windows) <= 6


def test_windows_of_empty_answers_say_nothing_of_what_comes_after_them() -> None:
    found = Lengths()
    for tick in range(40):
        found = found.observe(Load(10.0, 500.0, 0.0, 0.0 if tick < 20 else 20.0), TICK_S, TICK_S * tick)
    assert found.output_tokens == pytest.approx(10.0)


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


def answered(rates: list[int], outputs: list[int]) -> list[float | None]:
    """The output length after each window, in which so many requests of so many tokens begin; 25 ms a token."""
    decoding: list[tuple[float, int]] = []  # (when it ends, its tokens)
    lengths, found = Lengths(), []
    for tick, (rate, output) in enumerate(zip(rates, outputs, strict=True), 1):
        now_s = tick * TICK_S
        decoding += [(now_s + 0.025 * output, output)] * rate
        ended = [tokens for ends_s, tokens in decoding if ends_s <= now_s]
        decoding = [each for each in decoding if each[0] > now_s]
        load = Load(
            rate / TICK_S, 1000.0, output_tokens=sum(ended) / len(ended) if ended else None,
        )  # fmt: skip
        lengths = lengths.observe(load, TICK_S, now_s)
        found.append(lengths.output_tokens)
    return found


def test_longer_answers_are_known_when_the_first_of_them_end_and_soon_forgotten_when_they_are_short_again() -> None:
    found = answered([30] * 66, [100] * 40 + [400] * 10 + [100] * 16)
    assert found[39] == 100
    assert found[44] == 400, "400 tokens take ten seconds"
    assert found[-1] == 100


def test_more_requests_of_the_same_length_are_not_longer_answers() -> None:
    assert set(answered([12] * 40 + [60] * 20, [200] * 60)[38:]) == {200}


def test_prompts_that_differ_by_less_than_a_tenth_are_no_others() -> None:
    prompts = [1000.0] * 100 + [1080.0] * 20
    assert after(prompts, spread=0.0).changed_s is None
    assert after(prompts, spread=0.0, tuning=Tuning(min_length_change=0.05)).changed_s is not None


def test_lengths_count_by_requests_and_not_by_time() -> None:
    """A rate that rises fifty times, with the same mean: what came before is a tenth of all requests soon after."""
    lengths = Lengths()
    for tick in range(130):
        rate, shares = (2.0, ((500.0, 0.5), (1500.0, 0.5))) if tick < 120 else (100.0, ((1000.0, 1.0),))
        lengths = lengths.observe(Load(rate, 1000.0, 0.0, 100.0, prompt_length_shares=shares), 2.5, 2.5 * tick)
    assert lengths.changed_s is None
    assert dict(lengths.shares)[1000.0] > 0.85


def with_shares(rate: float, ticks: range, tokens: float, lengths: Lengths | None = None) -> Lengths:
    """A rate of prompts of those tokens, whose mean is another one's too: no test finds a change."""
    found = lengths or Lengths()
    for tick in ticks:
        load = Load(rate, 1000.0, 0.0, 100.0, prompt_length_shares=((tokens, 1.0),))
        found = found.observe(load, TICK_S, TICK_S * tick)
    return found


def test_after_a_night_without_requests_the_lengths_of_yesterday_are_soon_forgotten() -> None:
    yesterday, morning = with_shares(10.0, range(400), 500.0), 400 + 12 * 1440
    lengths = with_shares(10.0, range(morning, morning + 4), 1500.0, yesterday)
    assert lengths.changed_s is None
    assert dict(lengths.shares)[1500.0] > 0.6
    without_a_night = with_shares(10.0, range(400, 404), 1500.0, yesterday)
    assert dict(without_a_night.shares)[1500.0] < 0.1


def test_of_a_service_with_few_requests_the_last_sixty_make_the_distribution() -> None:
    """One request in ten minutes: a single long prompt is not what all of them are."""
    lengths = with_shares(1 / TICK_S, range(0, 240 * 80, 240), 500.0)
    lengths = with_shares(1 / TICK_S, range(240 * 80, 240 * 80 + 1), 1500.0, lengths)
    assert dict(lengths.shares)[1500.0] == pytest.approx(1 / 61)


def test_a_histogram_with_one_bucket_is_kept_in_a_window_without_prompts() -> None:
    lengths = Lengths()
    for tick in range(8):
        prompts = ((362.0, 1.0),) if tick != 4 else ()
        seen = Load(4.0, 400.0 if prompts else None, 0.0, 100.0, prompt_length_shares=prompts)
        lengths = lengths.observe(seen, 2.5, 2.5 * tick)
        assert lengths.shares == ((362.0, 1.0),)


def test_where_only_means_are_known_they_stand_for_all_prompts() -> None:
    lengths = Lengths()
    for tick in range(40):
        tokens = 400.0 if tick < 20 else 4000.0
        lengths = lengths.observe(Load(4.0, tokens, 0.0, 100.0), 2.5, 2.5 * tick)
        assert lengths.shares == ((lengths.prompt_tokens, 1.0),)
