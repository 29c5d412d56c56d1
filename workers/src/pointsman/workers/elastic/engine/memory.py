"""How much of a GPU's memory a prefill takes beside weights and KV, and so how many tokens of KV it can keep. Pure.

The shares of a prefill were measured with Llama 3.1 8B's shape: docs/reports/elastic-gpu.md.
"""

from collections.abc import Sequence
from typing import Final

from pointsman.serving.elastic.iterations import Prompt
from pointsman.workers.elastic.engine.architecture import Shape

GPU_SHARE: Final = 0.9
"""Of a GPU's memory, for weights and KV at most; the rest is for computing and for what others keep there."""
PIECE_TOKENS: Final = 8192
"""Layers compute what each token needs alone for so many tokens at once, because an MLP's numbers are many."""
BATCH_TOKENS: Final = 32_768
"""Prompts of a prefill are computed together up to so many tokens a member; a GPU is busy with fewer."""


def prefill_bytes(shape: Shape, number_bytes: int, tokens: int) -> int:
    """What computing so many tokens takes at its peak, beside weights and KV."""
    heads, kv_heads = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    of_all = 5 * shape.hidden + 4 * heads + 8 * kv_heads
    of_piece = 3 * shape.intermediate + 4 * shape.hidden
    return number_bytes * (tokens * of_all + min(tokens, PIECE_TOKENS) * of_piece)


def token_bytes(shape: Shape, number_bytes: int) -> int:
    """KV of one token."""
    return 2 * shape.layers * shape.kv_heads * shape.head_size * number_bytes


def slots_beside(shape: Shape, number_bytes: int, free: int, total: int) -> int:
    """Tokens of KV that fit into ``free`` of ``total`` bytes, beside the longest prefill of as many tokens at most.

    Below 1 if there is no room for any.
    """
    longest = max(shape.max_length, BATCH_TOKENS)
    kept = int(free - (1 - GPU_SHARE) * total) // token_bytes(shape, number_bytes)
    of_longest = (free - prefill_bytes(shape, number_bytes, longest)) // token_bytes(shape, number_bytes)
    if of_longest >= longest:
        return min(kept, of_longest)
    fixed = prefill_bytes(shape, number_bytes, PIECE_TOKENS) - prefill_bytes(shape, number_bytes, 0)
    each = prefill_bytes(shape, number_bytes, longest) - prefill_bytes(shape, number_bytes, longest - 1)
    fixed -= PIECE_TOKENS * each
    return min(kept, (free - fixed) // (token_bytes(shape, number_bytes) + each))


def batches(prompts: Sequence[Prompt], members: int) -> list[list[Prompt]]:
    """``prompts`` in their order, as many together as `BATCH_TOKENS` of each member allow; a longer one is alone."""
    found: list[list[Prompt]] = []
    tokens = 0
    for prompt in prompts:
        tokens += len(prompt.token_ids)
        if not found or tokens > members * BATCH_TOKENS:
            found.append([])
            tokens = len(prompt.token_ids)
        found[-1].append(prompt)
    return found
