"""From samples to a table: what is measured stays, noise makes nothing fall, what is missing follows the model."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.engine.performance_model import Grid, GridModel
from pointsman.planner.profile.fitting import Fitted, fitted, missing, moved
from pointsman.planner.profile.linear_model import LinearModel
from pointsman.planner.profile.types import PrefillSample, StepPoint, StepSample, TransferSample

TRUTH = LinearModel(
    prefill_a=8.0, prefill_b=0.02, prefill_c=2e-6, decode_d0=6.0, decode_d1=0.05, decode_d2=4e-5, prefill_floor_ms=0.0
)
LENGTHS = (16, 64, 256, 1024, 4096)
PREFIXES = (0, 1024)
BATCHES = (1, 4, 16, 64)
CONTEXTS = (128, 2048)


def prefill(new: int, prefix: int = 0, factor: float = 1.0) -> PrefillSample:
    return PrefillSample(new, prefix, TRUTH.prefill_ms(new, prefix) * factor, overhead_ms=3.0)


def step(batch: int, context: int, factor: float = 1.0, grown: float = 0.0) -> StepSample:
    at = context + grown
    return StepSample(StepPoint(batch, context), at, TRUTH.decode_step_ms(batch, batch * at) * factor, steps=100)


def noisy(seed: int, sigma: float) -> Fitted:
    """Three samples of every cell, with log-normal noise."""
    rng = random.Random(seed)

    def factor() -> float:
        return math.exp(rng.gauss(0, sigma))

    return fitted(
        [prefill(n, p, factor()) for n in LENGTHS for p in PREFIXES for _ in range(3)],
        [step(b, c, factor(), grown=40) for b in BATCHES for c in CONTEXTS for _ in range(3)],
    )


def model(table: Fitted) -> GridModel:
    return GridModel(Grid.of(table.prefill), Grid.of(table.steps))


def test_without_noise_the_table_and_the_line_are_the_truth() -> None:
    table = noisy(seed=1, sigma=0.0)
    found = model(table)
    for new in LENGTHS:
        for prefix in PREFIXES:
            assert found.prefill_ms(new, prefix) == pytest.approx(TRUTH.prefill_ms(new, prefix), rel=1e-4)
    for batch in BATCHES:
        for context in CONTEXTS:
            wanted = TRUTH.decode_step_ms(batch, batch * context)
            assert found.decode_step_ms(batch, batch * context) == pytest.approx(wanted, rel=1e-4)
    assert table.linear.prefill_b == pytest.approx(TRUTH.prefill_b, rel=1e-3)
    assert table.linear.decode_d2 == pytest.approx(TRUTH.decode_d2, rel=1e-3)
    assert (table.prefill_error, table.step_error) == pytest.approx((0, 0), abs=1e-6)
    assert (table.prefill_spread, table.step_spread) == (0, 0)


def test_noise_of_five_percent_leaves_the_table_within_a_tenth_of_the_truth() -> None:
    for seed in range(20):
        found = model(noisy(seed, sigma=0.05))
        for new in LENGTHS:
            assert found.prefill_ms(new, 0) == pytest.approx(TRUTH.prefill_ms(new, 0), rel=0.1), f"seed {seed}"
        for batch in BATCHES:
            wanted = TRUTH.decode_step_ms(batch, batch * 128)
            assert found.decode_step_ms(batch, batch * 128) == pytest.approx(wanted, rel=0.1), f"seed {seed}"


@given(seed=st.integers(0, 10_000), sigma=st.floats(0.01, 1.0))
def test_no_row_says_that_more_work_takes_less_time(seed: int, sigma: float) -> None:
    table = noisy(seed, sigma)
    for rows in (table.prefill, table.steps):
        for a, b, ms in rows:
            assert all(ms <= more + 1e-3 * more for x, y, more in rows if x >= a and y >= b)


def test_one_sample_far_off_does_not_move_its_row() -> None:
    samples = [prefill(n) for n in LENGTHS for _ in range(3)]
    table = fitted([*samples[:-1], prefill(LENGTHS[-1], factor=5.0)], [step(b, c) for b in BATCHES for c in CONTEXTS])
    assert model(table).prefill_ms(LENGTHS[-1], 0) == pytest.approx(TRUTH.prefill_ms(LENGTHS[-1], 0), rel=1e-4)
    assert table.prefill_spread == 0, "the median spread is that of the others"


def test_a_cell_that_was_not_measured_is_its_neighbour_and_the_models_difference() -> None:
    """The engine takes 1.3 times what any line says at a batch of 64: so does the cell beside it."""
    steps = [step(b, c) for b in BATCHES for c in CONTEXTS if (b, c) != (64, 2048)]
    slow = [step(64, 128, factor=1.3) if s.point == StepPoint(64, 128) else s for s in steps]
    table = fitted([prefill(n) for n in LENGTHS], [*slow, step(64, 1024)])
    cells = {(b, c): ms for b, c, ms in table.steps}
    assert (16, 2048) in cells
    assert (64, 2048) not in cells, "beyond the largest KV that was seen nothing is claimed"
    assert (16, 1024) in cells
    assert cells[(16, 128)] < cells[(16, 1024)] < cells[(16, 2048)]


def test_two_lengths_and_two_batches_are_the_least() -> None:
    assert missing([prefill(16)], [step(1, 128)]) == "1 of 2 prompt lengths and 1 of 2 batch sizes"
    assert missing([prefill(16), prefill(16)], [step(1, 128), step(2, 128)]) == "1 of 2 prompt lengths"
    few = [prefill(16), prefill(64)], [step(1, 128), step(2, 128)]
    assert missing(*few) is None
    assert len(fitted(*few).prefill) == 2
    with pytest.raises(ValueError, match="only 1 of 2 prompt lengths"):
        fitted([prefill(16)], few[1])


def test_a_transfer_is_its_bytes_its_time_and_what_remains_of_the_wait() -> None:
    samples = [
        TransferSample(tokens=n, kv_bytes=n * 1000.0, ms=n / 100, wait_ms=TRUTH.prefill_ms(n, 0) + n / 100 + 3 + 20)
        for n in (500, 1000, 2000)
    ]
    found = moved(samples, lambda tokens: TRUTH.prefill_ms(tokens, 0), overhead_ms=3.0)
    assert found is not None
    assert found.bytes_per_s == pytest.approx(1e8)
    assert found.hop_ms == pytest.approx(20)
    assert found.bytes_per_token == 1000
    assert moved([], lambda _: 0.0, 3.0) is None, "what was not seen is unknown, not free"
