"""Turns a checked request into legs: rendered, tokenised once, hashed for the index, or the body as it is."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from pointsman.gateway.core import resume
from pointsman.gateway.core.requests import (
    Ask,
    Endpoint,
    Prompt,
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
from pointsman.gateway.errors import RequestInvalid
from pointsman.gateway.forward import Leg
from pointsman.gateway.processor import INLINE_CHARACTERS, Model, TextProcessor
from pointsman.serving.block_hashes import chained_block_hashes

CHARACTERS_PER_TOKEN = 4
"""Only to estimate prompts that the engine tokenises."""


@dataclass(frozen=True, slots=True)
class Job:
    """One choice of an answer: its leg and how its stream is read."""

    leg: Leg
    translator: Callable[[], Translator]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request asks of workers. ``verbatim`` is why the body goes as it is; None: as tokens."""

    ask: Ask
    identity: Identity
    jobs: tuple[Job, ...]
    verbatim: str | None

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all prompts (an estimate when verbatim)."""
        return sum(job.leg.prompt_tokens for job in self.jobs[:: self.ask.n])


async def plan(ask: Ask, model: Model, *, request_id: str, created: int) -> Plan:
    """The legs of ``ask``. Raises RequestInvalid and its kinds."""
    identity = Identity(ask.endpoint.id_prefix + request_id, created, model.info.served_name)
    verbatim = needs_engine(ask) or _unproved(ask, model)
    if verbatim is not None:
        return Plan(ask, identity, (await _verbatim_job(ask, model, request_id, verbatim),), verbatim)
    prompts = await _token_ids(ask, model)
    jobs = []
    for number, (token_ids, sample) in enumerate(product(prompts, range(ask.n))):
        limit = max_output_tokens(
            ask,
            prompt_tokens=len(token_ids),
            max_model_len=model.info.max_model_len,
            model_default=model.processor.default_max_tokens if model.processor is not None else None,
        )
        salted = bool(ask.body.get("cache_salt"))  # its blocks are not in the index
        leg = Leg(
            request_id=request_id if number == 0 else f"{request_id}-{number}",
            path=Endpoint.COMPLETIONS.path,
            body=token_body(ask, token_ids, max_tokens=limit, sample=sample),
            prompt_tokens=len(token_ids),
            chain=() if salted else chained_block_hashes(token_ids, model.info.block_size),
            digest=model.digest,
            continuable=resume.why_not(ask) is None,
        )
        jobs.append(Job(leg, _reader(ask, identity, number)))
    return Plan(ask, identity, tuple(jobs), None)


def new_request_id() -> str:
    """For requests that bring none."""
    return uuid.uuid4().hex


def _reader(ask: Ask, identity: Identity, number: int) -> Callable[[], Translator]:
    kind = ChatTranslator if ask.endpoint is Endpoint.CHAT else CompletionTranslator
    return lambda: kind(identity, choice_index=number, with_token_ids=ask.with_token_ids)


async def _verbatim_job(ask: Ask, model: Model, request_id: str, why: str) -> Job:
    if ask.n > 1 or len(ask.prompts) > 1:
        raise RequestInvalid(
            f"'n' greater than 1 (or several prompts) cannot be combined with {why} here; send one request per answer.",
            param="n" if ask.n > 1 else "prompt",
        )
    body = plain_body(ask)
    token_ids = await _likely_token_ids(ask, model)
    leg = Leg(
        request_id,
        ask.endpoint.path,
        body,
        prompt_tokens=len(token_ids) or max(len(body) // CHARACTERS_PER_TOKEN, 1),
        chain=chained_block_hashes(token_ids, model.info.block_size),
    )
    return Job(leg, VerbatimTranslator)


async def _likely_token_ids(ask: Ask, model: Model) -> list[int]:
    """What the engine will probably make of this body: good enough to choose a worker by, never sent. Empty: no idea.

    Requests with tools share long prefixes (the tools themselves), so they gain most from the right worker.
    """
    processor = model.processor
    if processor is None or ask.body.get("cache_salt"):
        return []
    try:
        if ask.endpoint is Endpoint.CHAT:
            messages, tools = ask.body["messages"], ask.body.get("tools") or None
            size = sum(len(message.get("content") or "") for message in messages)
            return await _maybe_in_thread(size, lambda: processor.render(messages, tools=tools))
        return await _prompt_ids(ask.prompts[0], processor, ask.body.get("add_special_tokens") is not False)
    except RequestInvalid:
        return []


def _unproved(ask: Ask, model: Model) -> str | None:
    """Why the gateway's own tokenising may not stand in for the engine's."""
    if ask.endpoint is Endpoint.CHAT:
        return None if model.chat_proved else model.doubt or "this model's chat template"
    if model.text_proved or all(prompt.token_ids is not None for prompt in ask.prompts):
        return None
    return model.doubt or "this model's tokenizer"


async def _token_ids(ask: Ask, model: Model) -> list[list[int]]:
    processor = model.processor
    if ask.endpoint is Endpoint.CHAT:
        if processor is None:
            raise RuntimeError("a chat cannot be proved without a processor")
        messages = ask.body["messages"]
        size = sum(len(message["content"]) for message in messages)
        return [await _maybe_in_thread(size, lambda: processor.render(messages))]
    add_special_tokens = ask.body.get("add_special_tokens") is not False
    return [await _prompt_ids(prompt, processor, add_special_tokens) for prompt in ask.prompts]


async def _prompt_ids(prompt: Prompt, processor: TextProcessor | None, add_special_tokens: bool) -> list[int]:
    if prompt.token_ids is not None:
        return list(prompt.token_ids)
    text = prompt.text or ""
    if processor is None:
        raise RuntimeError("a text cannot be proved without a processor")
    return await _maybe_in_thread(len(text), lambda: processor.encode(text, add_special_tokens=add_special_tokens))


async def _maybe_in_thread(characters: int, work: Callable[[], list[int]]) -> list[int]:
    return work() if characters <= INLINE_CHARACTERS else await asyncio.to_thread(work)
