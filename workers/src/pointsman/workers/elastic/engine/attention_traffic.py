"""What members of a group have to send each other for attention. Pure.

The transport counts what a member really sends to other instances. What it sent beyond this is KV that moved.
"""

from collections.abc import Sequence

from pointsman.serving.elastic.iterations import Prompt, Step
from pointsman.workers.elastic.engine.architecture import Shape


def attention_bytes(
    shape: Shape, number_bytes: int, prompts: Sequence[Prompt], steps: Sequence[Step], rank: int, size: int
) -> int:
    """Bytes that member ``rank`` of ``size`` sends for the attention of an iteration.

    ``shape``: of the model, or of a shard; ``number_bytes``: of one number of queries, keys and values. In a prefill,
    a member passes on each stripe but the last that comes. In a decode step, a master sends queries to the holders of
    KV, and a holder sends back outputs and log-sum-exps, which are float32.
    """
    passed = sum(
        len(range((rank - hop) % size, len(prompt.token_ids), size)) for prompt in prompts for hop in range(size - 1)
    )
    queries = sum(holder != rank for step in steps if step.master == rank for holder in step.holders)
    answers = sum(step.master != rank and rank in step.holders for step in steps)
    in_a_layer = (
        passed * 2 * shape.kv_heads * shape.head_size * number_bytes
        + queries * shape.heads * shape.head_size * number_bytes
        + answers * shape.heads * (shape.head_size + 1) * 4
    )
    return shape.layers * in_a_layer
