"""The latency model of elastic prefills: what it fits, and what it refuses."""

import random

import pytest

from pointsman.serving.elastic.latency_model import BadFit, LatencyModel, NotMeasured, PrefillTime, fitted


def measured(model: PrefillTime, noise: float, seed: int = 1) -> list[tuple[list[int], float]]:
    """Batches of a thousand times different lengths, whose times are off by up to ``noise``."""
    rng = random.Random(seed)
    found = []
    for _ in range(40):
        lengths = [int(10 ** rng.uniform(1, 4.5)) for _ in range(rng.randint(1, 4))]
        took_s = model.seconds(sum(lengths), sum(length**2 for length in lengths))
        found.append((lengths, took_s * rng.uniform(1 - noise, 1 + noise)))
    return found


def test_the_numbers_behind_the_measurements_are_found() -> None:
    model = PrefillTime(0.012, 3e-5, 4e-10)
    found = fitted(measured(model, 0.0))
    assert (found.alpha_s, found.beta_s, found.gamma_s) == pytest.approx((0.012, 3e-5, 4e-10), rel=1e-6)
    assert found.error < 1e-9
    noisy = fitted(measured(model, 0.05))
    assert noisy.alpha_s == pytest.approx(model.alpha_s, rel=0.1)
    assert 0.01 < noisy.error < 0.05


def test_no_number_is_negative() -> None:
    """A machine whose attention costs nothing: the noise alone would make its number negative."""
    for seed in range(20):
        found = fitted(measured(PrefillTime(0.01, 5e-5, 0.0), 0.05, seed))
        assert min(found.alpha_s, found.beta_s, found.gamma_s) >= 0


def test_what_does_not_follow_the_model_is_refused() -> None:
    with pytest.raises(BadFit, match="3 batches were measured"):
        fitted(measured(PrefillTime(0.01, 1e-5, 1e-9), 0.0)[:3])
    with pytest.raises(BadFit, match=r"mean relative error of the fit is \d+%; it must be below 10%"):
        fitted(measured(PrefillTime(0.01, 1e-5, 1e-9), 0.9))


def test_a_degree_that_was_not_measured_is_refused() -> None:
    with pytest.raises(NotMeasured, match="degree 3 was not measured; measured are: 1, 2"):
        LatencyModel({2: PrefillTime(1, 1, 1), 1: PrefillTime(1, 1, 1)}).of(3)
