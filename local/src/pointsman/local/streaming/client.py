"""Submits a workload to an OpenAI completions endpoint and times every chunk. Uses aiohttp, which tells when a request
was written; an SDK hides that behind the answer's headers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import aiohttp

from pointsman.local.errors import LocalError
from pointsman.local.streaming.figures import Sample
from pointsman.local.streaming.workload import Workload


class EndpointUnusable(LocalError):
    """The endpoint cannot be reached or names no model."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where the requests go. ``base_url`` ends with /v1; ``api_key`` is sent as a bearer token where given."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The request headers that carry the key."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured. Seconds."""

    samples: tuple[Sample, ...]
    submit_wall_s: float
    total_wall_s: float


async def only_model(base_url: str, api_key: str | None) -> str:
    """The first model that the endpoint lists. Raises EndpointUnusable."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), headers=headers) as session,
            session.get(f"{base_url}/models") as response,
        ):
            if response.status != 200:
                raise EndpointUnusable(f"{base_url}/models answered HTTP {response.status}: {await response.text()}")
            listed = (await response.json(content_type=None))["data"]
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
        raise EndpointUnusable(f"cannot list the models of {base_url}: {error or type(error).__name__}") from error
    if not listed:
        raise EndpointUnusable(f"{base_url} lists no model; name one with --model")
    return str(listed[0]["id"])


async def run(target: Target, workload: Workload, *, timeout_s: float, on_end: Callable[[Sample], None]) -> Run:
    """Submit the workload at its interval, whatever became of earlier requests, and wait for every answer."""
    loop = asyncio.get_running_loop()
    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(_body_written)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers=target.headers,
        trace_configs=[trace],
        read_bufsize=2**18,
    ) as session:
        begun_s = loop.time()

        async def one(prompt: str) -> Sample:
            sample = await _send(session, target, workload, prompt, begun_s)
            on_end(sample)
            return sample

        async with asyncio.TaskGroup() as group:
            tasks = []
            for prompt in workload.prompts():
                tasks.append(group.create_task(one(prompt)))
                await asyncio.sleep(workload.interval_s)
            submitted_s = loop.time()
        return Run(tuple(task.result() for task in tasks), submitted_s - begun_s, loop.time() - begun_s)


async def _send(
    session: aiohttp.ClientSession, target: Target, workload: Workload, prompt: str, begun_s: float
) -> Sample:
    loop = asyncio.get_running_loop()
    submitted_s = loop.time()
    written = SimpleNamespace(at_s=None)
    sample = Sample(submitted_s=submitted_s - begun_s)
    chunks: list[float] = []
    finished = False
    body = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": workload.max_new_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | ({} if workload.stop_on_eos else {"ignore_eos": True})
    try:
        async with session.post(f"{target.base_url}/completions", json=body, trace_request_ctx=written) as response:
            if response.status != 200:
                return replace(sample, error=f"HTTP {response.status}: {(await response.text())[:300]}")
            async for data in _events(response):
                now_s = loop.time() - submitted_s
                event = json.loads(data)
                if event.get("error"):
                    return replace(sample, error=f"error in the stream: {event['error']}"[:300])
                if usage := event.get("usage"):
                    sample = replace(
                        sample,
                        prompt_tokens=usage.get("prompt_tokens"),
                        completion_tokens=usage.get("completion_tokens"),
                    )
                for choice in event.get("choices") or ():
                    if choice.get("text"):
                        chunks.append(now_s)
                    finished = finished or choice.get("finish_reason") in ("stop", "length")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return replace(sample, error=f"{type(error).__name__}: {error}"[:300])
    if not finished:
        return replace(sample, error="the stream ended without a finish reason")
    return replace(
        sample,
        accepted_s=None if written.at_s is None else written.at_s - submitted_s,
        chunks_s=tuple(chunks),
        ended_s=loop.time() - submitted_s,
    )


async def _body_written(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    context.trace_request_ctx.at_s = asyncio.get_running_loop().time()


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Payloads of the events up to [DONE]."""
    async for line in response.content:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield data
