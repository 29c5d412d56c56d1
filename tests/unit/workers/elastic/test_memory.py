"""What a prefill takes of a GPU's memory, and how much KV fits beside it."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.elastic.iterations import Prompt
from pointsman.workers.elastic.engine.architecture import Shape, shape_of
from pointsman.workers.elastic.engine.memory import (
    BATCH_TOKENS,
    GPU_SHARE,
    PIECE_TOKENS,
    batches,
    prefill_bytes,
    slots_beside,
    token_bytes,
)

GIB = 2**30
LLAMA = shape_of(
    {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
    }
)  # fmt: skip
MEASURED_GIB = {2048: 0.251, 8192: 1.005, 32_768: 1.864, 131_072: 6.581}
"""Of prefills of so many tokens of this model on an H200."""


@pytest.mark.parametrize(("tokens", "gib"), MEASURED_GIB.items())
def test_a_prefill_takes_no_more_than_is_kept_for_it(tokens: int, gib: float) -> None:
    assert gib <= prefill_bytes(LLAMA, 2, tokens) / GIB <= 2 * gib


@given(
    total=st.integers(2 * GIB, 200 * GIB),
    used=st.floats(0, 1),
    max_length=st.sampled_from([2048, 8192, 131_072]),
    layers=st.integers(1, 80),
)
def test_kv_and_the_longest_prefill_that_it_can_hold_fit_beside_the_weights(
    total: int, used: float, max_length: int, layers: int
) -> None:
    shape: Shape = replace(LLAMA, max_length=max_length, layers=layers)
    free = int(total * (1 - used))
    slots = slots_beside(shape, 2, free, total)
    if slots < 1:
        return
    longest = min(slots, max(max_length, BATCH_TOKENS))
    assert slots * token_bytes(shape, 2) + prefill_bytes(shape, 2, longest) <= free
    assert slots * token_bytes(shape, 2) <= free - (1 - GPU_SHARE) * total + 1


def test_a_prompt_of_the_models_full_length_fits_into_a_large_gpu_and_a_small_one_keeps_what_it_can() -> None:
    large, small = slots_beside(LLAMA, 2, 63 * GIB, 79 * GIB), slots_beside(LLAMA, 2, 7 * GIB, 24 * GIB)
    assert large > 3 * LLAMA.max_length
    assert PIECE_TOKENS < small < LLAMA.max_length
    assert slots_beside(LLAMA, 2, GIB, 24 * GIB) < 1


@given(st.lists(st.integers(1, 2 * BATCH_TOKENS), max_size=12), st.integers(1, 3))
def test_prompts_are_computed_together_up_to_a_number_of_tokens_and_in_their_order(
    lengths: list[int], members: int
) -> None:
    prompts = [Prompt(str(at), (0,) * length, ((0, length),)) for at, length in enumerate(lengths)]
    found, most = batches(prompts, members), members * BATCH_TOKENS
    assert [each for batch in found for each in batch] == prompts
    tokens = [sum(len(each.token_ids) for each in batch) for batch in found]
    assert all(count <= most or len(batch) == 1 for count, batch in zip(tokens, found, strict=True))
    assert all(one + other > most for one, other in pairwise(tokens))
