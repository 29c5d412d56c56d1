"""What the prompts of an OpenAI request are, and what is put into the request for the engine. Pure.

A prompt can be prefilled by another worker if it is one sequence of tokens whose KV is all that is needed of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pointsman.serving.local_remote import PrefillReason

COMPLETIONS_PATH: Final = "/v1/completions"
CHAT_PATH: Final = "/v1/chat/completions"
KV_TRANSFER_PARAMS: Final = "kv_transfer_params"
EC_TRANSFER_PARAMS: Final = "ec_transfer_params"
PROMPT_TOKEN_IDS: Final = "prompt_token_ids"
RESUMED_TOKENS: Final = "pointsman_resumed_tokens"
"""Of a request's ``extra_args``: so many of its last prompt tokens are those of the answer that is resumed."""
TOKEN_ID_LIMIT: Final = 2**32  # ids travel as u32; no vocabulary is larger

# Fields of a chat that say how it is answered, not what its prompt is.
_OF_THE_ANSWER: Final = frozenset(
    {
        *("max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of", "stop", "stop_token_ids", "ignore_eos"),
        *("stream", "stream_options", "logprobs", "top_logprobs", "echo", "return_token_ids", "return_prompt_text"),
    }
)
# Content parts that are text to a chat template: vLLM's TEXT_PART_TYPES and tool references. Anything else is media.
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
# Keys that make a part media whatever its type says.
_MEDIA_KEYS: Final = frozenset(
    {
        *("image_url", "image_pil", "image_embeds", "input_image"),
        *("audio_url", "audio_embeds", "input_audio"),
        *("video_url", "video_embeds", "prompt_embeds"),
    }
)


@dataclass(frozen=True, slots=True)
class TokenPrompts:
    """Prompts as token ids: one, or those of a completions request with several."""

    prompts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Texts of a completions request that the engine's /tokenize has to tokenise."""

    texts: tuple[str, ...]

    @property
    def max_utf8_bytes(self) -> int:
        """Of the longest: a tokenizer makes at most one token of each byte, beside its special tokens."""
        return max(len(text.encode("utf-8", "surrogatepass")) for text in self.texts)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages that the engine's own renderer has to render. ``images``: some of them have images."""

    images: bool = False


@dataclass(frozen=True, slots=True)
class LocalPrompt:
    """A prompt that only this engine can prefill."""

    reason: PrefillReason


Prompt = TokenPrompts | TextPrompts | ChatPrompt | LocalPrompt


def read_prompt(path: str, body: Mapping[str, Any]) -> Prompt:
    """The prompt of a request to ``path``, or why it is prefilled where it is decoded."""
    if not all(_is_plain_text(body.get(field)) for field in ("model", "cache_salt")):
        return LocalPrompt(PrefillReason.INVALID)
    if body.get("prompt_embeds") is not None:
        return LocalPrompt(PrefillReason.PROMPT_EMBEDS)
    # 0 is a value of prompt_logprobs (each token's own), and so is false: the engine takes it for 0.
    if body.get("prompt_logprobs") is not None or (
        path == COMPLETIONS_PATH and body.get("echo") and body.get("logprobs") is not None
    ):
        return LocalPrompt(PrefillReason.PROMPT_LOGPROBS)
    if body.get("use_beam_search"):
        return LocalPrompt(PrefillReason.UNSUPPORTED)
    if path == COMPLETIONS_PATH:
        return _completion_prompt(body)
    if path == CHAT_PATH:
        return _chat_prompt(body)
    return LocalPrompt(PrefillReason.UNSUPPORTED)


def encode_leg(model: str, image: str) -> dict[str, Any]:
    """Body for /v1/chat/completions of an encode worker: one image, as a data URI."""
    parts = [{"type": "image_url", "image_url": {"url": image}}]
    return {"model": model, "max_tokens": 1, "stream": False, "messages": [{"role": "user", "content": parts}]}


def chat_prefill_leg(body: Mapping[str, Any]) -> dict[str, Any]:
    """The prefill leg of a chat with images, for /v1/chat/completions: one token, which nobody reads.

    What decides about the prompt (messages, tools, template) and the images' embeddings stays as it is.
    """
    leg = {key: value for key, value in body.items() if key not in _OF_THE_ANSWER}
    return {
        **leg,
        "max_tokens": 1,
        "min_tokens": 1,
        "temperature": 0,
        "stream": False,
        "return_token_ids": True,
        KV_TRANSFER_PARAMS: {"do_remote_decode": True, "do_remote_prefill": False},
    }


def chat_pull_leg(body: Mapping[str, Any], kv_transfer_params: Mapping[str, Any]) -> dict[str, Any]:
    """As ``pull_leg``, of a chat with images."""
    leg = chat_prefill_leg(body)
    leg.pop(EC_TRANSFER_PARAMS, None)
    return {**leg, "return_token_ids": False, KV_TRANSFER_PARAMS: dict(kv_transfer_params)}


def needs_kv_first(body: Mapping[str, Any], prompts: int) -> bool:
    """Whether the KV has to be in the engine's prefix cache before the request begins.

    Transfer parameters serve exactly one sequence (vllm#43509: with several, KV leaks), and only a request whose
    prompt may be replaced by its token ids.
    """
    return prompts != 1 or body.get("n") not in (None, 1) or not takes_token_ids(body)


def takes_token_ids(body: Mapping[str, Any]) -> bool:
    """Whether the engine can be given token ids in place of this text or these messages.

    Not where the answer repeats them as text.
    """
    return not body.get("echo") and not body.get("return_prompt_text")


