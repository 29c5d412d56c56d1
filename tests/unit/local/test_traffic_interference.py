"""The interference scenario measures the streams' stall, and says so when it could not."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from pointsman.local.traffic import Endpoint, Scenario, StreamsEnded, interfere

SCENARIO = Scenario(streams=2, arrivals=2, prompt_tokens=300, pause_seconds=0.05)


class OneServer:
    """An OpenAI endpoint that, like an engine which does both, writes no stream while it 'computes' a long prompt."""

    def __init__(self, stall_seconds: float, stream_tokens: int | None = None) -> None:
        self._stall_seconds = stall_seconds
        self._stream_tokens = stream_tokens
        self._computing = asyncio.Lock()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if len(body["prompt"]) >= SCENARIO.prompt_tokens:
            async with self._computing:
                await asyncio.sleep(self._stall_seconds)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        wanted = body["max_tokens"] if self._stream_tokens is None else min(self._stream_tokens, body["max_tokens"])
        for number in range(wanted):
            async with self._computing:
                choice: dict[str, Any] = {"index": 0, "text": "a", "token_ids": [7]}
                choice["finish_reason"] = "length" if number == wanted - 1 else None
                event = {"id": "c", "object": "c", "created": 1, "model": "m", "choices": [choice]}
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                await asyncio.sleep(0.002)
        await response.write(b"data: [DONE]\n\n")
        return response


async def run(server: OneServer) -> Any:
    app = web.Application()
    app.router.add_post("/v1/completions", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Endpoint(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "m") as endpoint:
            return await interfere(endpoint, SCENARIO, timeout_seconds=60)
    finally:
        await runner.cleanup()


async def test_a_stall_of_the_server_is_the_worst_inter_token_latency_of_the_streams() -> None:
    measured = await run(OneServer(stall_seconds=0.3))
    assert measured.failed_requests == 0
    assert measured.itl.worst_ms >= 295
    assert measured.itl.p50_ms < 150
    assert measured.ttft.worst_ms >= 295
    assert (measured.streams.requests, measured.arrivals.requests) == (2, 2)


async def test_streams_that_end_too_soon_are_an_error_not_a_good_figure() -> None:
    with pytest.raises(StreamsEnded, match="2 of 2 streams ended by themselves"):
        await run(OneServer(stall_seconds=0.3, stream_tokens=2))
