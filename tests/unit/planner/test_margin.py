"""The share of the token objective that is planned for, from what clients get."""

from pointsman.planner.core.margin import LEAST, Margin


def after(attainment: float, windows: int, margin: Margin | None = None) -> Margin:
    margin = margin or Margin()
    for _ in range(windows):
        margin = margin.observe(attainment, 20, 0.95)
    return margin


def test_a_model_that_keeps_its_promise_is_left_alone() -> None:
    assert after(1.0, 200).share == 1.0


def test_a_promise_that_is_missed_is_planned_for_with_less_and_never_with_too_little() -> None:
    assert after(0.8, 10).share < 0.9
    assert after(0.0, 1000).share == LEAST


def test_what_proved_necessary_is_given_back_slowly() -> None:
    missed = after(0.8, 10)
    assert after(1.0, 10, missed.interrupted()).share < missed.share * 1.01
    assert after(1.0, 2000, missed).share == 1.0
