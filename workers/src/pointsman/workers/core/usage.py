"""What the engine's own answer says of a prompt that it tokenised itself."""

import re
from typing import Final, NamedTuple

# Keys of the answer's own: within a text a quote would be escaped, and stand behind a backslash.
_PROMPT: Final = re.compile(rb'"prompt_tokens":\s*(\d+)')
_CACHED: Final = re.compile(rb'"cached_tokens":\s*(\d+)')


class PromptUsage(NamedTuple):
    """Tokens of a prompt."""

    prompt_tokens: int
    new_tokens: int  # of them, not cached here


def prompt_usage(chunk: bytes, block_size: int) -> PromptUsage | None:
    """What a piece of an answer tells; None: nothing, or not how many were cached.

    vLLM tells that with ``--enable-prompt-tokens-details`` only. Without, it is known of prompts within one KV block:
    only whole blocks are cached, and the last token of a prompt is always computed.
    """
    found = _PROMPT.search(chunk)
    if found is None:
        return None
    tokens, cached = int(found[1]), _CACHED.search(chunk)
    if cached is not None:
        return PromptUsage(tokens, max(tokens - int(cached[1]), 0))
    return PromptUsage(tokens, tokens) if tokens <= block_size else None


def with_cached_tokens(chunk: bytes, cached_tokens: int) -> bytes:
    """A piece of an answer in which ``cached_tokens`` of the prompt were cached, whatever the engine says of itself.

    To an engine, KV that was pulled into its prefix cache is cached; to the client, what a prefill worker computed is
    not. Nothing is added where the engine says nothing.
    """
    return _CACHED.sub(b'"cached_tokens":%d' % cached_tokens, chunk) if b'"prompt_tokens_details"' in chunk else chunk
