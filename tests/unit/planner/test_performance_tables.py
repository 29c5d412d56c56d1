"""The shipped tables."""

import pytest

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
