"""Turns a checked request into requests to workers: tokenised once and hashed for the index, or the body as it is."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pointsman.gateway.core import resume
from pointsman.gateway.core.requests import (
    Endpoint,
    Prompt,
    ValidatedRequest,
    Verbatim,
    VerbatimReason,
    max_output_tokens,
    needs_engine,
    plain_body,
    token_body,
)
from pointsman.gateway.core.sse import (
    ChatTranslator,
    CompletionTranslator,
    Identity,
    Translator,
    VerbatimTranslator,
)
from pointsman.gateway.errors import ContextLengthExceeded, RequestInvalid
from pointsman.gateway.forward import WorkerRequest
from pointsman.gateway.processor import INLINE_CHARACTERS, Model, TextProcessor
from pointsman.serving.block_hashes import chained_block_hashes

if TYPE_CHECKING:
    from pointsman.gateway.images.request_images import RequestImages  # imported with the first image

CHARACTERS_PER_TOKEN = 4
"""Only to estimate prompts that the engine tokenises."""


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """What one worker answers: the request to it and how its stream is read."""

    worker_request: WorkerRequest
    translator: Callable[[], Translator]


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What a client's request needs of workers: one plan for each prompt, with all its ``n`` answers.

    ``verbatim`` is why the body goes as it is, in one request; None: as tokens.
    """

    request: ValidatedRequest
    identity: Identity
    prompts: tuple[PromptPlan, ...]
    verbatim: Verbatim | None

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all prompts (an estimate when verbatim)."""
        return sum(prompt.worker_request.prompt_tokens for prompt in self.prompts)

    @property
    def choices(self) -> int:
        """Answers in all."""
        return self.request.n * max(len(self.request.prompts), 1)


async def plan(
    request: ValidatedRequest, model: Model, *, request_id: str, created: int, images: "RequestImages | None" = None
) -> RequestPlan:
    """The plan of ``request``. ``images``: those it has, loaded. Raises RequestInvalid and its kinds.

    What is large is rendered, tokenised and hashed in a thread, so that it stalls nobody's stream.
    """
    if request.body_bytes <= INLINE_CHARACTERS and images is None:
        return _plan(request, model, request_id, created, None)
    return await asyncio.to_thread(_plan_large, request, model, request_id, created, images)


def new_request_id() -> str:
    """For requests that bring none."""
    return uuid.uuid4().hex


def _plan_large(
    request: ValidatedRequest, model: Model, request_id: str, created: int, images: "RequestImages | None"
) -> RequestPlan:
    """``_plan``. Empties the body of ``request``, because the loop would take 20 ms to free 200 000 objects."""
    try:
        return _plan(request, model, request_id, created, images)
    finally:
        request.body.clear()


def _plan(
    request: ValidatedRequest, model: Model, request_id: str, created: int, images: "RequestImages | None"
) -> RequestPlan:
    identity = Identity(
        request.endpoint.id_prefix + request_id, created, request.body["model"], with_usage=request.include_usage
    )
    verbatim = needs_engine(request) or _unverified(request, model)
    try:
        if verbatim is None:
            prompts = _token_prompts(request, model, identity, request_id)
        else:
            prompts = _verbatim_prompts(request, model, request_id, images)
        return RequestPlan(request, identity, prompts, verbatim)
    except RecursionError as error:
        raise RequestInvalid("The request body is nested too deeply.") from error


def _token_prompts(
    request: ValidatedRequest, model: Model, identity: Identity, request_id: str
) -> tuple[PromptPlan, ...]:
    resumption = resume.way(request, verbatim=False)
    prompts = []
    for number, token_ids in enumerate(_token_ids(request, model)):
        limit = max_output_tokens(
            request,
            prompt_tokens=len(token_ids),
            max_model_len=model.info.max_model_len,
            model_default=model.default_max_tokens,
        )
        worker_request = WorkerRequest(
            request_id=request_id if number == 0 else f"{request_id}-{number}",
            path=Endpoint.COMPLETIONS.path,
            body=token_body(request, token_ids, max_tokens=limit),
            prompt_tokens=len(token_ids),
            chain=_chain(request, model, token_ids),
            digest=model.digest,
            resumption=resumption,
            not_resumable=resume.why_not(request),
            adapter=request.adapter,
        )
        prompts.append(PromptPlan(worker_request, _reader(request, identity, number * request.n)))
    return tuple(prompts)


def _reader(request: ValidatedRequest, identity: Identity, first_index: int) -> Callable[[], Translator]:
    kind = ChatTranslator if request.endpoint is Endpoint.CHAT else CompletionTranslator
    return lambda: kind(identity, first_index=first_index, choices=request.n, with_token_ids=request.with_token_ids)


def _verbatim_prompts(
    request: ValidatedRequest, model: Model, request_id: str, images: "RequestImages | None"
) -> tuple[PromptPlan, ...]:
    with_images: list[int] = []
    if images is None:
        body = plain_body(request)
        token_ids = _likely_token_ids(request, model)
        prompt_tokens = len(token_ids) or max(min(len(body) // CHARACTERS_PER_TOKEN, model.info.max_model_len), 1)
    else:
        token_ids, with_images = _likely_with_images(request, model, images)
        slots = images.slots(request.body)  # also so that no client's id of an image reaches an engine
        body = plain_body(request)
        prompt_tokens = len(with_images) or images.tokens + len(body) // CHARACTERS_PER_TOKEN
        prompt_tokens = min(prompt_tokens, model.info.max_model_len)
        body = images.filled(slots, body)
    worker_request = WorkerRequest(
        request_id,
        request.endpoint.path,
        body,
        prompt_tokens=prompt_tokens,
        chain=_chain(request, model, token_ids),
        image_chain=_chain(request, model, with_images),
        resumption=resume.way(request, verbatim=True),
        not_resumable=resume.why_not(request) or ("several prompts" if len(request.prompts) > 1 else None),
        resume_digest=model.digest,
        adapter=request.adapter,
        embeddings=images,
    )
    choices = request.n * max(len(request.prompts), 1)
    return (
        PromptPlan(worker_request, lambda: VerbatimTranslator(choices=choices, with_token_ids=request.with_token_ids)),
    )


def _chain(request: ValidatedRequest, model: Model, token_ids: Sequence[int]) -> list[int]:
    """Block hashes of a prompt. Those of a salt (a tenant) or of an adapter are others, whatever the tokens."""
    salt = request.body.get("cache_salt")
    return chained_block_hashes(
        token_ids,
        model.info.block_size,
        salt=salt if isinstance(salt, str) else None,  # the engine refuses another type
        adapter=request.adapter,
    )


def _likely_token_ids(request: ValidatedRequest, model: Model) -> list[int]:
    """What the engine will probably make of this body: good enough to choose a worker by, never sent. Empty: no idea.

    Requests with tools share long prefixes (the tools themselves), so they gain most from the right worker.
    """
    processor = model.processor
    if processor is None:
        return []
    try:
        if request.endpoint is Endpoint.CHAT:
            text = processor.render_text(
                processor.without_media(request.body["messages"]), tools=request.body.get("tools")
            )
            return _encode(processor, text, model, "messages", add_special_tokens=False)
        return _prompt_ids(request.prompts[0], processor, model, request.body.get("add_special_tokens") is not False)
    except (RequestInvalid, RecursionError):
        return []


def _likely_with_images(
    request: ValidatedRequest, model: Model, images: "RequestImages"
) -> tuple[list[int], list[int]]:
    """What the engine will probably make of a chat with images, as `_likely_token_ids`.

    First the ids before the message with the first image: their blocks are in the index. Then those of the whole prompt
    with stand-ins for its images, which only this gateway knows: equal prefixes have equal ids.
    """
    processor = model.processor
    if processor is None:
        return [], []
    mark = f"pointsman-{uuid.uuid4().hex}-"
    messages = [dict(message) for message in request.body["messages"]]
    for number, part in enumerate(request.images):
        message = messages[part.message]
        message["content"] = list(message["content"])
        message["content"][part.part] = {"type": "text", "text": f"{mark}{number};"}
    first = messages[request.images[0].message]
    # Engines may put an image before the text of its message.
    first["content"].insert(0, {"type": "text", "text": f"{mark}first;"})
    try:
        text = processor.render_text(processor.without_media(messages), tools=request.body.get("tools"))
        before, *pieces = text.split(mark)
        known = _encode(processor, before, model, "messages", add_special_tokens=False)
        whole = list(known)
        for piece in pieces:
            name, _, behind = piece.partition(";")
            if name != "first":
                whole += images.images[int(name)].stand_in
            whole += _encode(processor, behind, model, "messages", add_special_tokens=False)
    except (RequestInvalid, RecursionError):
        return [], []
    return known, whole


def _unverified(request: ValidatedRequest, model: Model) -> Verbatim | None:
    """Why the gateway's own tokenising may not stand in for the engine's."""
    if request.endpoint is Endpoint.CHAT:
        if model.chat_verified:
            return None
        reason = VerbatimReason.PARSER if model.info.parses_chat else VerbatimReason.TEMPLATE
        return Verbatim(reason, model.doubt or "this model's chat template")
    if model.text_verified or all(prompt.token_ids is not None for prompt in request.prompts):
        return None
    return Verbatim(VerbatimReason.TOKENIZER, model.doubt or "this model's tokenizer")


def _token_ids(request: ValidatedRequest, model: Model) -> list[list[int]]:
    """The ids of each prompt, proved to be what the engine would make of it."""
    processor = model.processor
    if request.endpoint is Endpoint.CHAT:
        if processor is None:
            raise RuntimeError("a chat cannot be verified without a processor")
        text = processor.render_text(request.body["messages"])
        return [_encode(processor, text, model, "messages", add_special_tokens=False)]
    add_special_tokens = request.body.get("add_special_tokens") is not False
    return [_prompt_ids(prompt, processor, model, add_special_tokens) for prompt in request.prompts]


def _prompt_ids(prompt: Prompt, processor: TextProcessor | None, model: Model, add_special_tokens: bool) -> list[int]:
    if prompt.token_ids is not None:
        return list(prompt.token_ids)
    if processor is None:
        raise RuntimeError("a text cannot be verified without a processor")
    return _encode(processor, prompt.text or "", model, "prompt", add_special_tokens=add_special_tokens)


def _encode(processor: TextProcessor, text: str, model: Model, param: str, *, add_special_tokens: bool) -> list[int]:
    if processor.is_longer(text, model.info.max_model_len):
        raise ContextLengthExceeded(
            f"This model's maximum context length is {model.info.max_model_len} tokens, and '{param}' has more: "
            f"{len(text)} characters. Shorten it.",
            param=param,
        )
    return processor.encode(text, add_special_tokens=add_special_tokens)
