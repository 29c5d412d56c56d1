"""Whole (not streamed) answers: the engine's completions turned into what the client asked for, choices gathered."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from pointsman.gateway.core.requests import Endpoint, ValidatedRequest
from pointsman.gateway.core.sse import Identity


class _Choice(msgspec.Struct):
    """What the gateway uses of a choice; the text of a completion, the message of a chat."""

    index: int = 0
    finish_reason: str | None = None
    text: str | None = None
    message: dict[str, Any] | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


def read_answer(data: bytes) -> tuple[dict[str, Any], bool]:
    """An engine's whole answer, and whether the engine aborted it.

    Raises msgspec.MsgspecError for anything else; its message has no value of ``data``.
    """
    body: dict[str, Any] = msgspec.json.decode(data)
    choices = msgspec.convert(body, _Answer).choices
    if any(choice.text is None and choice.message is None for choice in choices):
        raise msgspec.ValidationError("a choice has neither a text nor a message")
    return body, any(choice.finish_reason == "abort" for choice in choices)


def gather(request: ValidatedRequest, identity: Identity, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One answer from the engine's completions of each prompt, in order."""
    choices = [
        _choice(request, number * request.n + choice.get("index", 0), choice)
        for number, part in enumerate(parts)
        for choice in part["choices"]
    ]
    answer: dict[str, Any] = {
        "id": identity.id,
        "object": "chat.completion" if request.endpoint is Endpoint.CHAT else "text_completion",
        "created": identity.created,
        "model": identity.model,
        "choices": sorted(choices, key=lambda choice: choice["index"]),
        "usage": add_usage([part.get("usage") for part in parts]),
    }
    fingerprint = parts[0].get("system_fingerprint")
    if fingerprint is not None:
        answer["system_fingerprint"] = fingerprint
    if request.endpoint is Endpoint.CHAT and request.with_token_ids:
        answer["prompt_token_ids"] = parts[0]["choices"][0].get("prompt_token_ids")
    return answer


def add_usage(usages: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The usage of several prompts, details included; None where one of them is unknown."""
    known = [usage for usage in usages if usage is not None]
    if not known or len(known) != len(usages):
        return None
    total: dict[str, Any] = {}
    for usage in known:
        total = _added(total, usage)
    return total


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Numbers add up, also within details; null stays null only where nobody knows more."""
    total = dict(one)
    for name, value in other.items():
        mine = total.get(name)
        if isinstance(value, dict):
            total[name] = _added(mine if isinstance(mine, dict) else {}, value)
        elif isinstance(value, int | float):
            total[name] = value + (mine if isinstance(mine, int | float) else 0)
        else:
            total.setdefault(name, value)
    return total


def _choice(request: ValidatedRequest, index: int, choice: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"index": index}
    if request.endpoint is Endpoint.CHAT:
        made["message"] = {"role": "assistant", "content": choice["text"]}
        made["logprobs"] = None
    else:
        made["text"] = choice["text"]
        made["logprobs"] = choice.get("logprobs")
    made["finish_reason"] = choice.get("finish_reason")
    made["stop_reason"] = choice.get("stop_reason")
    if request.with_token_ids:
        made["token_ids"] = choice.get("token_ids")
        if request.endpoint is Endpoint.COMPLETIONS:
            made["prompt_token_ids"] = choice.get("prompt_token_ids")
    return made
