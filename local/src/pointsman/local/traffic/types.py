"""What the traffic library sends and what it writes down: plain frozen values, no I/O."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise


class Api(StrEnum):
    """The OpenAI endpoint a prompt goes to."""

    CHAT = "chat"  # /v1/chat/completions
    COMPLETION = "completion"  # /v1/completions


class PrefillPath(StrEnum):
    """Where the prompt's KV was computed, as the worker that answered says in ``X-Pointsman-Prefill``."""

    LOCAL = "local"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to send. Either ``text`` or ``token_ids`` is set (a chat prompt is always text).

    ``ignore_eos`` makes the answer ``max_tokens`` long whatever the model says (vLLM's extension). ``images`` are the
    URLs of a chat's images, which come before its text.
    """

    index: int
    api: Api
    stream: bool
    max_tokens: int
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    ignore_eos: bool = False
    images: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.text is None) == (self.token_ids is None):
            raise ValueError(f"prompt {self.index}: exactly one of text and token_ids must be set")
        if self.api is Api.CHAT and self.text is None:
            raise ValueError(f"prompt {self.index}: a chat prompt is text, not token ids")
        if self.images and self.api is not Api.CHAT:
            raise ValueError(f"prompt {self.index}: only a chat has images")
        if self.max_tokens < 1:
            raise ValueError(f"prompt {self.index}: max_tokens is {self.max_tokens}: it must be 1 or more")


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one request. Unknown is None, never 0.

    ``started_s`` is on the monotonic clock of the sender; ``token_seconds`` are the arrival times of the answer's
    token-bearing chunks, counted from ``started_s`` (empty when the answer was not streamed). ``error`` is None if and
    only if the request counts as served: status 200, an end of its own (``stop`` or ``length``) and at least one token.
    ``left``: the sender had enough and hung up in the middle of a healthy stream, which counts as served too.
    """

    prompt: Prompt
    started_s: float
    total_seconds: float
    status: int | None = None
    error: str | None = None
    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    token_seconds: tuple[float, ...] = ()
    path: PrefillPath | None = None
    path_reason: str | None = None
    worker: str | None = None
    prefill_worker: str | None = None
    left: bool = False

    @property
    def served(self) -> bool:
        """The client got a whole, regular answer."""
        return self.error is None

    @property
    def ttft_seconds(self) -> float | None:
        """Time to the first token; None when nothing was streamed."""
        return self.token_seconds[0] if self.token_seconds else None

    @property
    def itl_seconds(self) -> tuple[float, ...]:
        """Every gap between consecutive token-bearing chunks."""
        return tuple(later - earlier for earlier, later in pairwise(self.token_seconds))

    def answers_like(self, other: "Record") -> bool:
        """Token-exact: the same tokens (or, where a side does not report ids, the same text) and the same end."""
        if not (self.served and other.served) or self.left or other.left or self.finish_reason != other.finish_reason:
            return False
        if self.token_ids is not None and other.token_ids is not None:
            return self.token_ids == other.token_ids
        return self.text == other.text
