"""The prefill of one client request: its prompts as token ids, and where each of them is prefilled.

A request with one prompt and one answer pulls its KV itself. One with several answers or prompts cannot (transfer
parameters serve one sequence): each prompt's KV is pulled into the engine's prefix cache first, by a request of one
token, and the client's own request then finds it there. So a prompt is prefilled once, however many answers it gets.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pointsman.api.protocol.resume import Resume
from pointsman.serving.local_remote import PrefillReason, RoutingRule
from pointsman.workers.core.bodies import json_object
from pointsman.workers.core.prompts import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    ChatPrompt,
    LocalPrompt,
    TextPrompts,
    TokenPrompts,
    chat_pull_leg,
    needs_kv_first,
    pull_leg,
    read_prompt,
    takes_token_ids,
    token_fields,
)
from pointsman.workers.errors import EngineUnavailable
from pointsman.workers.remote_prefill import PromptToPrefill
from pointsman.workers.sidecar import Sidecar
from pointsman.workers.types import PrefillPath

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of one request. ``in_request``: their ids stand in it already; ``kv_first``: see the module.

    ``resumed_tokens``: of a resumed stream, the tokens of its one prompt. ``token_ids`` then has an entry for each
    choice, which ends with tokens of the answer. These are not in the request. ``images``: the ids are not enough to
    compute the prompts, because some stand for tokens of images.
    """

    token_ids: tuple[tuple[int, ...], ...]
    in_request: bool
    kv_first: bool
    resumed_tokens: int | None = None
    images: bool = False

    def with_sampled(self, resume: Resume) -> "Prompts":
        """What the engine computes to resume: the one prompt with the tokens so far of each choice that goes on."""
        token_ids = tuple(
            self.token_ids[0] + tuple(token for chunk in choice.chunks for token in chunk)
            for choice in resume.choices
            if choice.finish_reason is None
        )
        return Prompts(token_ids, self.in_request, kv_first=True, resumed_tokens=len(self.token_ids[0]))


