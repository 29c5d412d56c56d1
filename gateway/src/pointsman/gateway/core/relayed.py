"""Endpoints whose bodies and answers the gateway passes on without rewriting them, and what it reads of them.

The engine's other generating endpoints (OpenAI's Responses, Anthropic's Messages) and those that compute something else
(embeddings, scores, tokens). Nothing of them may stay on a worker: the next request goes to another one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from pointsman.gateway.core.json_body import decode_body
from pointsman.gateway.core.relayed_media import refuse_media
from pointsman.gateway.core.requests import refuse, refused_fields, served
from pointsman.gateway.errors import ModelNotFound, RequestInvalid


class RelayedEndpoint(StrEnum):
    """An endpoint of the engine; the value is the metric label."""

    RESPONSES = "responses"
    MESSAGES = "messages"
    MESSAGES_COUNT = "messages-count-tokens"
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    SCORE = "score"
    TOKENIZE = "tokenize"
    DETOKENIZE = "detokenize"

    @property
    def path(self) -> str:
        """Path at the engine and at the gateway."""
        return PATHS[self]

    @property
    def generates(self) -> bool:
        """Whether it generates text: then it is a request in the sense of flow control and of the planner."""
        return self in (RelayedEndpoint.RESPONSES, RelayedEndpoint.MESSAGES)

    @property
    def names_model(self) -> bool:
        """Whether a request must name the model; the engine has one only, so the small ones need not."""
        return self not in (RelayedEndpoint.TOKENIZE, RelayedEndpoint.DETOKENIZE)


PATHS: Final[Mapping[RelayedEndpoint, str]] = MappingProxyType(
    {
        RelayedEndpoint.RESPONSES: "/v1/responses",
        RelayedEndpoint.MESSAGES: "/v1/messages",
        RelayedEndpoint.MESSAGES_COUNT: "/v1/messages/count_tokens",
        RelayedEndpoint.EMBEDDINGS: "/v1/embeddings",
        RelayedEndpoint.RERANK: "/v1/rerank",
        RelayedEndpoint.SCORE: "/v1/score",
        RelayedEndpoint.TOKENIZE: "/tokenize",
        RelayedEndpoint.DETOKENIZE: "/detokenize",
    }
)

STATEFUL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "previous_response_id": "responses are not stored; send the whole conversation in 'input'",
        "conversation": "conversations are not stored; send the whole conversation in 'input'",
        "background": "responses are not stored; wait for the answer or stream it",
    }
)
"""Fields of a Responses request that need an earlier answer or a later question at the same worker."""

_FAILURE_EVENTS: Final = frozenset({b"error", b"response.failed"})
_CHARACTERS_PER_TOKEN: Final = 4
T = TypeVar("T")
_NOTHING: Final = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class RelayedRequest:
    """A checked request: the ``body`` for the engine, and an estimate of its prompt."""

    body: bytes
    stream: bool
    prompt_tokens: int
    adapter: str | None  # the LoRA adapter asked for; None: the model itself


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of an answer, as the engine counts them."""

    prompt_tokens: int
    output_tokens: int


