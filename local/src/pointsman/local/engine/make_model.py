"""Writes a random Llama with its tokenizer: ``python -m pointsman.local.engine.make_model RECIPE_JSON FOLDER``.

Runs in the engine environment, without torch or vLLM. One byte of text is one token, so a test knows the length of its
prompts. Rows of the output matrix of everything but printable ASCII are zero: a greedy answer is readable text, streams
one character a token, and ends only at its token limit or at what the request says.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY: Final = 320  # 256 bytes and the special tokens, rounded up to a multiple of 64
CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)


def tokenizer() -> Tokenizer:
    """One token a byte, ids in the order of the byte-level alphabet, then the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return made


def weights(recipe: dict[str, Any], printable: list[int]) -> dict[str, NDArray[np.float32]]:
    """Normal weights of the recipe's standard deviation, in the names of transformers' LlamaForCausalLM."""
    generator = np.random.Generator(np.random.PCG64(recipe["seed"]))
    hidden, middle = recipe["hidden_size"], recipe["intermediate_size"]
    head = hidden // recipe["num_attention_heads"]
    kv = head * recipe["num_key_value_heads"]

    def normal(*shape: int) -> NDArray[np.float32]:
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(recipe["initializer_range"])

    tensors = {"model.embed_tokens.weight": normal(VOCABULARY, hidden)}
    for layer in range(recipe["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.self_attn.q_proj.weight": normal(hidden, hidden),
            f"{prefix}.self_attn.k_proj.weight": normal(kv, hidden),
            f"{prefix}.self_attn.v_proj.weight": normal(kv, hidden),
            f"{prefix}.self_attn.o_proj.weight": normal(hidden, hidden),
            f"{prefix}.mlp.gate_proj.weight": normal(middle, hidden),
            f"{prefix}.mlp.up_proj.weight": normal(middle, hidden),
            f"{prefix}.mlp.down_proj.weight": normal(hidden, middle),
            f"{prefix}.input_layernorm.weight": np.ones(hidden, np.float32),
            f"{prefix}.post_attention_layernorm.weight": np.ones(hidden, np.float32),
        }
    output = np.zeros((VOCABULARY, hidden), np.float32)
    output[printable] = normal(len(printable), hidden)
    return tensors | {"model.norm.weight": np.ones(hidden, np.float32), "lm_head.weight": output}


def make(recipe: dict[str, Any], folder: Path) -> None:
    """Write the model to ``folder``, which appears whole or not at all."""
    made = tokenizer()
    printable = made.encode("".join(chr(code) for code in range(0x20, 0x7F))).ids
    ids = {text: made.token_to_id(text) for text in SPECIAL}
    config = {key: value for key, value in recipe.items() if key != "seed"} | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "dtype": "float32",
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": recipe["max_position_embeddings"],
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        partial.chmod(0o755)
        save_file(weights(recipe, printable), partial / "model.safetensors", metadata={"format": "pt"})
        (partial / "model.safetensors").chmod(0o644)
        made.save(str(partial / "tokenizer.json"))
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (partial / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")
        try:
            partial.rename(folder)
        except OSError:  # another process made it meanwhile: equal bytes
            if not (folder / "config.json").exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


if __name__ == "__main__":
    make(json.loads(sys.argv[1]), Path(sys.argv[2]))
