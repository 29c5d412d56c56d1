"""The shipped tables."""

import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from pointsman.planner.core.engine.performance_model import Grid, GridModel
from pointsman.planner.errors import UnknownTable
from pointsman.planner.performance_tables import performance_table, table_names


def test_every_shipped_table_can_be_read_and_makes_sense() -> None:
    assert len(table_names()) == 46
    for name in table_names():
        model, gpu, engine, tp = name.split(" ")
        table = performance_table(model, gpu, engine, int(tp.removeprefix("tp")))
        assert 0 < table.prefill_ms(512, 0) < table.prefill_ms(8192, 0)
        assert 0 < table.decode_step_ms(1, 1024) < table.decode_step_ms(64, 64 * 4096)


def test_a_table_gives_the_measured_points_back() -> None:
    table = performance_table("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", "vllm", 1)
    assert table.prefill_ms(2048, 0) == pytest.approx(43.508)


def test_an_unknown_table_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownTable, match=r"Meta-Llama-3\.1-8B h100_sxm vllm tp1"):
        performance_table("meta-llama/Meta-Llama-3.1-8B", "h100", "vllm", 1)


Rows = Sequence[tuple[float, float, float]]
EXPERTS = [name for name in table_names() if name.startswith("Qwen3-30B-A3B ")]


def table_of(name: str) -> GridModel:
    model, gpu, engine, tp = name.split(" ")
    return performance_table(model, gpu, engine, int(tp.removeprefix("tp")))


def errors_at_what_was_held_out(grid: Grid, model_of: Callable[[Rows], Callable[[float, float], float]]) -> list[float]:
    """Relative errors at each value of the first axis, but for its ends, of a model that knows only the others."""
    rows = [
        (first, second, ms)
        for first, (axis, times) in zip(grid.first, grid.columns, strict=True)
        for second, ms in zip(axis, times, strict=True)
    ]
    found = []
    for held_out in grid.first[1:-1]:
        model = model_of([row for row in rows if row[0] != held_out])
        found += [abs(model(first, second) / ms - 1) for first, second, ms in rows if first == held_out]
    return found


def interpolated(rows: Rows) -> Callable[[float, float], float]:
    return Grid.of(rows).at


def straight_line(rows: Rows) -> Callable[[float, float], float]:
    """A step as a + b·batch + c·KV tokens, of the least relative errors."""
    features = np.array([(1.0, batch, batch * context) for batch, context, _ in rows])
    times = np.array([ms for *_, ms in rows])
    (fixed, sequence, token), *_ = np.linalg.lstsq(features / times[:, None], np.ones(len(rows)), rcond=None)
    return lambda batch, context: float(fixed + sequence * batch + token * batch * context)


def test_there_are_tables_of_a_model_with_experts() -> None:
    assert len(EXPERTS) == 6


@pytest.mark.parametrize("name", EXPERTS)
def test_a_step_of_a_model_with_experts_is_known_between_the_measured_batches(name: str) -> None:
    # A few sequences wake a few experts each, many wake all: a step grows steeply with the batch, then hardly.
    steps = table_of(name).decode
    errors = errors_at_what_was_held_out(steps, interpolated)
    assert statistics.fmean(errors) < 0.04
    assert max(errors) < 0.13
    assert statistics.fmean(errors_at_what_was_held_out(steps, straight_line)) > 4 * statistics.fmean(errors)


@pytest.mark.parametrize("name", EXPERTS)
def test_a_prefill_of_a_model_with_experts_is_known_between_the_measured_lengths(name: str) -> None:
    errors = errors_at_what_was_held_out(table_of(name).prefill, interpolated)
    assert statistics.fmean(errors) < 0.03
    assert max(errors) < 0.13
