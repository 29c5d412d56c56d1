"""What a request costs at a decode worker, in tokens of prompt: the gateway's default router, and the simulator's."""

from typing import Final

CONTEXT_WEIGHT: Final = 0.25
"""What a token of running context costs beside a token of prompt to compute.

A prompt's token is computed once, a context's is read in every step. For an answer of some hundred tokens that takes a
quarter of the time (Llama 3.1 8B on an A100: 0.09 µs a step and token of KV, 345 steps, beside 93 µs of prefill). Where
it weighs less, those that have a prefix cached are given more and more long contexts, and their streams miss their time
per token.
"""

KV_PRESSURE_FROM: Final = 0.9
"""Above this share of used KV blocks a new request is likely to preempt another, whose prompt is computed again."""


def token_load(
    *,
    prompt_tokens: int,
    cached_tokens: int,
    pending_tokens: float,
    prefilled_elsewhere: bool,
    context_tokens: float,
    kv_usage: float,
) -> float:
    """Tokens of work between this request and its answer, and of harm to those beside it.

    ``pending_tokens``: of prompts sent there that have no first token yet, which is work before this one, or context to
    come where prefill workers compute them (``prefilled_elsewhere``); ``context_tokens``: prompt and output of what
    streams from there; ``kv_usage``: 0..1.
    """
    pending_weight = CONTEXT_WEIGHT if prefilled_elsewhere else 1.0
    pressure = max(kv_usage - KV_PRESSURE_FROM, 0.0) / (1 - KV_PRESSURE_FROM)
    new_tokens = max(prompt_tokens - cached_tokens, 0)
    waiting = pending_weight * pending_tokens
    return new_tokens + waiting + CONTEXT_WEIGHT * context_tokens + pressure * prompt_tokens
