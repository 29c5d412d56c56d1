"""What a client's body means: checked, split into the choices it asks for, and rewritten for the engine.

Two ways lead to an engine:

* **tokens**: the gateway renders and tokenises; the engine's ``/v1/completions`` gets ids. This is the normal way.
* **body**: the client's body goes to the engine's endpoint of the same name, because what it asks for needs code that
  only the engine has (tool and reasoning parsers, chat log-probabilities, multimodal parts …). `needs_engine` says why.

A field that would reach into the service (KV transfer parameters, beam search over P/D) is refused by name.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from pointsman.api.protocol.resume import RESUME_FIELD
from pointsman.gateway.core.image_parts import ImagePart, image_parts
from pointsman.gateway.core.json_body import decode_body
from pointsman.gateway.errors import ContextLengthExceeded, ModelNotFound, RequestInvalid

DEFAULT_MAX_ANSWERS = 1024
"""``n`` times the number of prompts in one request, unless the gateway is configured otherwise."""


class Endpoint(StrEnum):
    """The OpenAI endpoints that generate; the value is the metric label."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        """Path at the engine and at the gateway."""
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"

    @property
    def generates(self) -> bool:
        """Whether it generates text: flow control and the planner count it."""
        return True

    @property
    def id_prefix(self) -> str:
        """How ids of answers begin."""
        return "chatcmpl-" if self is Endpoint.CHAT else "cmpl-"


class VerbatimReason(StrEnum):
    """Why a body goes to the engine as it is; the value is a metric label."""

    TOOLS = "tools"
    LOGPROBS = "logprobs"
    IMAGES = "images"
    MESSAGE_CONTENT = "message-content"
    MESSAGE_ROLE = "message-role"
    MESSAGE_FIELD = "message-field"
    TEMPLATE_OPTIONS = "template-options"
    USAGE_PER_CHUNK = "usage-per-chunk"
    PROMPT_HANDLING = "prompt-handling"
    OTHER_FIELD = "other-field"
    PARSER = "parser"
    TEMPLATE = "template"
    TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Why a body goes to the engine as it is: a bounded ``reason``, and ``detail`` for the access log."""

    reason: VerbatimReason
    detail: str


REFUSED: dict[str, str] = {
    "kv_transfer_params": "the service decides itself where a prompt is prefilled; leave it out",
    "ec_transfer_params": "the service decides itself where an encoder runs; leave it out",
    "use_beam_search": "beam search is not supported; leave it out or set it to false",
    RESUME_FIELD: "it is reserved for gateways; leave it out",
    "prompt_embeds": "prompts are text or token ids; use 'prompt'",
}

MEDIA_OPTIONS: Final = ("mm_processor_kwargs", "media_io_kwargs")
"""Fields that change what an encoder makes of an image, and how much memory and time that takes."""

_UNTRUSTED: Final = dict.fromkeys(
    MEDIA_OPTIONS,
    "an image can then take any amount of memory; leave it out, or add --trust-request-mm-kwargs to spec.engine.args "
    "and spec.encode.args of the service",
)


def refused_fields(*, trusts_media_options: bool) -> Mapping[str, str]:
    """Fields that are not accepted, and what to do instead. ``trusts_media_options``: clients may set MEDIA_OPTIONS."""
    return REFUSED if trusts_media_options else {**REFUSED, **_UNTRUSTED}


def refuse(body: Mapping[str, Any], refused: Mapping[str, str]) -> None:
    """Raises RequestInvalid for a field of ``body`` that is in ``refused``, with what to do instead."""
    for field, instead in refused.items():
        if body.get(field):
            raise RequestInvalid(f"'{field}' is not accepted: {instead}.", param=field)


# What decides how tokens are sampled and when they end: the engine's completions endpoint takes it under the same name.
_SAMPLING = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "include_stop_str_in_output",
        "ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "length_penalty", "logit_bias", "allowed_token_ids", "bad_words",
        "response_format", "structured_outputs", "priority", "cache_salt", "stream", "stream_options", "user",
        "repetition_detection", "stream_interval", "vllm_xargs",
    }
)  # fmt: skip

