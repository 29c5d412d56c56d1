"""Performance models and their calibration."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.performance import (
    KAPPA_BOUNDS,
    KAPPA_MIN_SAMPLES,
    UNTRUSTED_AFTER_UPDATES,
    CalibratedModel,
    Calibration,
    Grid,
    LinearModel,
    decode_bucket,
    prefill_bucket,
)

# The fit of AIConfigurator's tables for Llama-3.1-8B on one H100 with vLLM.
LLAMA_8B_H100 = LinearModel(4.705, 0.01757, 8.785e-7, 6.392, 0.009885, 4.273e-5)


@given(n=st.floats(1, 1e5), p=st.floats(0, 1e5), more=st.floats(1, 1e4))
def test_more_work_never_takes_less_time(n: float, p: float, more: float) -> None:
    model = LLAMA_8B_H100
    assert model.prefill_ms(n + more, p) > model.prefill_ms(n, p)
    assert model.prefill_ms(n, p + more) > model.prefill_ms(n, p)
    assert model.decode_step_ms(n + more, p) > model.decode_step_ms(n, p)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_coefficient_that_is_no_time_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="decode_d1 is"):
        LinearModel(1, 1, 1, 1, bad, 1)


def test_a_grid_gives_back_its_points_and_lies_between_its_neighbours() -> None:
    grid = Grid.of(
        [(64, 0, 7.4), (512, 0, 12.0), (2048, 0, 43.5), (64, 1024, 7.1), (512, 1024, 12.4), (2048, 1024, 45.5)]
    )
    assert grid.at(512, 1024) == pytest.approx(12.4)
    assert 12.0 < grid.at(1024, 0) < 43.5
    assert grid.at(4096, 0) > 43.5, "beyond the edge the slope goes on"


def test_a_ragged_grid_is_interpolated_where_a_column_is_short() -> None:
    grid = Grid.of([(1, 256, 6.1), (1, 512, 6.2), (256, 1024, 19.5)])
    assert 6.1 < grid.at(16, 300) < 19.5


def test_a_grid_of_one_value_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        Grid.of([(64, 0, 7.4), (64, 1, 7.5)])


def learned(true_kappa: float, samples: int, bucket: str = "p3") -> Calibration:
    calibration = Calibration()
    for _ in range(samples):
        calibration = calibration.observe(bucket, observed_ms=100 * true_kappa, predicted_ms=100)
    return calibration


@given(true_kappa=st.floats(0.6, 1.9))
def test_kappa_is_learned_from_observations(true_kappa: float) -> None:
    assert learned(true_kappa, 20).kappa("p3") == pytest.approx(true_kappa, rel=0.01)


def test_too_few_observations_change_nothing() -> None:
    assert learned(1.5, KAPPA_MIN_SAMPLES - 1).kappa("p3") == 1.0


def test_an_unseen_bucket_uses_the_nearest_that_is_seen_or_the_median_whichever_is_slower() -> None:
    calibration = learned(1.5, 20, "p3")
    assert calibration.kappa("p7") == pytest.approx(1.5, rel=0.01)
    decode = Calibration()
    for bucket, kappa in (("d1-2", 0.7), ("d3-4", 1.0), ("d5-5", 1.2)):
        for _ in range(20):
            decode = decode.observe(bucket, observed_ms=100 * kappa, predicted_ms=100)
    assert decode.kappa("d7-7") == pytest.approx(1.2, rel=0.01)
    assert decode.kappa("d4-5") == pytest.approx(1.2, rel=0.01)
    assert decode.kappa("d4-4") == pytest.approx(1.0, rel=0.01)
    assert decode.kappa("d0-0") == pytest.approx(1.0, rel=0.01)  # the nearest is quicker


def test_a_larger_batch_than_any_that_was_seen_is_not_expected_to_be_quicker() -> None:
    """A service that fills up: its small batches are quicker than the model says, its large ones are not."""
    base = LinearModel(4.7, 0.0176, 8.8e-7, 33.0, 0.48, 1e-9)
    decode = Calibration()
    for batch in [b for b in range(1, 45) for _ in range(6)]:
        true_ms = 23 + 0.75 * batch
        predicted_ms = base.decode_step_ms(batch, batch * 1000.0)
        decode = decode.observe(decode_bucket(batch, batch * 1000.0), observed_ms=true_ms, predicted_ms=predicted_ms)
    model = CalibratedModel(base, Calibration(), decode)
    seen = model.decode_step_ms(44, 44_000)
    for batch in range(45, 100):
        assert model.decode_step_ms(batch, batch * 1000) >= 0.97 * seen


@given(ratio=st.floats(1e-6, 1e6))
def test_kappa_stays_within_its_bounds(ratio: float) -> None:
    low, high = KAPPA_BOUNDS
    assert low <= learned(ratio, 30).kappa("p3") <= high


@pytest.mark.parametrize(("observed", "predicted"), [(0, 1), (1, 0), (float("nan"), 1), (1, float("inf")), (-1, 1)])
def test_what_is_no_time_is_not_learned(observed: float, predicted: float) -> None:
    assert Calibration().observe("p3", observed_ms=observed, predicted_ms=predicted) == Calibration()


def test_a_model_that_stays_wrong_is_not_trusted_and_is_again_when_it_fits() -> None:
    calibration = Calibration()
    for step in range(3 * UNTRUSTED_AFTER_UPDATES):  # as unsteady as 1:16, no κ can follow
        calibration = calibration.observe("p3", observed_ms=25 if step % 2 else 400, predicted_ms=100)
    assert not calibration.trusted
    assert not CalibratedModel(LLAMA_8B_H100, prefill=calibration).trusted
    for _ in range(200):
        calibration = calibration.observe("p3", observed_ms=100, predicted_ms=100)
    assert calibration.trusted


def test_buckets_are_bounded_however_large_the_input() -> None:
    assert prefill_bucket(0) == "p0"
    assert prefill_bucket(1e9) == "p7"
    assert decode_bucket(1e6, 1e12) == "d7-7"


def test_a_calibrated_model_corrects_each_role_on_its_own() -> None:
    bucket = prefill_bucket(2048)
    model = CalibratedModel(LLAMA_8B_H100, prefill=learned(1.4, 20, bucket))
    assert model.prefill_ms(2048, 0) == pytest.approx(1.4 * LLAMA_8B_H100.prefill_ms(2048, 0), rel=0.01)
    assert model.decode_step_ms(8, 8192) == LLAMA_8B_H100.decode_step_ms(8, 8192)