_NOT_OF_CLIENTS: Final = frozenset({"kv_cache_report_mode", RESUMED_TOKENS})
"""Of ``vllm_xargs``. The first has blocks reported as stored that are known already, which the prefix index counts."""


def without_client_transfer_params(body: Mapping[str, Any], *, fetches_embeddings: bool = False) -> dict[str, Any]:
    """``body`` without transfer parameters but for the token ids of a chat.

    A client that could set them would choose from which host this engine reads KV. `_NOT_OF_CLIENTS` goes too.
    ``fetches_embeddings``: the engine follows those of embeddings with the service's seal only, so they may stay.
    """
    removed = {KV_TRANSFER_PARAMS} if fetches_embeddings else {KV_TRANSFER_PARAMS, EC_TRANSFER_PARAMS}
    cleaned = {key: value for key, value in body.items() if key not in removed}
    extra = body.get("vllm_xargs")
    if isinstance(extra, Mapping) and not _NOT_OF_CLIENTS.isdisjoint(extra):
        cleaned["vllm_xargs"] = {key: value for key, value in extra.items() if key not in _NOT_OF_CLIENTS}
    token_ids = _given_token_ids(body)
    if token_ids is not None:
        cleaned[KV_TRANSFER_PARAMS] = {PROMPT_TOKEN_IDS: list(token_ids)}
    return cleaned


def token_fields(
    path: str,
    token_ids: Sequence[int],
    *,
    given: bool,
    images: bool = False,
    kv_transfer_params: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fields that make the engine use exactly ``token_ids``, the ones that were prefilled, and pull their KV.

    ``given``: they stand in the request already (its prompt, or the token ids of a chat). ``images``: the engine has to
    render the chat itself; with the KV it needs no embedding.
    """
    if images:
        if kv_transfer_params is None:
            return {}
        return {KV_TRANSFER_PARAMS: kv_transfer_params, EC_TRANSFER_PARAMS: None}
    if path == CHAT_PATH:
        if given and kv_transfer_params is None:
            return {}
        return {KV_TRANSFER_PARAMS: {**(kv_transfer_params or {}), PROMPT_TOKEN_IDS: token_ids}}
    fields: dict[str, Any] = {} if given else {"prompt": token_ids}
    return fields if kv_transfer_params is None else fields | {KV_TRANSFER_PARAMS: kv_transfer_params}


def pull_leg(
    model: str, token_ids: Sequence[int], cache_salt: str | None, kv_transfer_params: Mapping[str, Any]
) -> dict[str, Any]:
    """Body for /v1/completions that brings KV into the engine's prefix cache: one token, which nobody reads.

    Whole blocks are cached; what comes after computes the tokens of the last, partial block again.
    """
    return {
        **prefill_leg(model, token_ids, cache_salt),
        "return_token_ids": False,
        KV_TRANSFER_PARAMS: dict(kv_transfer_params),
    }


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
    if body.get("suffix") is not None or body.get("truncate_prompt_tokens") is not None:
        return LocalPrompt(PrefillReason.UNSUPPORTED)  # the engine makes another prompt of it
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return TextPrompts((prompt,)) if prompt else LocalPrompt(PrefillReason.INVALID)
    if not isinstance(prompt, list) or not prompt:
        return LocalPrompt(PrefillReason.INVALID)
    if all(isinstance(item, str) and item for item in prompt):
        return TextPrompts(tuple(prompt))
    lists = prompt if isinstance(prompt[0], list) else [prompt]
    found = [_token_ids(item) for item in lists]
    prompts = tuple(ids for ids in found if ids is not None)
    return TokenPrompts(prompts) if len(prompts) == len(found) else LocalPrompt(PrefillReason.INVALID)


def _chat_prompt(body: Mapping[str, Any]) -> Prompt:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return LocalPrompt(PrefillReason.INVALID)
    media = [part for message in messages for part in _media(message)]
    if media:
        return ChatPrompt(images=True) if all(map(_is_inline_image, media)) else LocalPrompt(PrefillReason.MEDIA)
    token_ids = _given_token_ids(body)
    return ChatPrompt() if token_ids is None or not takes_token_ids(body) else TokenPrompts((token_ids,))


def _given_token_ids(body: Mapping[str, Any]) -> tuple[int, ...] | None:
    params = body.get(KV_TRANSFER_PARAMS)
    return _token_ids(params.get(PROMPT_TOKEN_IDS)) if isinstance(params, Mapping) else None


def _is_plain_text(value: object) -> bool:
    """Whether it is absent, or a text that has an encoding (a lone surrogate has none)."""
    if value is None:
        return True
    try:
        return isinstance(value, str) and bool(value.encode())
    except UnicodeEncodeError:
        return False


def _token_ids(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not value or set(map(type, value)) != {int}:
        return None
    return tuple(value) if min(value) >= 0 and max(value) < TOKEN_ID_LIMIT else None


def _media(message: object) -> list[Mapping[str, Any]]:
    content = message.get("content") if isinstance(message, Mapping) else None
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, Mapping) and _is_media(part)]


def _is_inline_image(part: Mapping[str, Any]) -> bool:
    """Whether two engines that are given this part see one image: its bytes are in it."""
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else None
    return part.get("type") == "image_url" and isinstance(url, str) and url[:5].lower() == "data:"


def _is_media(part: Mapping[str, Any]) -> bool:
    kind = part.get("type", "text")
    return not isinstance(kind, str) or kind not in _TEXT_PARTS or not _MEDIA_KEYS.isdisjoint(part)
