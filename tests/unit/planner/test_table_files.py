"""Tables of one's own: read, refused with every mistake, and used by a replay."""

import json
from pathlib import Path
from typing import Any

import pytest

from pointsman.planner.errors import TableError
from pointsman.planner.replay.command import main
from pointsman.planner.shipped_engines import table_engine, table_network
from pointsman.planner.table_files import parse_table, read_table

SHIPPED = Path(__file__).parents[3] / "planner/src/pointsman/planner/tables"
POLICY = """
objectives: {ttftMs: 2000, tpotMs: 60}
budget: {maxGpus: 4}
"""


def table(**changes: Any) -> dict[str, Any]:
    return {
        "model": "mine",
        "system": "cpu",
        "backend": "vllm",
        "tp": 1,
        "gpus": 1,
        "kv_capacity_tokens": 50_000,
        "kv_bytes_per_token": 16_384,
        "max_batch": 12,
        "max_context_tokens": 4096,
        "kv_transfer": {"bytes_per_second": 2e9, "hop_ms": 15.0},
        "prefill_ms": {
            "columns": ["new_tokens", "prefix_tokens", "ms"],
            "rows": [[16, 0, 6.0], [512, 0, 80.0], [2048, 0, 400.0]],
        },
        "decode_step_ms": {
            "columns": ["batch", "context", "ms"],
            "rows": [[1, 128, 6.0], [1, 2048, 9.0], [8, 128, 8.0]],
        },
        **changes,
    }


def test_a_measured_table_is_an_engine_and_a_network() -> None:
    found = parse_table(json.dumps(table()), "here")
    engine = table_engine(found)
    assert engine.performance.prefill_ms(512, 0) == pytest.approx(80.0)
    assert engine.performance.decode_step_ms(1, 2048) == pytest.approx(9.0)
    assert (engine.max_batch, engine.max_context_tokens, engine.kv_bytes_per_token) == (12, 4096, 16_384)
    network = table_network(found)
    assert (network.bytes_per_s, network.hop_s) == (2e9, 0.015)


def test_a_shipped_table_can_be_copied_and_used_as_ones_own() -> None:
    found = read_table(SHIPPED / "Meta-Llama-3.1-8B__h100_sxm__vllm__tp1.json")
    assert found.performance.prefill_ms(2048, 0) == pytest.approx(43.508)
    assert found.document.kv_transfer is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpus": 0}, "gpus is 0: input should be greater than or equal to 1"),
        ({"model": None}, "model is None: input should be a valid string"),
        (
            {"prefill_ms": {"columns": ["new_tokens", "ms"], "rows": []}},
            "prefill_ms.rows is []: tuple should have at least 2 items",
        ),
        (
            {"decode_step_ms": {"columns": ["batch", "context", "ms"], "rows": [[1, 128, 0], [2, 128, 5]]}},
            "decode_step_ms.rows.0.2 is 0: input should be greater than 0",
        ),
        (
            {"decode_step_ms": {"columns": ["batch", "context", "ms"], "rows": [[1, 128, 4], [1, 256, 5]]}},
            "1 values on the first axis: at least 2 are needed to interpolate",
        ),
        (
            {"decode_step_ms": {"columns": ["batch", "context", "ms"], "rows": [[0, 128, 4], [1, 256, 5]]}},
            "decode_step_ms.rows has a batch of 0",
        ),
        ({"kv_transfer": {"bytes_per_second": 0, "hop_ms": 1}}, "kv_transfer.bytes_per_second is 0"),
    ],
)
def test_a_mistake_in_a_table_is_said_with_its_field_and_value(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TableError) as refused:
        parse_table(json.dumps(table(**changes)), "mine.json")
    assert str(refused.value).startswith("mine.json: ")
    assert said in str(refused.value)


def test_what_is_no_table_at_all_is_said(tmp_path: Path) -> None:
    for text, said in (("{", "it is no JSON"), ("[]", "it is no JSON object"), ("{}", "model: field required")):
        with pytest.raises(TableError, match=said):
            parse_table(text, "mine.json")
    with pytest.raises(TableError, match="cannot be read: No such file"):
        read_table(tmp_path / "none.json")


def test_an_unknown_size_of_the_kv_is_asked_for_not_taken_as_nothing() -> None:
    with pytest.raises(TableError, match="kv_bytes_per_token is null"):
        table_engine(parse_table(json.dumps(table(kv_bytes_per_token=None)), "mine.json"))


def test_a_replay_runs_on_a_table_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "mine.json").write_text(json.dumps(table()))
    common = ["--trace", "steady:rate=2,duration_s=30", "--policy", str(tmp_path / "policy.yaml")]
    own = [*common, "--table", str(tmp_path / "mine.json")]
    assert main([*own, "--json", str(tmp_path / "out.json")]) == 0
    assert "mine on cpu" in capsys.readouterr().out
    simulation = json.loads((tmp_path / "out.json").read_text())["simulation"]
    assert (simulation["prefill_factor"], simulation["decode_factor"]) == (1.0, 1.0), "it was measured, not composed"
    with pytest.raises(SystemExit):
        main([*own, "--model", "other"])
    assert "--table FILE is the engine" in capsys.readouterr().err
    assert main([*common, "--table", str(tmp_path / "policy.yaml")]) == 2
    assert "it is no JSON" in capsys.readouterr().err