# Says nothing to an engine: OpenAI's own bookkeeping.
_BOOKKEEPING = frozenset(
    {
        "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls", "user",
        "prediction", "verbosity",
    }
)  # fmt: skip

_REASONS: dict[str, VerbatimReason] = {
    **dict.fromkeys(("tools", "tool_choice", "functions", "function_call"), VerbatimReason.TOOLS),
    **dict.fromkeys(("logprobs", "top_logprobs", "logprob_token_ids", "prompt_logprobs"), VerbatimReason.LOGPROBS),
    **dict.fromkeys(
        (
            "chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message",
            "reasoning_effort", "include_reasoning", "documents", "verbosity",
        ),
        VerbatimReason.TEMPLATE_OPTIONS,
    ),
    **dict.fromkeys(
        ("echo", "suffix", "truncate_prompt_tokens", "add_special_tokens"), VerbatimReason.PROMPT_HANDLING
    ),
}  # fmt: skip

_CHAT_TOKENS = (
    _SAMPLING
    | (_BOOKKEEPING - {"prediction", "verbosity"})
    | {"messages", "model", "n", "best_of", "max_tokens", "max_completion_tokens", "return_token_ids"}
)
_COMPLETION_TOKENS = (
    _SAMPLING
    | (_BOOKKEEPING - {"prediction", "verbosity"})
    | {
        "prompt", "model", "n", "best_of", "max_tokens", "logprobs", "return_token_ids", "add_special_tokens",
        "return_tokens_as_token_ids",
    }
)  # fmt: skip

_PLAIN_ROLES = frozenset({"system", "user", "assistant"})
_PLAIN_MESSAGE = frozenset({"role", "content", "name"})
_BILLING_HEADER = "x-anthropic-billing-header"  # vLLM strips such a line from system messages; leave that to it


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a completions request: text or token ids."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ValidatedRequest:
    """A request that passed the checks."""

    endpoint: Endpoint
    body: dict[str, Any]
    stream: bool
    include_usage: bool
    n: int
    prompts: tuple[Prompt, ...]  # empty for chat
    with_token_ids: bool
    body_bytes: int = 0
    adapter: str | None = None  # the LoRA adapter asked for; None: the model itself
    images: tuple[ImagePart, ...] = ()


def read(
    endpoint: Endpoint,
    data: bytes,
    served_name: str,
    *,
    max_answers: int = DEFAULT_MAX_ANSWERS,
    adapters: Collection[str] = (),
    trusts_media_options: bool = False,
) -> ValidatedRequest:
    """The request in ``data``. Raises RequestInvalid or ModelNotFound."""
    body = decode_body(data)
    if not isinstance(body, dict):
        raise RequestInvalid(f"The request body is a JSON {_json_type(body)}; it must be an object.")
    refuse(body, refused_fields(trusts_media_options=trusts_media_options))
    model = body.get("model")
    if model is None or model == "":
        raise RequestInvalid(f"'model' is missing; {served(served_name, adapters)}.", param="model")
    if not isinstance(model, str):
        raise RequestInvalid(f"'model' is {model!r}; it must be a string.", param="model")
    if model != served_name and model not in adapters:
        raise ModelNotFound(f"The model {model!r} does not exist; {served(served_name, adapters)}.", param="model")
    stream = _boolean(body, "stream")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise RequestInvalid(f"'stream_options' is {options!r}; it must be an object.", param="stream_options")
    if options and not stream:
        raise RequestInvalid("'stream_options' is only for 'stream': true.", param="stream_options")
    n = _at_least_one(body, "n") or 1
    _check_best_of(_at_least_one(body, "best_of"), n)
    prompts = () if endpoint is Endpoint.CHAT else _prompts(body.get("prompt"))
    has_parts = endpoint is Endpoint.CHAT and _check_messages(body.get("messages"))
    count = max(len(prompts), 1)
    if n * count > max_answers:
        # The product is not told: of two numbers that can be told it may be one with more digits than Python tells.
        raise RequestInvalid(
            (
                f"The request has {n} answers for each of {count} prompts; at most {max_answers} in all are "
                "allowed (spec.gateway.limits.maxAnswersPerRequest of the LLMService raises it)."
            ),
            param="n" if n > 1 else "prompt",
        )
    return ValidatedRequest(
        endpoint=endpoint,
        body=body,
        stream=stream,
        include_usage=bool(options and options.get("include_usage")),
        n=n,
        prompts=prompts,
        with_token_ids=_boolean(body, "return_token_ids"),
        body_bytes=len(data),
        adapter=None if model == served_name else model,
        images=image_parts(body["messages"]) if has_parts else (),
    )


