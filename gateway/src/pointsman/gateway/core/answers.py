"""Whole (not streamed) answers: the engine's completions turned into what the client asked for, choices gathered."""

from collections.abc import Sequence
from typing import Any

from pointsman.gateway.core.requests import Ask, Endpoint
from pointsman.gateway.core.sse import Identity


def gather(ask: Ask, identity: Identity, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One answer from the engine's completions of each choice, in order (the ``n`` samples of a prompt together)."""
    choices = [_choice(ask, index, part["choices"][0]) for index, part in enumerate(parts)]
    answer: dict[str, Any] = {
        "id": identity.id,
        "object": "chat.completion" if ask.endpoint is Endpoint.CHAT else "text_completion",
        "created": identity.created,
        "model": identity.model,
        "choices": choices,
        "usage": add_usage([part.get("usage") for part in parts], samples=ask.n),
    }
    fingerprint = parts[0].get("system_fingerprint")
    if fingerprint is not None:
        answer["system_fingerprint"] = fingerprint
    if ask.endpoint is Endpoint.CHAT and ask.with_token_ids:
        answer["prompt_token_ids"] = parts[0]["choices"][0].get("prompt_token_ids")
    return answer


def add_usage(usages: Sequence[dict[str, Any] | None], *, samples: int) -> dict[str, Any] | None:
    """The usage of several choices: output tokens add up, each prompt counts once whatever its ``samples``."""
    known = [usage for usage in usages if usage is not None]
    if not known or len(known) != len(usages):
        return None
    if len(known) == 1:
        return known[0]
    prompt = sum(usage["prompt_tokens"] for usage in known[::samples])
    output = sum(usage["completion_tokens"] for usage in known)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _choice(ask: Ask, index: int, choice: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"index": index}
    if ask.endpoint is Endpoint.CHAT:
        made["message"] = {"role": "assistant", "content": choice["text"]}
        made["logprobs"] = None
    else:
        made["text"] = choice["text"]
        made["logprobs"] = choice.get("logprobs")
    made["finish_reason"] = choice.get("finish_reason")
    made["stop_reason"] = choice.get("stop_reason")
    if ask.with_token_ids:
        made["token_ids"] = choice.get("token_ids")
        if ask.endpoint is Endpoint.COMPLETIONS:
            made["prompt_token_ids"] = choice.get("prompt_token_ids")
    return made
