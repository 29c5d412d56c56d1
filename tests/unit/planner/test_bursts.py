"""Bursts that come again: when they are expected, at which rate, and when not."""

import pytest

from pointsman.planner.core.bursts import Bursts, Expected

TICK_S = 5.0
LEAD_S = 60.0
LONGEST_S = 900.0
ATTAINMENT = 0.97


def seen(starts_s: list[float], *, lasts_s: float = 30.0, rate: float = 12.0, before: float = 1.5) -> Bursts:
    """After bursts that began at those moments, as a detector of sudden changes tells of them."""
    bursts, now_s, on = Bursts(), 0.0, False
    until_s = starts_s[-1] + lasts_s + TICK_S
    while now_s < until_s:
        now_s += TICK_S
        is_on = any(start < now_s <= start + lasts_s for start in starts_s)
        bursts = bursts.observe(
            (rate if is_on else before) * TICK_S, TICK_S, now_s,
            rose_from=before if is_on and not on else None, fell=on and not is_on, lead_s=LEAD_S,
        )  # fmt: skip
        on = is_on
    return bursts


def expected(bursts: Bursts, now_s: float, attainment: float = ATTAINMENT) -> Expected | None:
    return bursts.expected(now_s, LONGEST_S, attainment)


def test_one_burst_says_nothing_of_a_next_one() -> None:
    assert expected(seen([100.0]), 150.0) is None


def test_two_bursts_are_expected_to_be_followed_by_a_third_at_their_rate() -> None:
    found = expected(seen([100.0, 250.0]), 290.0)
    assert found is not None
    assert found.rate_per_s == pytest.approx(12.0)
    assert found.every_s == pytest.approx(150.0)


def test_while_the_second_burst_begins_its_return_is_known() -> None:
    begun = seen([100.0]).observe(60.0, TICK_S, 250.0 + TICK_S, rose_from=1.5, fell=False, lead_s=LEAD_S)
    assert expected(begun, 255.0) == Expected(12.0, 150.0)


def test_bursts_within_one_window_each_count_too() -> None:
    bursts = Bursts()
    for tick in range(1, 20):
        on = tick % 5 == 0
        bursts = bursts.observe(
            360.0 if on else 45.0, 30.0, 30.0 * tick,
            rose_from=1.5 if on else None, fell=tick % 5 == 1 and tick > 1, lead_s=LEAD_S,
        )  # fmt: skip
    assert expected(bursts, 570.0) == Expected(12.0, 150.0)


def test_one_that_does_not_come_is_not_waited_for_longer_than_a_quarter_of_the_gap() -> None:
    bursts = seen([100.0, 250.0])
    assert expected(bursts, 250.0 + 1.2 * 150.0) is not None
    assert expected(bursts, 250.0 + 1.3 * 150.0) is None


def test_what_lasts_as_long_as_a_start_is_no_burst() -> None:
    assert seen([100.0, 400.0], lasts_s=LEAD_S + 2 * TICK_S).seen == ()


def test_bursts_too_far_apart_are_not_held_for() -> None:
    assert expected(seen([100.0, 100.0 + LONGEST_S + 50.0]), LONGEST_S + 160.0) is None


def test_what_may_be_missed_is_not_held_for() -> None:
    little = seen([100.0, 250.0], rate=4.0, before=3.0)  # 30 requests beside 450 in every 150 s
    assert expected(little, 290.0, attainment=0.9) is None
    assert expected(little, 290.0, attainment=0.97) is not None


def test_bursts_of_long_ago_are_forgotten() -> None:
    bursts = seen([100.0, 250.0])
    assert bursts.observe(5.0, TICK_S, 5000.0, rose_from=None, fell=False, lead_s=LEAD_S).seen == ()
