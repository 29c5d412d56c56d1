"""Server-sent events of an OpenAI stream: splitting, reading, turning completion chunks into what a client asked for.

A gateway that knows the tokens always asks the engine's completions endpoint with ``return_token_ids``. Clients see
neither that endpoint nor those ids unless they asked for them: a *translator* reads each event of the engine and writes
the bytes the client gets. One decode and one encode per chunk is all the work a streamed token costs here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from pointsman.gateway.core.resume import Transcript, whole_usage

DONE = b"data: [DONE]\n\n"


class EventSplitter:
    """Cuts a byte stream into the ``data`` payloads of its events. Comments and other fields are dropped."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the event that is not complete, which may be one of megabytes

    def feed(self, received: bytes) -> list[bytes]:
        """Payloads of the events that ``received`` completes."""
        cut = received.startswith(b"\n") and self._pieces and self._pieces[-1].endswith(b"\n")
        if not cut and b"\n\n" not in received:
            if received:
                self._pieces.append(received)
            return []
        *events, rest = b"".join((*self._pieces, received)).split(b"\n\n")
        self._pieces = [rest] if rest else []
        return [event[6:] for event in events if event.startswith(b"data: ")]


class EngineError(msgspec.Struct, kw_only=True):
    """The error object of an OpenAI-shaped error, in a stream or as a body."""

    message: str = ""
    type: str = "server_error"
    param: str | None = None
    code: int | str | None = None

    @property
    def is_clients(self) -> bool:
        """The request itself is at fault: another worker would refuse it too."""
        return isinstance(self.code, int) and 400 <= self.code < 500 and self.code not in (408, 429)


class CompletionChoice(msgspec.Struct, kw_only=True):
    """The choice of a completion chunk, as vLLM sends it."""

    index: int = 0
    text: str = ""
    logprobs: msgspec.Raw = msgspec.Raw(b"null")
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: msgspec.Raw = msgspec.Raw(b"")
    token_ids: list[int] | None = None


class CompletionChunk(msgspec.Struct, kw_only=True):
    """One event of a completions stream: the fields the gateway acts on or passes on."""

    choices: list[CompletionChoice] = []
    usage: msgspec.Raw = msgspec.Raw(b"null")
    system_fingerprint: str | None = None
    error: EngineError | None = None


_decode_completion = msgspec.json.Decoder(CompletionChunk).decode
_decode_any = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Step:
    """What one event of the engine means: bytes for the client, tokens it brought, and how the answer ended if so.

    ``usage`` is set (as JSON) for the event after the last choice that brings nothing but usage. ``token_ids`` are the
    event's tokens where they are known. ``settled``: the text of all tokens so far is out; not so in the middle of a
    character of several tokens.
    """

    out: bytes = b""
    usage: bytes = b""
    tokens: int = 0
    token_ids: Sequence[int] = ()
    settled: bool = False
    finish_reason: str | None = None
    error: EngineError | None = None
    done: bool = False


class MalformedEvent(ValueError):
    """An event that is no chunk of an OpenAI stream."""


class Translator(Protocol):
    """Reads the engine's events of one attempt; a retry begins with a new one. ``transcript``: what came so far."""

    transcript: Transcript

    def read(self, data: bytes) -> Step:
        """The step that the payload of one event is. Raises MalformedEvent."""
        ...


@dataclass(slots=True)
class Identity:
    """What every chunk of one answer repeats.

    ``with_usage``: the client asked for usage, so that each chunk before the last says that its usage is null.
    """

    id: str
    created: int
    model: str
    with_usage: bool = False