def read_relayed(
    endpoint: RelayedEndpoint,
    data: bytes,
    served_name: str,
    adapters: Collection[str],
    max_model_len: int,
    *,
    trusts_media_options: bool = False,
) -> RelayedRequest:
    """The request in ``data``. Raises RequestInvalid or ModelNotFound."""
    body = decode_body(data)
    if not isinstance(body, dict):
        raise RequestInvalid("The request body must be a JSON object.")
    refused = refused_fields(trusts_media_options=trusts_media_options)
    if endpoint is RelayedEndpoint.RESPONSES:
        refused = {**refused, **STATEFUL}
    refuse(body, refused)
    refuse_media(body)
    adapter = _adapter(endpoint, body, served_name, adapters)
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise RequestInvalid(f"'stream' is {stream!r}; it must be true or false.", param="stream")
    if endpoint is RelayedEndpoint.RESPONSES and body.get("store"):
        data = msgspec.json.encode(body | {"store": False})
    prompt_tokens = max(len(data) // _CHARACTERS_PER_TOKEN, 1)
    if endpoint.generates:  # one prompt, which may hold images; the others may hold many texts
        prompt_tokens = min(prompt_tokens, max_model_len)
    return RelayedRequest(data, stream and endpoint.generates, prompt_tokens, adapter)


def _adapter(
    endpoint: RelayedEndpoint, body: Mapping[str, Any], served_name: str, adapters: Collection[str]
) -> str | None:
    model = body.get("model")
    if model in (None, "") and endpoint.names_model:
        raise RequestInvalid(f"'model' is missing; {served(served_name, adapters)}.", param="model")
    if model in (None, "", served_name):
        return None
    if not isinstance(model, str) or model not in adapters:
        raise ModelNotFound(f"The model {model!r} does not exist; {served(served_name, adapters)}.", param="model")
    return model


class _Place(msgspec.Struct):
    """Of an answer only what can hold its usage: the megabytes of an embedding become no objects."""

    usage: msgspec.Raw = _NOTHING
    response: msgspec.Raw = _NOTHING
    message: msgspec.Raw = _NOTHING


def usage_of(answer: bytes) -> Usage | None:
    """The usage in a whole answer or in one event of a stream; None: it has none."""
    outer = _decoded(answer, _Place)
    if outer is None:
        return None
    for place in (outer, _decoded(outer.response, _Place), _decoded(outer.message, _Place)):
        usage = _decoded(place.usage, dict[str, Any]) if place is not None else None
        if usage is not None:
            return Usage(
                _count(usage, "input_tokens", "prompt_tokens"), _count(usage, "output_tokens", "completion_tokens")
            )
    return None


def relayed_error_event(endpoint: RelayedEndpoint, error: Mapping[str, Any], sequence_number: int) -> bytes:
    """``error`` as the last event of a stream that has begun, in the shape of the API of ``endpoint``.

    OpenAI's API has the error's fields in the event itself; its official clients raise on the object ``error``.
    """
    if endpoint is RelayedEndpoint.RESPONSES:
        event = {**error, "type": "error", "sequence_number": sequence_number, "error": error}
    else:
        event = {"type": "error", "error": {**error, "type": "api_error"}}
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _decoded(text: bytes | msgspec.Raw, wanted: type[T]) -> T | None:
    """None: it is something else."""
    try:
        return msgspec.json.decode(text, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _count(usage: Mapping[str, Any], *names: str) -> int:
    return next((value for name in names if isinstance(value := usage.get(name), int)), 0)


def _is_token(kind: bytes) -> bool:
    """Whether an event of this kind brings a piece of text, of reasoning or of a tool call."""
    return kind == b"content_block_delta" or (kind.startswith(b"response.") and kind.endswith(b".delta"))


class RelayedEvents:
    """Counts what passes in a stream: the tokens of each read, and the usage at its end.

    ``events`` have begun so far. ``failed``: the engine reported in one that it failed.
    """

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.events = 0
        self.failed = False
        self._line = b""
        self._is_token = False

    def feed(self, received: bytes) -> int:
        """Tokens (pieces of text) in the lines that ``received`` completes."""
        *lines, self._line = (self._line + received).split(b"\n")
        tokens = 0
        for line in lines:
            if line.startswith(b"event: "):
                kind = line[7:]
                self.events += 1
                self.failed |= kind in _FAILURE_EVENTS
                self._is_token = _is_token(kind)
                tokens += self._is_token
            elif not self._is_token and line.startswith(b"data: {") and b'"usage"' in line:
                self._add(usage_of(line[6:]))
        return tokens

    def _add(self, found: Usage | None) -> None:
        """Anthropic's first event has the prompt's tokens, its last those of the answer."""
        if found is not None:
            before = self.usage or Usage(0, 0)
            self.usage = Usage(
                max(before.prompt_tokens, found.prompt_tokens), max(before.output_tokens, found.output_tokens)
            )
