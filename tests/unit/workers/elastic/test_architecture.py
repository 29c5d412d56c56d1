"""Which models the elastic engine computes, and over how many GPUs it can cut them."""

from typing import Any

import pytest

from pointsman.workers.elastic.engine.architecture import UnsupportedModel, shape_of

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 128, "intermediate_size": 258,
    "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "architectures is ['Qwen2ForCausalLM']; the elastic engine computes"),
        ({"architectures": None}, "architectures is ['none']"),
        ({"attention_bias": True}, "attention_bias is True; the elastic engine computes False only"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; the elastic engine computes 'silu' only"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is set"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type is 'yarn'; the elastic engine computes default"),
    ],
)
def test_a_model_that_the_engine_does_not_know_is_refused_by_name(more: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        shape_of(CONFIG | more)
    assert words in str(refused.value)


def test_a_model_is_cut_by_its_heads_and_the_width_of_its_mlp() -> None:
    whole = shape_of(CONFIG)
    half = whole.shard(2)
    assert (half.heads, half.kv_heads, half.intermediate) == (4, 1, 129)
    assert (half.head_size, half.hidden, half.layers, half.vocabulary) == (16, 128, 3, 512)
    assert whole.shard(1) == whole


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (3, "num_attention_heads is 8, which tensorParallel, 3, does not divide"),
        (4, "num_key_value_heads is 2, which tensorParallel, 4, does not divide"),
    ],
)
def test_a_model_is_not_cut_through_a_head(width: int, words: str) -> None:
    with pytest.raises(UnsupportedModel, match=words):
        shape_of(CONFIG).shard(width)


def test_a_model_is_not_cut_into_unequal_mlps() -> None:
    with pytest.raises(UnsupportedModel, match="intermediate_size is 258, which tensorParallel, 4, does not divide"):
        shape_of(CONFIG | {"num_key_value_heads": 8}).shard(4)