class RequestPrefill:
    """``body`` is the request, ``raw`` the same as JSON, ``cached_tokens_hint`` what its sender takes to be cached
    here, ``deaths`` the workers that died with it elsewhere."""

    def __init__(
        self,
        sidecar: Sidecar,
        request_id: str,
        path: str,
        body: Mapping[str, Any],
        *,
        raw: bytes,
        rule: RoutingRule,
        cached_tokens_hint: int,
        deaths: int,
    ) -> None:
        self._sidecar = sidecar
        self._request_id = request_id
        self._path = path
        self._body = body
        self._raw = raw
        self._rule = rule
        self._hint = cached_tokens_hint
        self._deaths = deaths
        self._salt: str | None = body.get("cache_salt")
        self._model = str(body.get("model") or sidecar.settings.served_name)
        # At most as many prompts of one request are asked for at a time as the queue may hold for all.
        self._asking = asyncio.Semaphore(max(1, rule.max_prefill_queue_size))

    async def prompts(self) -> Prompts | PrefillReason:
        """The prompts as token ids, or why the engine here prefills them whatever they are."""
        prompt = read_prompt(self._path, self._body)
        match prompt:
            case LocalPrompt(reason):
                return reason
            case TokenPrompts(token_ids):
                return self._as(token_ids, in_request=True)
            case TextPrompts(texts):
                if prompt.max_utf8_bytes <= self._rule.max_local_prefill_tokens:
                    return PrefillReason.SHORT
                found = await asyncio.gather(*(self._tokenised(text) for text in texts))
                token_ids = tuple(ids for ids in found if ids is not None)
                return self._as(token_ids) if len(token_ids) == len(texts) else PrefillReason.INVALID
            case ChatPrompt(images):
                # A tokenizer makes at most one token of a byte. What a template adds of its own is not counted here:
                # it is alike in all chats, so the engine has it cached.
                if not images and len(self._raw) <= self._rule.max_local_prefill_tokens:
                    return PrefillReason.SHORT
                chat = await self._sidecar.engine.render_chat(self._body, images=images)
                if chat is None:
                    return PrefillReason.INVALID
                return self._as((chat.token_ids,), images=chat.images) if chat.only_local is None else chat.only_local

    async def prefill(self, prompts: Prompts, time_left_s: Callable[[], float | None]) -> list[PrefillPath]:
        """Where each prompt is prefilled; where the KV comes first, it is here. May be cancelled at any time.

        ``time_left_s``: until the first token is due, when it is called. None: no deadline.
        """
        hint = self._hint if len(prompts.token_ids) == 1 else 0
        if not prompts.kv_first:
            return [await self._prefill(prompts.token_ids[0], time_left_s(), hint, images=prompts.images)]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._bring(ids, time_left_s, hint, number, images=prompts.images))
                for number, ids in enumerate(prompts.token_ids)
            ]
        return [task.result() for task in tasks]

    def fields(self, prompts: Prompts, kv_transfer_params: Mapping[str, Any] | None) -> dict[str, Any]:
        """What to set in the request, so that the engine uses these token ids and pulls this KV."""
        if prompts.resumed_tokens is not None or not takes_token_ids(self._body):
            return {}
        ids: Sequence[Any] = prompts.token_ids[0] if len(prompts.token_ids) == 1 else prompts.token_ids
        return token_fields(
            self._path, ids, given=prompts.in_request, images=prompts.images, kv_transfer_params=kv_transfer_params
        )

    def release(self, path: PrefillPath) -> None:
        """Have KV freed that is not pulled; returns at once."""
        if path.kv is not None:
            self._sidecar.remote.release(path.kv, self._model)

    def _as(self, token_ids: tuple[tuple[int, ...], ...], *, in_request: bool = False, images: bool = False) -> Prompts:
        return Prompts(token_ids, in_request, needs_kv_first(self._body, len(token_ids)), images=images)

    async def _prefill(
        self, token_ids: tuple[int, ...], time_left_s: float | None, hint: int, *, images: bool
    ) -> PrefillPath:
        prompt = PromptToPrefill(
            client_request_id=self._request_id,
            model=self._model,
            token_ids=token_ids,
            cache_salt=self._salt,
            cached_tokens=self._sidecar.cached_tokens(token_ids, self._salt, model=self._model, hint=hint),
            time_left_s=time_left_s,
            deaths=self._deaths,
            chat=self._raw if images else None,
        )
        path = await self._sidecar.remote.prefill(prompt, self._rule)
        if path.kv is None or self._sidecar.remote.usable(path.kv):
            return path
        self.release(path)
        return PrefillPath(PrefillReason.LEASE_SPENT, path.new_tokens)

    async def _bring(
        self,
        token_ids: tuple[int, ...],
        time_left_s: Callable[[], float | None],
        hint: int,
        number: int,
        *,
        images: bool,
    ) -> PrefillPath:
        """Prefill one prompt and, if another worker did it, pull its KV into the prefix cache here."""
        async with self._asking:
            path = await self._prefill(token_ids, time_left_s(), hint, images=images)
            if path.kv is None:
                return path
            params = path.kv.kv_transfer_params
            if images:
                endpoint, leg = CHAT_PATH, chat_pull_leg(json_object(self._raw) or {}, params)
            else:
                endpoint, leg = COMPLETIONS_PATH, pull_leg(self._model, token_ids, self._salt, params)
            try:
                answer = await self._sidecar.engine.post(endpoint, leg, request_id=f"pull-{number}-{self._request_id}")
            except EngineUnavailable as error:
                log.warning("KV not pulled", extra={"request_id": self._request_id, "why": str(error)})
                return PrefillPath(PrefillReason.PREFILL_FAILED, path.new_tokens)
            finally:
                # However the leg ends, the engine has pulled the KV or told the other one to free it.
                await self._sidecar.remote.pulled(path.kv.request_id)
            if answer.status == 200 and answer.finish_reason != "abort":
                return path
            log.warning("KV not pulled", extra={"request_id": self._request_id, "status": answer.status})
            return PrefillPath(PrefillReason.PREFILL_FAILED, path.new_tokens)

    async def _tokenised(self, text: str) -> tuple[int, ...] | None:
        request = {
            "model": self._body.get("model"),
            "prompt": text,
            "add_special_tokens": self._body.get("add_special_tokens", True),
        }
        try:
            answer = await self._sidecar.engine.post("/tokenize", request, request_id=f"tokenize-{self._request_id}")
        except EngineUnavailable as error:
            log.info("prompt not tokenized", extra={"request_id": self._request_id, "why": str(error)})
            return None
        tokens = answer.body.get("tokens")
        return tuple(tokens) if answer.status == 200 and tokens else None


def cached_tokens(prompts: Prompts, paths: Sequence[PrefillPath]) -> int | None:
    """Tokens of the prompts that no worker computed for this request; None: not known.

    Of a prompt that was prefilled remotely, those that the prefill worker had. The choices of a resumed stream have one
    prompt, which is counted once: what is computed for one choice is cached for the others.
    """
    counts = []
    for token_ids, path in zip(prompts.token_ids, paths, strict=True):
        if path.kv is not None:
            cached = path.kv.cached_tokens
        else:
            cached = None if path.new_tokens is None else len(token_ids) - path.new_tokens
        if cached is None:
            return None
        counts.append(cached)
    return sum(counts) if prompts.resumed_tokens is None else min(*counts, prompts.resumed_tokens)
