"""One request with the official ``openai`` client, timed and written down whatever becomes of it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx2
import openai
from openai.types import CompletionUsage

from pointsman.api.protocol import headers
from pointsman.local.traffic.types import Api, PrefillPath, Prompt, Record

_ENDS = frozenset({"stop", "length"})  # anything else ("abort", "error") is no answer


class Endpoint:
    """An OpenAI-compatible endpoint and the model to ask there. Close it after use (``async with``).

    Without ``retries`` the client never retries: a failure that a retry would hide must be counted. With them it does
    what applications do, and what ``openai`` calls ``max_retries``: an answer that has not begun is asked for again.
    """

    def __init__(
        self, base_url: str, model: str, *, timeout_seconds: float = 120.0, connections: int = 256, retries: int = 0
    ) -> None:
        self.base_url = base_url
        self.model = model
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key="none",
            max_retries=retries,
            timeout=timeout_seconds,
            http_client=httpx2.AsyncClient(
                # Proxy variables of the shell must not catch traffic to a loopback address.
                trust_env=False,
                timeout=timeout_seconds,
                limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
            ),
        )

    async def __aenter__(self) -> "Endpoint":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def models(self) -> list[str]:
        """Names of the models this endpoint serves."""
        return [model.id async for model in self._client.models.list()]

    async def send(
        self, prompt: Prompt, *, enough: asyncio.Event | None = None, on_token: Callable[[], None] | None = None
    ) -> Record:
        """Send ``prompt`` greedily and wait for the whole answer. Never raises for what the endpoint does.

        A streamed answer is left at the first chunk after ``enough`` is set; ``on_token`` is called at every chunk that
        brings tokens.
        """
        answer = _Answer(prompt, time.monotonic())
        try:
            raw = await self._create(prompt)
            answer.headed(raw.status_code, raw.headers)
            parsed = raw.parse()
            if prompt.stream:
                async for chunk in parsed:
                    if answer.chunk(chunk, time.monotonic()) and on_token is not None:
                        on_token()
                    if enough is not None and enough.is_set():
                        answer.left()
                        await parsed.close()
                        break
            else:
                answer.whole(parsed)
        except openai.APIStatusError as error:
            answer.failed(f"HTTP {error.status_code}: {error.message}"[:400], error.status_code)
        except (openai.APIError, httpx2.HTTPError) as error:
            answer.failed(f"{type(error).__name__}: {error.__cause__ or error}"[:400], None)
        except (ValueError, AttributeError, TypeError) as error:  # what the client makes of a body that is no answer
            answer.failed(f"the answer is not OpenAI's: {error}"[:400], None)
        return answer.record(time.monotonic())

    async def _create(self, prompt: Prompt) -> Any:
        options: dict[str, Any] = {
            "model": self.model,
            "max_tokens": prompt.max_tokens,
            "temperature": 0.0,
            "stream": prompt.stream,
            "extra_body": {"return_token_ids": True} | ({"ignore_eos": True} if prompt.ignore_eos else {}),
        }
        if prompt.stream:
            options["stream_options"] = {"include_usage": True}
        if prompt.api is Api.CHAT:
            messages: Any = [{"role": "user", "content": _content(prompt)}]
            return await self._client.chat.completions.with_raw_response.create(messages=messages, **options)
        body = prompt.text if prompt.token_ids is None else list(prompt.token_ids)
        return await self._client.completions.with_raw_response.create(prompt=body or "", **options)


def _content(prompt: Prompt) -> str | list[dict[str, Any]]:
    """Of a chat's message: its text alone, or its images and then its text."""
    text = prompt.text or ""
    if not prompt.images:
        return text
    return [
        *({"type": "image_url", "image_url": {"url": url}} for url in prompt.images),
        {"type": "text", "text": text},
    ]


class _Answer:
    """Collects one answer, streamed or whole, of either API."""

    def __init__(self, prompt: Prompt, started_s: float) -> None:
        self._record = Record(prompt=prompt, started_s=started_s, total_seconds=0.0)
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._ids_seen = False
        self._token_seconds: list[float] = []

    def headed(self, status: int, answered: httpx2.Headers) -> None:
        path = answered.get(headers.PREFILL)
        self._record = replace(
            self._record,
            status=status,
            path=PrefillPath(path) if path in set(PrefillPath) else None,
            path_reason=answered.get(headers.PREFILL_REASON),
            worker=answered.get(headers.WORKER),
            prefill_worker=answered.get(headers.PREFILL_WORKER),
        )

    def chunk(self, chunk: Any, now_s: float) -> bool:
        """Take one event; whether it brought tokens."""
        brought = False
        if chunk.usage is not None:
            self._usage(chunk.usage)
        for choice in chunk.choices:
            delta = getattr(choice, "delta", None)
            text = choice.text if delta is None else delta.content
            ids = getattr(choice, "token_ids", None)
            if text or ids:
                brought = True
                self._token_seconds.append(now_s - self._record.started_s)
            self._add(text, ids, choice.finish_reason)
        return brought

    def left(self) -> None:
        self._record = replace(self._record, left=self._record.finish_reason is None)

    def whole(self, answer: Any) -> None:
        if answer.usage is not None:
            self._usage(answer.usage)
        for choice in answer.choices:
            message = getattr(choice, "message", None)
            text = choice.text if message is None else message.content
            self._add(text, getattr(choice, "token_ids", None), choice.finish_reason)

    def _add(self, text: str | None, ids: list[int] | None, finish_reason: str | None) -> None:
        if text:
            self._text.append(text)
        if ids:
            self._ids_seen = True
            self._token_ids.extend(ids)
        if finish_reason is not None:
            self._record = replace(self._record, finish_reason=finish_reason)

    def _usage(self, usage: CompletionUsage) -> None:
        self._record = replace(
            self._record, prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens
        )

    def failed(self, error: str, status: int | None) -> None:
        self._record = replace(self._record, error=error, status=status or self._record.status)

    def record(self, now_s: float) -> Record:
        record = replace(
            self._record,
            total_seconds=now_s - self._record.started_s,
            text="".join(self._text),
            token_ids=tuple(self._token_ids) if self._ids_seen else None,
            token_seconds=tuple(self._token_seconds),
        )
        if record.error is None and not record.left and record.finish_reason not in _ENDS:
            return replace(record, error=f"the answer ended with finish_reason {record.finish_reason!r}")
        if record.error is None and not (record.text or record.token_ids):
            return replace(record, error="the answer holds no token")
        return record
