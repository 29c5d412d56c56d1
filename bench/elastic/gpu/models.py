"""Models of this benchmark: of Llama 3.1 8B's shape with drawn weights, for times, and settings that load one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pointsman.workers.elastic.instance.settings import InstanceSettings

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """What is measured: ``lengths`` of prompts, ``batches`` of decode steps with ``context`` tokens each."""

    model: dict[str, Any]
    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    context: int
    longest: int
    repeats: int


_SAME = {"rope_parameters": LLAMA3, "tie_word_embeddings": False}
LARGE = Sizes(
    {
        "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072, **_SAME,
    },
    (2048, 8192, 32_768), (1, 16, 64), 1024, 131_072, 3,
)  # fmt: skip
TINY = Sizes(
    {
        "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
        "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 8192, **_SAME,
    },
    (64, 256, 1024), (1, 4), 64, 2048, 2,
)  # fmt: skip


def sizes_on(device: str) -> Sizes:
    """Those of a GPU, or smaller ones with which the benchmark itself is tried on a CPU."""
    return LARGE if device == "cuda" else TINY


def make(folder: Path, sizes: Sizes, device: str) -> Any:
    """transformers' model with weights that are drawn now, in bfloat16 on ``device``; saved into ``folder``."""
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(LlamaConfig(**sizes.model)).eval()
    finally:
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
