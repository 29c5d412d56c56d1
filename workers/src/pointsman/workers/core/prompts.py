"""What the prompt of an OpenAI request is, and how a remote prefill's result is put into the request.

Only requests whose prompt is one plain sequence of tokens can be prefilled elsewhere; everything else stays local.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

COMPLETIONS_PATH: Final = "/v1/completions"
CHAT_PATH: Final = "/v1/chat/completions"
KV_TRANSFER_PARAMS: Final = "kv_transfer_params"
PROMPT_TOKEN_IDS: Final = "prompt_token_ids"

# Fields that need the whole prompt computed here, more than one sequence (vllm#43509: n > 1 over P/D leaks KV), or a
# prompt that is not its tokens alone.
_LOCAL_ONLY: Final = (
    "echo",
    "prompt_logprobs",
    "use_beam_search",
    "prompt_embeds",
    "suffix",
    "truncate_prompt_tokens",
    "documents",
    "mm_processor_kwargs",
    "media_io_kwargs",
)


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as token ids."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt that must be tokenised: ``body`` is for the engine's /tokenize."""

    body: Mapping[str, Any]
    utf8_bytes: int  # a tokenizer makes at most one token of each, beside its special tokens


@dataclass(frozen=True, slots=True)
class LocalPrompt:
    """A prompt that only this engine can prefill; ``why`` names the field."""

    why: str


Prompt = TokenPrompt | TextPrompt | LocalPrompt


def read_prompt(path: str, body: Mapping[str, Any]) -> Prompt:
    """The prompt of a request to ``path``."""
    for field in _LOCAL_ONLY:
        value = body.get(field)
        if value is not None and value is not False:  # 0 is a value: prompt_logprobs=0 asks for the tokens' own
            return LocalPrompt(field)
    for field in ("n", "best_of"):
        if body.get(field) not in (None, 1):
            return LocalPrompt(field)
    if path == COMPLETIONS_PATH:
        return _completion_prompt(body)
    if path == CHAT_PATH:
        return _chat_prompt(body)
    return LocalPrompt("path")


def without_client_transfer_params(body: Mapping[str, Any]) -> dict[str, Any]:
    """``body`` without transfer parameters but for the token ids of a chat.

    A client that could set them would choose from which host this engine reads KV.
    """
    cleaned = {key: value for key, value in body.items() if key not in (KV_TRANSFER_PARAMS, "ec_transfer_params")}
    token_ids = _given_token_ids(body)
    if token_ids is not None:
        cleaned[KV_TRANSFER_PARAMS] = {PROMPT_TOKEN_IDS: list(token_ids)}
    return cleaned


def with_remote_prefill(
    path: str, body: Mapping[str, Any], token_ids: Sequence[int], kv_transfer_params: Mapping[str, Any]
) -> dict[str, Any]:
    """``body`` for the decode leg: pull the KV of exactly ``token_ids``, the ones that were prefilled."""
    if path == CHAT_PATH:
        return {**body, KV_TRANSFER_PARAMS: {**kv_transfer_params, PROMPT_TOKEN_IDS: list(token_ids)}}
    return {**body, "prompt": list(token_ids), KV_TRANSFER_PARAMS: dict(kv_transfer_params)}


def prefill_leg(model: str, token_ids: Sequence[int], cache_salt: str | None) -> dict[str, Any]:
    """Body of the prefill leg for /v1/completions: one token, not streamed (a stream carries no transfer parameters).

    The decode engine computes the last prompt token itself, so the token of this leg is never used.
    """
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": 1,
        "min_tokens": 1,
        "temperature": 0,
        "stream": False,
        "return_token_ids": True,
        KV_TRANSFER_PARAMS: {"do_remote_decode": True, "do_remote_prefill": False},
    }
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    return body


def _completion_prompt(body: Mapping[str, Any]) -> Prompt:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        request = {
            "model": body.get("model"),
            "prompt": prompt,
            "add_special_tokens": body.get("add_special_tokens", True),
        }
        return TextPrompt(request, len(prompt.encode()))
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    token_ids = _token_ids(prompt)
    return LocalPrompt("prompt") if token_ids is None else TokenPrompt(token_ids)


def _chat_prompt(body: Mapping[str, Any]) -> Prompt:
    messages = body.get("messages")
    if not isinstance(messages, list) or any(_has_media(message) for message in messages):
        return LocalPrompt("messages")
    # Without the gateway's ids a chat stays local: rendering it here in another way than the engine does would change
    # the answer.
    token_ids = _given_token_ids(body)
    return LocalPrompt(PROMPT_TOKEN_IDS) if token_ids is None else TokenPrompt(token_ids)


def _given_token_ids(body: Mapping[str, Any]) -> tuple[int, ...] | None:
    params = body.get(KV_TRANSFER_PARAMS)
    return _token_ids(params.get(PROMPT_TOKEN_IDS)) if isinstance(params, Mapping) else None


def _token_ids(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not value or any(type(item) is not int or item < 0 for item in value):
        return None
    return tuple(value)


def _has_media(message: object) -> bool:
    content = message.get("content") if isinstance(message, Mapping) else None
    return isinstance(content, list) and any(
        not isinstance(part, Mapping) or part.get("type") != "text" for part in content
    )