def served(served_name: str, adapters: Collection[str]) -> str:
    """What a client may ask for, for a message: the model and its LoRA adapters."""
    found = f"this service serves '{served_name}'"
    return found if not adapters else f"{found} and its adapters {', '.join(repr(name) for name in sorted(adapters))}"


def needs_engine(request: ValidatedRequest) -> Verbatim | None:
    """Why this body must go to the engine as it is; None: the gateway can tokenise it."""
    body = request.body
    options = body.get("stream_options")
    if options and options.get("continuous_usage_stats"):
        return Verbatim(VerbatimReason.USAGE_PER_CHUNK, "stream_options.continuous_usage_stats")
    known = _CHAT_TOKENS if request.endpoint is Endpoint.CHAT else _COMPLETION_TOKENS
    for field, value in body.items():
        if field not in known and not _asks_for_nothing(field, value):
            return Verbatim(_REASONS.get(field, VerbatimReason.OTHER_FIELD), field)
    if request.endpoint is Endpoint.CHAT:
        if request.images:
            return Verbatim(VerbatimReason.IMAGES, f"{len(request.images)} images")
        for message in body["messages"]:
            reason = _message_needs_engine(message)
            if reason is not None:
                return reason
    return None


def max_output_tokens(
    request: ValidatedRequest, *, prompt_tokens: int, max_model_len: int, model_default: int | None
) -> int | None:
    """``max_tokens`` for the engine's completions endpoint; None: the endpoint's own default holds.

    A chat without a limit may fill the context (or the ``max_new_tokens`` of the model's generation config), while a
    completion's default is 16; that is vLLM's behaviour of the two endpoints. Raises ContextLengthExceeded.
    """
    param = "messages" if request.endpoint is Endpoint.CHAT else "prompt"
    if prompt_tokens >= max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens, and '{param}' has {prompt_tokens}; "
            "shorten it so that at least one token can follow.",
            param=param,
        )
    limit = request.body.get("max_tokens")
    if request.endpoint is Endpoint.CHAT and request.body.get("max_completion_tokens") is not None:
        limit = request.body["max_completion_tokens"]
    if limit is None and request.endpoint is Endpoint.CHAT:
        room = max_model_len - prompt_tokens
        limit = room if model_default is None else min(room, model_default)
    return limit


def token_body(request: ValidatedRequest, token_ids: list[int], *, max_tokens: int | None) -> bytes:
    """The engine's completions body for one prompt, all its ``n`` answers together: it is prefilled once."""
    kept = _SAMPLING if request.endpoint is Endpoint.CHAT else _SAMPLING | {"logprobs", "return_tokens_as_token_ids"}
    body: dict[str, Any] = {field: value for field, value in request.body.items() if field in kept}
    body |= {"model": request.body["model"], "prompt": token_ids, "return_token_ids": True}
    if request.n > 1:
        body["n"] = request.n
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    return msgspec.json.encode(body)


def plain_body(request: ValidatedRequest) -> bytes:
    """The client's own body for the engine's endpoint of the same name.

    A stream is asked for its token ids too: they are what another worker needs to resume it. With ``echo`` they would
    change the answer.
    """
    body = {field: value for field, value in request.body.items() if field != "best_of"}
    if request.stream and not body.get("echo"):
        body["return_token_ids"] = True
    return msgspec.json.encode(body)


def _message_needs_engine(message: dict[str, Any]) -> Verbatim | None:
    role, content = message.get("role"), message.get("content")
    if role not in _PLAIN_ROLES:
        return Verbatim(VerbatimReason.MESSAGE_ROLE, f"a message of role {role!r}")
    if not isinstance(content, str):
        return Verbatim(VerbatimReason.MESSAGE_CONTENT, "message content that is not a string")
    for field, value in message.items():
        if field not in _PLAIN_MESSAGE and value not in (None, [], ""):
            return Verbatim(VerbatimReason.MESSAGE_FIELD, f"message field {field!r}")
    if role == "system" and content.startswith(_BILLING_HEADER):
        return Verbatim(VerbatimReason.MESSAGE_CONTENT, "a billing header in a system message")
    return None


