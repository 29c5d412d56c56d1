"""Performance models and their correction by what is observed."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pointsman.planner.core.engine.performance_model import CorrectedModel, Correction, Grid
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.profile.linear_model import LinearModel

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


@given(factor=st.floats(0.25, 4.0), fixed_ms=st.floats(-3.0, 30.0))
def test_an_engine_that_is_slower_in_proportion_or_by_a_fixed_part_is_learned(factor: float, fixed_ms: float) -> None:
    table = [6.5 + 0.5 * batch for batch in range(1, 60)]
    low, high = 1 / SHIPPED.model_ratio_bound, SHIPPED.model_ratio_bound
    seen = [(ms, fixed_ms + factor * ms, 20.0) for ms in table if low < (fixed_ms + factor * ms) / ms < high]
    assume(len(seen) > 30)
    found = Correction.fit(seen)
    for table_ms, observed_ms, _ in seen:
        assert found.ms(table_ms) == pytest.approx(observed_ms, rel=0.06)


def test_nothing_seen_leaves_the_table_as_it_is() -> None:
    assert Correction.fit([]).ms(12.5) == 12.5


@pytest.mark.parametrize("kappa", [0.4, 0.7, 1.3, 2.0, 2.7, 3.5])
def test_five_samples_of_one_load_say_nearly_all_of_how_much_slower_an_engine_is(kappa: float) -> None:
    """P-D4: engines more than twice as slow as their table were taken for twice as slow, for ever."""
    assert Correction.fit([(100.0, 100 * kappa, 5.0)]).ms(100) / 100 == pytest.approx(kappa, rel=0.26)
    assert Correction.fit([(100.0, 100 * kappa, 40.0)]).ms(100) / 100 == pytest.approx(kappa, rel=0.04)


@given(
    seen=st.lists(st.tuples(st.floats(0.5, 1e4), st.floats(1e-3, 1e7), st.floats(0.01, 41.0)), min_size=1, max_size=20),
    some_ms=st.floats(0.5, 1e4),
    more_ms=st.floats(0, 1e4),
)
def test_whatever_was_measured_more_work_never_takes_less_time(
    seen: list[tuple[float, float, float]], some_ms: float, more_ms: float
) -> None:
    """A batch that grows is not found to be quicker, or sizes that are searched by it go to and fro."""
    found = Correction.fit(seen)
    low, high = 1 / SHIPPED.model_ratio_bound, SHIPPED.model_ratio_bound
    assert found.ms(some_ms + more_ms) >= found.ms(some_ms) * (1 - 1e-12)
    assert low * some_ms <= found.ms(some_ms) <= high * some_ms


def test_a_larger_batch_than_any_that_was_seen_is_not_expected_to_be_quicker() -> None:
    """A service that fills up: its small batches are quicker than the model says, its large ones are not."""
    base = LinearModel(4.7, 0.0176, 8.8e-7, 33.0, 0.48, 1e-9)
    seen = [(base.decode_step_ms(batch, batch * 1000.0), 23 + 0.75 * batch, 6.0) for batch in range(1, 45)]
    model = CorrectedModel(base, Correction(), Correction.fit(seen))
    for batch in range(45, 100):
        assert model.decode_step_ms(batch, batch * 1000) == pytest.approx(23 + 0.75 * batch, rel=0.05)


def test_a_corrected_model_corrects_each_role_on_its_own() -> None:
    model = CorrectedModel(LLAMA_8B_H100, prefill=Correction(factor=1.4))
    assert model.prefill_ms(2048, 0) == pytest.approx(1.4 * LLAMA_8B_H100.prefill_ms(2048, 0))
    assert model.decode_step_ms(8, 8192) == LLAMA_8B_H100.decode_step_ms(8, 8192)


def test_a_table_with_times_of_0_is_corrected_by_its_other_times() -> None:
    assert Correction.fit([(0.0, 8.0, 50.0)]) == Correction()
    assert Correction.fit([(0.0, 8.0, 50.0), (10.0, 20.0, 50.0)]).ms(10.0) == pytest.approx(20.0, rel=0.02)
