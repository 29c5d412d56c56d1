"""Writes a random Llama with its tokenizer: ``python -m pointsman.local.engine.make_model RECIPE_JSON FOLDER``.

A recipe with ``vision`` gives a LLaVA: the same Llama behind a random CLIP vision tower.

Runs in the engine environment, without torch or vLLM. One byte of text is one token, so a test knows the length of its
prompts. Rows of the output matrix of everything but printable ASCII are zero: a greedy answer is readable text, streams
one character a token, and ends only at its token limit or at what the request says.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
IMAGE: Final = "<image>"  # of a model with vision: stands for the image's tokens
VOCABULARY: Final = 320  # 256 bytes and the special tokens, rounded up to a multiple of 64
CHAT_TEMPLATE: Final = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)


def tokenizer(special: Sequence[str] = SPECIAL) -> Tokenizer:
    """One token a byte, ids in the order of the byte-level alphabet, then the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
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


def vision_weights(vision: dict[str, Any], hidden: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """Normal weights of CLIP's vision tower and of LLaVA's projector to the ``hidden`` width of the language model."""
    generator = np.random.Generator(np.random.PCG64(seed + 1))
    width, middle, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    positions = (vision["image_size"] // patch) ** 2 + 1  # the patches and the class token

    def normal(*shape: int) -> NDArray[np.float32]:
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(vision["initializer_range"])

    def linear(name: str, outputs: int, inputs: int) -> dict[str, NDArray[np.float32]]:
        return {f"{name}.weight": normal(outputs, inputs), f"{name}.bias": normal(outputs)}

    def norm(name: str) -> dict[str, NDArray[np.float32]]:
        return {f"{name}.weight": np.ones(width, np.float32), f"{name}.bias": np.zeros(width, np.float32)}

    tower = "vision_tower.vision_model"
    tensors = {
        f"{tower}.embeddings.class_embedding": normal(width),
        f"{tower}.embeddings.patch_embedding.weight": normal(width, 3, patch, patch),
        f"{tower}.embeddings.position_embedding.weight": normal(positions, width),
    } | norm(f"{tower}.pre_layrnorm")
    for number in range(vision["num_hidden_layers"]):
        layer = f"{tower}.encoder.layers.{number}"
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors |= linear(f"{layer}.self_attn.{projection}", width, width)
        tensors |= linear(f"{layer}.mlp.fc1", middle, width) | linear(f"{layer}.mlp.fc2", width, middle)
        tensors |= norm(f"{layer}.layer_norm1") | norm(f"{layer}.layer_norm2")
    tensors |= norm(f"{tower}.post_layernorm")
    tensors |= linear("multi_modal_projector.linear_1", hidden, width)
    return tensors | linear("multi_modal_projector.linear_2", hidden, hidden)


def with_vision(config: dict[str, Any], vision: dict[str, Any], image_token: int) -> dict[str, Any]:
    """The configuration of a LLaVA whose language model has ``config``."""
    tower = {"model_type": "clip_vision_model", "num_channels": 3, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": config,
        "vision_config": {key: value for key, value in vision.items() if key != "initializer_range"} | tower,
        "image_token_index": image_token,
        "image_seq_length": (vision["image_size"] // vision["patch_size"]) ** 2,
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": True,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": config["eos_token_id"],
        "dtype": config["dtype"],
        "tie_word_embeddings": False,
    }


def image_processor(vision: dict[str, Any]) -> dict[str, Any]:
    """CLIP's own, for images of the tower's size."""
    size = vision["image_size"]
    return {
        "image_processor_type": "CLIPImageProcessor",
        "processor_class": "LlavaProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": size},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }


def make(recipe: dict[str, Any], folder: Path) -> None:
    """Write the model to ``folder``, which appears whole or not at all."""
    vision = recipe.get("vision")
    special = (*SPECIAL, IMAGE) if vision else SPECIAL
    made = tokenizer(special)
    printable = made.encode("".join(chr(code) for code in range(0x20, 0x7F))).ids
    ids: dict[str, Any] = {text: made.token_to_id(text) for text in special}
    config = {key: value for key, value in recipe.items() if key not in ("seed", "vision")} | {
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
    tensors = weights(recipe, printable)
    more: dict[str, Any] = {}
    if vision:
        config = with_vision(config, vision, ids[IMAGE])
        tensors = {f"language_model.{name}": value for name, value in tensors.items()}
        tensors |= vision_weights(vision, recipe["hidden_size"], recipe["seed"])
        more["preprocessor_config.json"] = image_processor(vision)
        more["processor_config.json"] = {
            "processor_class": "LlavaProcessor",
            "patch_size": vision["patch_size"],
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
            "image_token": IMAGE,
        }
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        partial.chmod(0o755)
        save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
        (partial / "model.safetensors").chmod(0o644)
        made.save(str(partial / "tokenizer.json"))
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (partial / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n")
        for name, content in more.items():
            (partial / name).write_text(json.dumps(content, indent=2) + "\n")
        try:
            partial.rename(folder)
        except OSError:  # another process made it meanwhile: equal bytes
            if not (folder / "config.json").exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


if __name__ == "__main__":
    make(json.loads(sys.argv[1]), Path(sys.argv[2]))
