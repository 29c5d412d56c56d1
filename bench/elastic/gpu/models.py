"""Models of this benchmark: of Llama 3.1 8B's shape with drawn weights, for times, and settings that load one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.rows import data
from pointsman.workers.elastic.instance.settings import InstanceSettings


@dataclass(frozen=True)
class Sizes:
    """What is measured: see ``bench/data/gpu-models.yaml``."""

    model: dict[str, Any]
    lengths: list[int]
    batches: list[int]
    context: int
    longest: int
    repeats: int

    @classmethod
    def on(cls, device: str) -> "Sizes":
        """Those of a GPU, or smaller ones with which the benchmark itself is tried on a CPU."""
        return cls(**data("gpu-models")[device])


def make(folder: Path, sizes: Sizes, device: str) -> Any:
    """transformers' model with weights that are drawn now, in bfloat16 on ``device``; saved into ``folder``."""
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**sizes.model)).eval()
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder, max_shard_size="4GB")
    return model


def settings_of(folder: Path, device: str, dtype: str, slots: int | None) -> InstanceSettings:
    """Of an instance as the operator renders it."""
    return InstanceSettings.model_validate(
        {"namespace": "bench", "service": "bench", "service_uid": "bench", "worker": "i-0"}
        | {"control_token": "a-token-of-the-benchmark", "model": str(folder), "dtype": dtype}
        | {"gpus": int(device == "cuda"), "slots": slots, "threads": torch.get_num_threads()}
    )