def _asks_for_nothing(field: str, value: Any) -> bool:
    """Whether ``value`` is what the engine assumes anyway when ``field`` is absent."""
    match field:
        case "add_generation_prompt" | "include_reasoning":
            return value in (None, True)
        case "tool_choice":
            return value in (None, "none")
        case "prompt_logprobs":
            return value is None  # 0 asks for those of the prompt's own tokens
        case _:
            return value in (None, False, 0, "", [], {})


def _prompts(prompt: Any) -> tuple[Prompt, ...]:
    match prompt:
        case str() if prompt:
            return (Prompt(text=prompt),)
        case [int(), *_]:
            return (_token_prompt(prompt),)
        case [str(), *_] if all(isinstance(item, str) and item for item in prompt):
            return tuple(Prompt(text=item) for item in prompt)
        case [list(), *_] if all(isinstance(item, list) and item for item in prompt):
            return tuple(_token_prompt(item) for item in prompt)
        case None | "" | []:
            raise RequestInvalid("'prompt' is missing or empty; give a text or a list of token ids.", param="prompt")
        case _:
            raise RequestInvalid(
                f"'prompt' must be a text, a list of texts, a list of token ids or a list of such lists, none of them "
                f"empty; got {'another list' if isinstance(prompt, list) else _json_type(prompt)}.",
                param="prompt",
            )


def _token_prompt(ids: list[Any]) -> Prompt:
    for item in ids:
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < 2**32:
            raise RequestInvalid(
                f"'prompt' holds {item!r}; token ids are whole numbers from 0 to 4294967295.", param="prompt"
            )
    return Prompt(token_ids=tuple(ids))


def _check_messages(messages: Any) -> bool:
    """Whether the content of a message is a list of parts. Raises RequestInvalid."""
    has_parts = False
    if messages is None or messages == []:
        raise RequestInvalid("'messages' is missing or empty; give at least one message.", param="messages")
    if not isinstance(messages, list):
        raise RequestInvalid(f"'messages' must be a list of messages; got {_json_type(messages)}.", param="messages")
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise RequestInvalid(
                f"'messages[{number}]' must be an object with a 'role'; got {_json_type(message)}.",
                param=f"messages[{number}]",
            )
        if not isinstance(message.get("role"), str):
            raise RequestInvalid(
                f"'messages[{number}].role' must be a string; got {_json_type(message.get('role'))}.",
                param=f"messages[{number}].role",
            )
        content = message.get("content")
        if content is not None and not isinstance(content, str):
            _check_parts(content, f"messages[{number}].content")
            has_parts = True
    return has_parts


def _check_parts(content: Any, param: str) -> None:
    if not isinstance(content, list):
        raise RequestInvalid(
            f"'{param}' is a JSON {_json_type(content)}; it must be a text or a list of parts.", param=param
        )
    for number, part in enumerate(content):
        if not isinstance(part, dict | str):
            raise RequestInvalid(
                f"'{param}[{number}]' is a JSON {_json_type(part)}; a part is an object with a 'type'.",
                param=f"{param}[{number}]",
            )


def _check_best_of(best_of: int | None, n: int) -> None:
    if best_of not in (None, 1, n):
        raise RequestInvalid(
            f"'best_of' is {best_of} and 'n' is {n}: the service does not rank candidates. Leave 'best_of' out, set "
            f"'n' to {best_of} and choose among the answers.",
            param="best_of",
        )


def _at_least_one(body: dict[str, Any], field: str) -> int | None:
    value = body.get(field)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise RequestInvalid(f"'{field}' is {value!r}; it must be a whole number of at least 1.", param=field)
    return value


def _boolean(body: dict[str, Any], field: str) -> bool:
    value = body.get(field)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise RequestInvalid(f"'{field}' is {value!r}; it must be true or false.", param=field)
    return value


def _json_type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "list"
        case _:
            return "object"