class TokenTranslator:
    """What the two translators of a tokenised request share: reading an event, and going on at another worker.

    The worker gets one prompt; the client knows its ``choices`` answers as ``first_index`` and following.
    """

    def __init__(
        self, identity: Identity, kind: str, *, first_index: int = 0, choices: int = 1, with_token_ids: bool = False
    ) -> None:
        self.transcript = Transcript(choices)
        self._prefix = _head(identity, kind)
        usage = b',"usage":null' if identity.with_usage else b""
        self._choice_prefix = b"data: " + self._prefix + usage + b',"choices":['
        self._first_index = first_index
        self._with_token_ids = with_token_ids
        self._carried = 0

    @property
    def shows_each_token(self) -> bool:
        """Whether the client sees ids or log-probabilities of tokens: each must come once."""
        return self._with_token_ids

    def go_on(self, carried: int) -> None:
        """The rest comes from another worker, whose prompt holds ``carried`` tokens of this answer."""
        self._carried = carried

    def read(self, data: bytes) -> Step:
        """See Translator."""
        if data == b"[DONE]":
            return Step(done=True)
        chunk = _read_completion(data)
        if chunk.error is not None:
            return Step(error=chunk.error)
        if self._carried:
            chunk.usage = msgspec.Raw(whole_usage(bytes(chunk.usage), self._carried))
        if not chunk.choices:
            return _usage_step(self._prefix, chunk)
        choice = chunk.choices[0]
        ids = choice.token_ids or ()
        if choice.finish_reason != "abort" and not _is_news(
            self.transcript, choice.index, choice.token_ids, choice.finish_reason, content=bool(choice.text)
        ):
            return Step()
        settled = bool(choice.text) or choice.finish_reason is not None
        return Step(
            self._event_of(chunk, choice),
            tokens=_tokens(choice),
            token_ids=ids,
            settled=settled,
            finish_reason=choice.finish_reason,
        )

    def _event_of(self, chunk: CompletionChunk, choice: CompletionChoice) -> bytes:
        raise NotImplementedError


class CompletionTranslator(TokenTranslator):
    """Completion chunks to completion chunks: the client's id, no token ids unless asked for."""

    def __init__(
        self, identity: Identity, *, first_index: int = 0, choices: int = 1, with_token_ids: bool = False
    ) -> None:
        super().__init__(
            identity, "text_completion", first_index=first_index, choices=choices, with_token_ids=with_token_ids
        )
        self._logprobs = b"null"  # of the last event that had any, as the client got them
        self._text_offset = 0  # where the text of the worker that goes on begins in the whole

    @property
    def shows_each_token(self) -> bool:
        """See TokenTranslator."""
        return super().shows_each_token or self._logprobs != b"null"

    def go_on(self, carried: int) -> None:
        """See TokenTranslator."""
        super().go_on(carried)
        last = msgspec.json.decode(self._logprobs)
        if last and last.get("text_offset"):
            self._text_offset = last["text_offset"][-1] + len(last["tokens"][-1])

    def _shown_logprobs(self, logprobs: msgspec.Raw) -> msgspec.Raw:
        if bytes(logprobs) == b"null":
            return logprobs
        if self._text_offset:
            shifted = msgspec.json.decode(logprobs)
            shifted["text_offset"] = [self._text_offset + offset for offset in shifted.get("text_offset") or ()]
            logprobs = msgspec.Raw(_encode(shifted))
        self._logprobs = bytes(logprobs)
        return logprobs

    def _event_of(self, chunk: CompletionChunk, choice: CompletionChoice) -> bytes:
        body: dict[str, Any] = {
            "index": self._first_index + choice.index,
            "text": choice.text,
            "logprobs": self._shown_logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
        }
        if choice.finish_reason is not None:
            body["stop_reason"] = choice.stop_reason
        if self._with_token_ids:
            body["token_ids"] = choice.token_ids
            if bytes(choice.prompt_token_ids) and not self._carried:
                body["prompt_token_ids"] = choice.prompt_token_ids
        return self._choice_prefix + _encode(body) + b"]" + _tail(chunk) + b"}\n\n"


class ChatTranslator(TokenTranslator):
    """Completion chunks to chat chunks: a first chunk with the role, then content deltas."""

    def __init__(
        self, identity: Identity, *, first_index: int = 0, choices: int = 1, with_token_ids: bool = False
    ) -> None:
        super().__init__(
            identity, "chat.completion.chunk", first_index=first_index, choices=choices, with_token_ids=with_token_ids
        )
        self._begun: set[int] = set()

    def _event_of(self, chunk: CompletionChunk, choice: CompletionChoice) -> bytes:
        out = b""
        index = self._first_index + choice.index
        if index not in self._begun:
            self._begun.add(index)
            out = self._event(index, {"role": "assistant", "content": ""}, None, b"", prompt=choice.prompt_token_ids)
        extra: dict[str, Any] = {}
        if choice.finish_reason is not None:
            extra["stop_reason"] = choice.stop_reason
        if self._with_token_ids:
            extra["token_ids"] = choice.token_ids
        return out + self._event(index, {"content": choice.text}, choice.finish_reason, _tail(chunk), **extra)

    def _event(
        self,
        index: int,
        delta: dict[str, str],
        finish_reason: str | None,
        tail: bytes,
        *,
        prompt: msgspec.Raw | None = None,
        **extra: Any,
    ) -> bytes:
        body = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **extra}
        if self._with_token_ids and prompt is not None and bytes(prompt):
            tail += b',"prompt_token_ids":' + bytes(prompt)
        return self._choice_prefix + _encode(body) + b"]" + tail + b"}\n\n"


