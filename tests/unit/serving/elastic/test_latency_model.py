"""The latency model of elastic prefills: what it fits, and what it refuses."""

import json
import random

import pytest

from pointsman.serving.elastic.latency_model import (
    BadFit,
    LatencyModel,
    NotMeasured,
    PrefillTime,
    extrapolate,
    fit_prefill_time,
)


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
    found = fit_prefill_time(measured(model, 0.0))
    assert (found.alpha_s, found.beta_s, found.gamma_s) == pytest.approx((0.012, 3e-5, 4e-10), rel=1e-6)
    assert found.error < 1e-9
    noisy = fit_prefill_time(measured(model, 0.05))
    assert noisy.alpha_s == pytest.approx(model.alpha_s, rel=0.1)
    assert 0.01 < noisy.error < 0.05


def test_no_number_is_negative() -> None:
    """A machine whose attention costs nothing: the noise alone would make its number negative."""
    for seed in range(20):
        found = fit_prefill_time(measured(PrefillTime(0.01, 5e-5, 0.0), 0.05, seed))
        assert min(found.alpha_s, found.beta_s, found.gamma_s) >= 0


def test_what_does_not_follow_the_model_is_refused() -> None:
    with pytest.raises(BadFit, match="3 batches were measured"):
        fit_prefill_time(measured(PrefillTime(0.01, 1e-5, 1e-9), 0.0)[:3])
    with pytest.raises(BadFit, match=r"mean relative error of the fit is \d+%; it must be below 10%"):
        fit_prefill_time(measured(PrefillTime(0.01, 1e-5, 1e-9), 0.9))


def test_a_degree_that_was_not_measured_is_refused() -> None:
    with pytest.raises(NotMeasured, match="degree 3 was not measured; measured are: 1, 2"):
        LatencyModel({2: PrefillTime(1, 1, 1), 1: PrefillTime(1, 1, 1)}).prefill_time(3)


def test_instances_beyond_the_largest_measured_degree_are_counted_as_idle() -> None:
    """By hand: 1 + 2 * (3 + 4) + 0.5 * (9 + 16) on two of the three instances."""
    model = LatencyModel({1: PrefillTime(9, 9, 9), 2: PrefillTime(1, 2, 0.5)})
    assert model.seconds([3, 4], 3) == 27.5
    assert model.degrees_up_to(3) == [1, 2]


def test_a_time_that_is_not_above_0_is_refused() -> None:
    with pytest.raises(BadFit, match="took 0 s"):
        fit_prefill_time([([5], 0)] * 4)


def test_the_stored_model_is_the_model() -> None:
    model = LatencyModel({1: PrefillTime(0.1, 1e-5, 1e-10, 0.03), 4: PrefillTime(0.2, 1 / 3, 0.0)})
    assert LatencyModel.from_json(json.loads(json.dumps(model.to_json()))) == model


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ({"0": {}}, "degree is '0'"),
        ({"2": {"alphaSeconds": -1}}, "alphaSeconds of degree 2 is -1"),
        ({"2": {"alphaSeconds": 1}}, "betaSecondsPerToken of degree 2 is None"),
        ({"1": {"alphaSeconds": float("nan")}}, "alphaSeconds of degree 1 is nan"),
    ],
)
def test_a_bad_stored_model_is_refused_by_name(stored: dict[str, dict[str, float]], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LatencyModel.from_json(stored)


def test_an_extrapolated_degree_divides_the_work_and_adds_the_ring() -> None:
    """By hand: 1 + 3 * 0.1 s; 8 and 16 divided by 4 * 0.5."""
    found = extrapolate(PrefillTime(1.0, 8.0, 16.0), 4, efficiency=0.5, communication_s=0.1)
    assert (found.alpha_s, found.beta_s, found.gamma_s) == pytest.approx((1.3, 4.0, 8.0))
    with pytest.raises(ValueError, match="efficiency 0"):
        extrapolate(found, 2, efficiency=0, communication_s=0)
