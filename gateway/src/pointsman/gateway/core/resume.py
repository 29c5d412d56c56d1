"""Resuming a stream whose worker died, at another worker: the client has the tokens so far and gets the rest.

Two ways, both with the same sampling and the same limits, counted from where the stream broke:

* **prompt**: what was sampled becomes part of the prompt of a completions request. Any worker can do that.
* **repeat**: the worker gets the request once more with the tokens so far, feeds them through its endpoint and goes on
  (`pointsman.api.protocol.resume`). Parsers, grammars, stop strings and several choices need this way; a `Transcript`
  knows which events of the repeated stream the client has.

`why_not` names what cannot be resumed without changing the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from pointsman.api.protocol.resume import RESUME_FIELD
from pointsman.gateway.core.requests import ValidatedRequest

COMPLETION_DEFAULT_MAX_TOKENS: Final = 16
"""``max_tokens`` of a completion that names none: OpenAI's and vLLM's default."""

# What an engine reckons from the tokens of *its* answer: with them in the prompt it would reckon anew.
_COUNTS_THE_ANSWER: Final = (
    "presence_penalty", "frequency_penalty", "length_penalty", "bad_words", "repetition_detection",
    "thinking_token_budget", "vllm_xargs",
)  # fmt: skip
# What begins with the first token of an answer: with the tokens so far in the prompt it would begin anew.
_NEEDS_THE_ANSWER: Final = ("stop", "response_format", "structured_outputs")
_ABSENT: Final[tuple[Any, ...]] = (None, "", [], {}, {"type": "text"})
# Of verbatim bodies: the engine does not tell the sampled tokens, or tells the prompt's as well.
_NOT_REPEATED: Final = ("echo", "prompt_logprobs")


class Resumption(StrEnum):
    """How a broken stream is resumed; see the module."""

    PROMPT = "prompt"
    REPEAT = "repeat"


def why_not(request: ValidatedRequest) -> str | None:
    """The field because of which a broken stream of ``request`` cannot be resumed; None: it can.

    Penalties count the answer's tokens. A sampled answer (temperature above 0) goes on as one of its possible
    continuations, with a ``seed`` too.
    """
    for field_name in _COUNTS_THE_ANSWER:
        value = request.body.get(field_name)
        if value not in (None, 0, "", [], {}):
            return field_name
    for field_name in _NOT_REPEATED:
        if request.body.get(field_name) not in (None, False):
            return field_name
    return None


def way(request: ValidatedRequest, *, verbatim: bool) -> Resumption | None:
    """How a broken stream of one prompt of ``request`` is resumed; None: not at all."""
    if why_not(request) is not None or (verbatim and len(request.prompts) > 1):
        return None
    if (
        verbatim
        or request.n > 1
        or any(request.body.get(field_name) not in _ABSENT for field_name in _NEEDS_THE_ANSWER)
    ):
        return Resumption.REPEAT
    return Resumption.PROMPT


@dataclass(slots=True)
class _Choice:
    """What came of one choice. ``quiet``: events before its first token; ``…_ahead``: of these, not repeated yet."""

    chunks: list[tuple[int, ...]] = field(default_factory=list)
    quiet: int = 0
    finish_reason: str | None = None
    quiet_ahead: int = 0
    chunks_ahead: int = 0
    repeated: bool = False  # it had ended before the stream broke


class Transcript:
    """What each of ``choices`` brought so far: enough to have another worker repeat it and go on."""

    def __init__(self, choices: int = 1) -> None:
        self._choices = [_Choice() for _ in range(choices)]
        self._hidden = False

    @property
    def whole(self) -> bool:
        """Every choice has ended."""
        return all(choice.finish_reason is not None for choice in self._choices)

    def add(self, index: int, token_ids: Sequence[int] | None, finish_reason: str | None, *, content: bool) -> bool:
        """Note one event of choice ``index``; False: a resumed stream repeats it, and the client has it.

        ``token_ids`` is None where the engine does not tell them; ``content``: the event has text or more.
        Raises ValueError for a repeated event that differs.
        """
        if not 0 <= index < len(self._choices):
            raise ValueError(f"choice {index} of {len(self._choices)}")
        choice = self._choices[index]
        if choice.repeated:
            return False
        if not token_ids and finish_reason is None:
            if choice.quiet_ahead:
                choice.quiet_ahead -= 1
                return False
            choice.quiet += not choice.chunks
            self._hidden = self._hidden or (content and token_ids is None)
            return True
        if choice.chunks_ahead:
            expected = choice.chunks[-choice.chunks_ahead]
            if tuple(token_ids or ()) != expected:
                raise ValueError(f"choice {index} is repeated with {list(token_ids or ())}, not {list(expected)}")
            choice.chunks_ahead -= 1
            return False
        if token_ids:
            choice.chunks.append(tuple(token_ids))
        choice.finish_reason = finish_reason
        return True

    def repeat(self) -> dict[str, Any]:
        """What the next worker is told; from now on its events are compared. Raises ValueError if it cannot be told."""
        if self._hidden:
            raise ValueError("the engine did not report its token ids")
        for choice in self._choices:
            choice.repeated = choice.finish_reason is not None
            choice.chunks_ahead, choice.quiet_ahead = len(choice.chunks), choice.quiet
        return {
            "choices": [{"chunks": choice.chunks, "finishReason": choice.finish_reason} for choice in self._choices]
        }


def repeated_body(body: bytes, transcript: Transcript) -> bytes:
    """``body`` once more, with what its stream brought so far. Raises ValueError."""
    asked: dict[str, Any] = msgspec.json.decode(body)
    asked[RESUME_FIELD] = transcript.repeat()
    return msgspec.json.encode(asked)


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