class VerbatimTranslator:
    """The engine's events as they are, but for the token ids that only the gateway asked for.

    Where the engine tells no ids, one event with content counts as one token. After a move the events keep the id and
    the time of the first.
    """

    def __init__(self, *, choices: int = 1, with_token_ids: bool = True) -> None:
        self.transcript = Transcript(choices)
        self._with_token_ids = with_token_ids
        self._same: dict[str, Any] = {}

    def read(self, data: bytes) -> Step:
        """See Translator."""
        if data == b"[DONE]":
            return Step(done=True)
        try:
            chunk = _decode_any(data)
            error = chunk.get("error")
            if error is not None:
                return Step(error=msgspec.convert(error, EngineError))
            return self._step(data, chunk)
        except (msgspec.MsgspecError, AttributeError, TypeError, KeyError) as error:
            raise MalformedEvent(f"{error}: {data[:200]!r}") from error

    def _step(self, data: bytes, chunk: dict[str, Any]) -> Step:
        same: dict[str, Any] = {field: chunk[field] for field in ("id", "created") if field in chunk}
        self._same = self._same or same
        choices = chunk.get("choices") or []
        if not choices:
            usage = chunk.get("usage")
            out = _event_bytes(chunk | self._same)
            return Step(out, usage=b"" if usage is None else _encode(usage))
        tokens, ended = 0, None
        news = []
        for choice in choices:
            ids, finish_reason, content = choice.get("token_ids"), choice.get("finish_reason"), _has_content(choice)
            if finish_reason == "abort":
                return Step(finish_reason="abort")
            if not _is_news(self.transcript, choice.get("index", 0), ids, finish_reason, content=content):
                continue
            tokens += int(content) if ids is None else len(ids)
            ended = ended or finish_reason
            if self._with_token_ids or content or not ids or finish_reason is not None or choice.get("logprobs"):
                news.append(choice)
        if not news:
            return Step(tokens=tokens)
        if self._with_token_ids and news == choices and same == self._same:
            return Step(b"data: " + data + b"\n\n", tokens=tokens, finish_reason=ended)
        if not self._with_token_ids:
            for holder in (chunk, *news):
                for field in _TOKEN_FIELDS & holder.keys():
                    holder[field] = None
        return Step(_event_bytes(chunk | self._same | {"choices": news}), tokens=tokens, finish_reason=ended)


_TOKEN_FIELDS = {"token_ids", "prompt_token_ids"}


def _has_content(choice: dict[str, Any]) -> bool:
    """Whether the event brings more than a role."""
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(value for field, value in delta.items() if field != "role")


def _is_news(
    transcript: Transcript, index: int, ids: Sequence[int] | None, finish_reason: str | None, *, content: bool
) -> bool:
    """Whether the client does not have this event yet. Raises MalformedEvent for one that is repeated wrongly."""
    try:
        return transcript.add(index, ids, finish_reason, content=content)
    except ValueError as error:
        raise MalformedEvent(str(error)) from error


def _event_bytes(body: dict[str, Any]) -> bytes:
    return b"data: " + _encode(body) + b"\n\n"


def error_event(body: dict[str, Any]) -> bytes:
    """An error as an event of a stream that has begun (the official clients raise on it)."""
    return b"data: " + _encode(body) + b"\n\n"


def _read_completion(data: bytes) -> CompletionChunk:
    try:
        return _decode_completion(data)
    except msgspec.MsgspecError as error:
        raise MalformedEvent(f"{error}: {data[:200]!r}") from error


def _head(identity: Identity, kind: str) -> bytes:
    head = _encode({"id": identity.id, "object": kind, "created": identity.created, "model": identity.model})
    return head[:-1]


def _tail(chunk: CompletionChunk) -> bytes:
    tail = b""
    if bytes(chunk.usage) != b"null":
        tail = b',"usage":' + bytes(chunk.usage)
    if chunk.system_fingerprint is not None:
        tail += b',"system_fingerprint":' + _encode(chunk.system_fingerprint)
    return tail


def _usage_step(prefix: bytes, chunk: CompletionChunk) -> Step:
    usage = bytes(chunk.usage)
    if usage == b"null":
        return Step()
    return Step(b"data: " + prefix + b',"choices":[]' + _tail(chunk) + b"}\n\n", usage)


def _tokens(choice: CompletionChoice) -> int:
    return len(choice.token_ids) if choice.token_ids is not None else int(bool(choice.text))
