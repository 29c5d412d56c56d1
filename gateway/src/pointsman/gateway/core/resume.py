"""Going on with a stream whose worker died: what was sampled becomes part of the prompt of another worker.

The client has the tokens so far, so the rest must be what the first worker would have sent: the same sampling, the same
limits, counted from where the stream broke. `why_not` names what cannot be continued without changing the answer.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pointsman.gateway.core.requests import Ask

COMPLETION_DEFAULT_MAX_TOKENS: Final = 16
"""``max_tokens`` of a completion that names none: OpenAI's and vLLM's default."""

# What an engine reckons from the tokens of *its* answer: with them in the prompt it would reckon anew.
_COUNTS_THE_ANSWER: Final = (
    "presence_penalty", "frequency_penalty", "length_penalty", "stop", "response_format", "structured_outputs",
    "repetition_detection", "vllm_xargs",
)  # fmt: skip


def why_not(ask: Ask) -> str | None:
    """The field because of which a broken stream of ``ask`` cannot go on elsewhere; None: it can.

    Penalties count the answer's tokens, a grammar has a state, and a stop string may lie across the break. A sampled
    answer (temperature above 0) goes on as one of its possible continuations, with a ``seed`` too.
    """
    for field in _COUNTS_THE_ANSWER:
        value = ask.body.get(field)
        if value not in (None, 0, "", [], {}, {"type": "text"}):
            return field
    return None


def continued_body(body: bytes, sampled: Sequence[int]) -> bytes:
    """The completions body that brings the rest of an answer of which ``sampled`` are the tokens so far.

    Raises ValueError when nothing may follow any more.
    """
    asked: dict[str, Any] = msgspec.json.decode(body)
    left = asked.get("max_tokens", COMPLETION_DEFAULT_MAX_TOKENS) - len(sampled)
    if left < 1:
        raise ValueError(f"all {len(sampled)} tokens were sampled already")
    asked["prompt"] = [*asked["prompt"], *sampled]
    asked["max_tokens"] = left
    if asked.get("min_tokens"):
        asked["min_tokens"] = max(asked["min_tokens"] - len(sampled), 0)
    return msgspec.json.encode(asked)


def whole_usage(usage: bytes, carried: int) -> bytes:
    """The usage of the whole answer, from the engine's JSON whose prompt holds ``carried`` tokens of the answer."""
    if not carried or usage in (b"", b"null"):
        return usage
    counted: dict[str, Any] = msgspec.json.decode(usage)
    counted["prompt_tokens"] -= carried
    counted["completion_tokens"] = (counted.get("completion_tokens") or 0) + carried
    return msgspec.json.encode(counted)
