"""Small Llama models of every kind that the elastic engine computes, made on the spot. Runs in the engine environment.

    python -m engine.elastic.models FOLDER

Their weights are drawn from a wide range, so that the two best logits lie far apart.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "grouped-tied-llama3-sharded": {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_parameters": LLAMA3},
    "plain": {"num_key_value_heads": 8, "tie_word_embeddings": False},
    "linear": {
        "num_key_value_heads": 1, "tie_word_embeddings": False, "head_dim": 32,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 20_000.0, "factor": 4.0},
    },
}  # fmt: skip


def make(folder: Path) -> None:
    """One folder for each of `KINDS`."""
    for name, fields in KINDS.items():
        torch.manual_seed(1)
        config = LlamaConfig(
            vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=8,
            max_position_embeddings=4096, initializer_range=0.3, **fields,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder / name, max_shard_size="400KB" if "sharded" in name else "1GB")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
    print(json.dumps(sorted(KINDS)))
