"""The traffic client writes down what really happened: an endpoint that misbehaves is never counted as 'served'."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import pytest
from aiohttp import web

from pointsman.api.protocol import headers
from pointsman.local.traffic import (
    Api,
    Endpoint,
    Mix,
    PrefillPath,
    Prompt,
    closed_loop,
    open_loop,
    prompts,
    running_load,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STREAMED = Prompt(0, Api.COMPLETION, True, 4, text="hello")
WHOLE = Prompt(0, Api.COMPLETION, False, 4, text="hello")


@asynccontextmanager
async def endpoint_with(handler: Handler) -> AsyncIterator[Endpoint]:
    app = web.Application()
    app.router.add_post("/v1/completions", handler)
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with Endpoint(f"http://127.0.0.1:{port}/v1", "m", timeout_seconds=20) as endpoint:
            yield endpoint
    finally:
        await runner.cleanup()


def chunk(ids: list[int], *, finish: str | None = None, chat: bool = False) -> bytes:
    text = "".join(chr(97 + i % 26) for i in ids)
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "token_ids": ids}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    return b"data: " + json.dumps({"id": "c", "object": "c", "created": 1, "model": "m", "choices": [choice]}).encode()


async def stream(request: web.Request, chunks: list[bytes], **extra: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **extra})
    await response.prepare(request)
    for data in chunks:
        await response.write(data + b"\n\n")
    return response


async def test_a_streamed_answer_is_recorded_with_its_tokens_times_path_and_workers() -> None:
    usage = {"id": "c", "object": "c", "created": 1, "model": "m", "choices": []}
    usage["usage"] = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}

    async def handler(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert (body["temperature"], body["stream"], body["max_tokens"]) == (0.0, True, 4)
        answered = {headers.PREFILL: "remote", headers.WORKER: "d-0", headers.PREFILL_WORKER: "p-0"}
        chunks = [chunk([1]), chunk([2]), chunk([3], finish="length"), b"data: " + json.dumps(usage).encode()]
        return await stream(request, [*chunks, b"data: [DONE]"], **answered)

    async with endpoint_with(handler) as endpoint:
        record = await endpoint.send(STREAMED)
    assert record.served, record.error
    assert record.token_ids == (1, 2, 3)
    assert record.text == "bcd"
    assert len(record.token_seconds) == 3
    assert list(record.token_seconds) == sorted(record.token_seconds)
    assert (record.path, record.worker, record.prefill_worker) == (PrefillPath.REMOTE, "d-0", "p-0")
    assert (record.prompt_tokens, record.completion_tokens, record.status) == (5, 3, 200)


async def test_a_chat_answer_is_read_from_its_deltas() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.path.endswith("/chat/completions")
        opening = chunk([], chat=True)  # the role chunk carries no token: it is no first token
        return await stream(
            request,
            [
                opening,
                chunk(
                    [4],
                    chat=True,
                    finish="stop",
                ),
                b"data: [DONE]",
            ],
        )

    async with endpoint_with(handler) as endpoint:
        record = await endpoint.send(Prompt(0, Api.CHAT, True, 4, text="hello"))
    assert record.served, record.error
    assert (record.text, record.token_ids, len(record.token_seconds)) == ("e", (4,), 1)
    assert record.path is None


async def test_an_aborted_answer_is_a_failure_although_its_status_is_200() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        choice = {"index": 0, "text": "", "finish_reason": "abort", "logprobs": None}
        return web.json_response({"id": "c", "object": "c", "created": 1, "model": "m", "choices": [choice]})

    async with endpoint_with(handler) as endpoint:
        record = await endpoint.send(WHOLE)
    assert not record.served
    assert record.status == 200
    assert "abort" in (record.error or "")


async def test_a_stream_that_ends_without_an_end_is_a_failure() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, [chunk([1]), chunk([2])])

    async with endpoint_with(handler) as endpoint:
        record = await endpoint.send(STREAMED)
    assert not record.served
    assert record.token_ids == (1, 2)


async def test_a_connection_cut_in_the_middle_of_a_stream_is_a_failure() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await stream(request, [chunk([1])])
        assert request.transport is not None
        request.transport.abort()
        return response

    async with endpoint_with(handler) as endpoint:
        record = await endpoint.send(STREAMED)
    assert not record.served
    assert record.error


async def test_an_error_event_in_the_middle_of_a_stream_is_a_failure() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request, [chunk([1]), b'data: {"error": {"message": "engine gone", "code": 500}}'])

    async with endpoint_with(handler) as endpoint:
        record = await endpoint.send(STREAMED)
    assert not record.served
    assert "engine gone" in (record.error or "")


async def test_a_503_is_counted_once_and_never_retried_by_the_client() -> None:
    calls = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        return web.json_response({"error": {"message": "no worker is routable", "type": "unavailable"}}, status=503)

    async with endpoint_with(handler) as endpoint:
        record = await endpoint.send(WHOLE)
    assert (record.status, calls) == (503, 1)
    assert "no worker is routable" in (record.error or "")


@pytest.mark.parametrize("prompt", [WHOLE, STREAMED], ids=["whole", "streamed"])
async def test_an_answer_that_is_not_openais_is_a_failure(prompt: Prompt) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text="data: <html>welcome</html>\n\n", content_type="text/event-stream")

    async with endpoint_with(handler) as endpoint:
        record = await endpoint.send(prompt)
    assert not record.served
    assert record.error


async def test_an_endpoint_that_is_not_there_is_a_failure_without_a_status() -> None:
    async with Endpoint("http://127.0.0.1:1/v1", "m", timeout_seconds=5) as endpoint:
        record = await endpoint.send(WHOLE)
    assert not record.served
    assert record.status is None


async def answer(request: web.Request) -> web.StreamResponse:
    choice = {"index": 0, "text": "a", "finish_reason": "stop", "logprobs": None, "token_ids": [1]}
    return web.json_response({"id": "c", "object": "c", "created": 1, "model": "m", "choices": [choice]})


@pytest.mark.parametrize("clients", [1, 3])
async def test_a_closed_loop_asks_each_prompt_once_and_never_more_at_a_time_than_it_has_clients(clients: int) -> None:
    at_once, most = 0, 0
    full = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == clients:
            full.set()
        async with asyncio.timeout(120):
            await full.wait()  # the first answers wait until every client has asked
        at_once -= 1
        return await answer(request)

    asked = list(islice(prompts(Mix(lengths=(range(4, 9),), stream_share=0), seed=1), 9))
    async with endpoint_with(handler) as endpoint:
        records = await closed_loop(endpoint, asked, clients=clients)
    assert sorted(record.prompt.index for record in records) == list(range(9))
    assert all(record.served for record in records)
    assert most == clients


async def test_an_open_loop_asks_at_its_times_whatever_became_of_those_before() -> None:
    both = asyncio.Event()
    asked_s: list[float] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked_s.append(asyncio.get_running_loop().time())
        if len(asked_s) == 2:
            both.set()
        async with asyncio.timeout(120):
            await both.wait()  # the first answer comes only after the second prompt was asked
        return await answer(request)

    first, second = islice(prompts(Mix(lengths=(range(4, 9),), stream_share=0), seed=1), 2)
    async with endpoint_with(handler) as endpoint:
        records = await open_loop(endpoint, [(0.3, second), (0.0, first)])
    assert [record.prompt for record in records] == [second, first], "in the order given"
    assert all(record.served for record in records)
    assert asked_s[1] - asked_s[0] > 0.1


async def test_load_that_is_left_awaits_what_is_in_flight_and_counts_it() -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.set()
        async with asyncio.timeout(120):
            await release.wait()
        return await answer(request)

    async with endpoint_with(handler) as endpoint:
        async with running_load(endpoint, prompts(Mix(lengths=(range(4, 9),)), seed=1), clients=2) as traffic:
            async with asyncio.timeout(120):
                await asked.wait()
            assert traffic.records == []
            asyncio.get_running_loop().call_soon(release.set)
        assert len(traffic.records) >= 1
        assert not [r for r in traffic.failed if r.prompt.stream is False]


async def test_waiting_for_traffic_that_does_not_come_says_what_was_seen() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "closed for today"}}, status=503)

    three = islice(prompts(Mix(lengths=(range(4, 9),), stream_share=0), seed=1), 3)
    async with endpoint_with(handler) as endpoint, running_load(endpoint, three, clients=1) as traffic:
        await traffic.answered(3, timeout_seconds=20)
        with pytest.raises(TimeoutError, match=r"3 requests answered, 3 failed.*closed for today"):
            await traffic.answered(1, timeout_seconds=0.01)
