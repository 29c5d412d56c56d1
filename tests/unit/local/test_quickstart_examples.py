"""What the quick start applies is the user's example, changed in nothing but what it says it changes."""

from pathlib import Path

import pytest

from pointsman.api.v1alpha1 import LLMService
from pointsman.local.quickstart.examples import (
    EXAMPLE,
    ExampleFailed,
    read_example,
    shift_service,
    stall_service,
    with_model,
)

MODEL = Path("/models/other")


def test_the_example_is_a_valid_service_of_one_prefill_and_two_decode_workers_on_cpu() -> None:
    service = LLMService.model_validate(read_example())
    assert (service.spec.pools.prefill.replicas, service.spec.pools.decode.replicas) == (1, 2)
    assert service.spec.worker.gpus == 0
    assert "--dtype=float32" in service.spec.engine.args, "in bfloat16 exactness cannot be shown"


def test_only_the_models_folder_is_filled_in() -> None:
    example = read_example()
    filled = with_model(example, MODEL)
    assert filled["spec"]["model"].pop("source") == "file:///models/other"
    example["spec"]["model"].pop("source")
    assert filled == example


def test_the_latency_stage_serves_the_same_way_in_bfloat16_with_one_worker_of_each_role() -> None:
    service = LLMService.model_validate(stall_service(read_example(), MODEL))
    assert service.metadata.name != LLMService.model_validate(read_example()).metadata.name
    assert (service.spec.pools.prefill.replicas, service.spec.pools.decode.replicas) == (1, 1)
    assert [argument for argument in service.spec.engine.args if "dtype" in argument] == ["--dtype=bfloat16"]
    assert service.spec.drain == LLMService.model_validate(read_example()).spec.drain


def test_a_file_without_exactly_one_service_is_refused_with_its_count(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(EXAMPLE.read_text() + "---\n" + EXAMPLE.read_text())
    with pytest.raises(ExampleFailed, match="holds 2 LLMServices"):
        read_example(path)
    with pytest.raises(ExampleFailed, match="cannot be read"):
        read_example(tmp_path / "none.yaml")


def test_the_service_whose_load_shifts_is_the_example_with_another_model_and_name() -> None:
    example, changed = read_example(), shift_service(read_example(), MODEL)
    assert changed["metadata"].pop("name") != example["metadata"].pop("name")
    assert changed["spec"].pop("model")["source"] == "file:///models/other"
    example["spec"].pop("model")
    assert changed == example
