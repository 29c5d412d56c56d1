"""No request stalls the gateway's event loop, however large: the streams of others go on meanwhile."""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fixtures.gateways import Gateway, connected, gateway_process
from fixtures.images import data_url, png
from integration.gateway import measured_gateway
from integration.gateway.conftest import Room
from integration.gateway.stand_in_worker import SERVED_NAME, TOKEN, StandInWorker, running
from waiting import eventually

CONTEXT = 200_000
BLOCK_SIZE = 1  # so that hashing weighs as much as in a context of three million tokens
STREAMS = 3  # of others, meanwhile
LONGEST_S = 0.05
"""CPU time of one callback. The longest took 8 to 20 ms, beside other tests too: one that counts quotes, or frees a
million token ids. Decoding, tokenising or hashing on the loop takes 100 ms or more, as does a copy of a body.
"""

COMPLETIONS, CHATS, RESPONSES, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"


class Worker(StandInWorker):
    """Takes large requests of the endpoints that are relayed, and has large answers."""

    def application(self) -> web.Application:
        """Its HTTP application."""
        app = super().application()
        app.router.add_post(RESPONSES, self._answer_shortly)
        app.router.add_post(EMBEDDINGS, self._answer_at_length)
        return app

    def _completion_events(
        self, body: dict[str, Any], prompt: list[int], chosen: list[list[int]], *, ends: bool
    ) -> Iterator[dict[str, Any]]:
        if body.get("echo"):  # then vLLM tells the whole prompt in one event
            yield {"choices": [{"index": 0, "text": "red", "logprobs": LOGPROBS, "finish_reason": None}]}
        yield from super()._completion_events(body, prompt, chosen, ends=ends)

    async def _answer_shortly(self, _request: web.Request) -> web.Response:
        return web.json_response({"output": []})

    async def _answer_at_length(self, _request: web.Request) -> web.Response:
        return web.Response(body=b'{"data":"%s"}' % (b"AAAA" * 25_000_000), content_type="application/json")


LOGPROBS = {"top_logprobs": [{f"token {rank}": -1.25 for rank in range(20)}] * 20_000}


def body(**fields: Any) -> bytes:
    """A request as bytes."""
    return json.dumps({"model": SERVED_NAME, "max_tokens": 1, **fields}, ensure_ascii=False).encode()


def prompt(given: Any) -> bytes:
    """A completion."""
    return body(prompt=given)


def prompt_told(*, stream: bool) -> bytes:
    """A completion that begins with its prompt and what the model thinks of each token."""
    return body(prompt=[1000, 1001], echo=True, logprobs=20, stream=stream)


def chat(messages: int, text: str, **fields: Any) -> bytes:
    """A chat of so many equal messages."""
    return body(messages=[{"role": "user", "content": text}] * messages, **fields)


def tools(count: int, levels: int) -> bytes:
    """A chat with tools whose parameters are objects in objects."""
    parameters: Any = {}
    for _ in range(levels):
        parameters = {"properties": {"a": parameters}}
    function = {"name": "f", "parameters": parameters}
    return chat(1, "go", tools=[{"type": "function", "function": function}] * count)


def pictures(count: int, size_bytes: int) -> bytes:
    """A chat with so many different images."""
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(png(seed=seed) + bytes(size_bytes))}}
        for seed in range(count)
    ]
    return body(messages=[{"role": "user", "content": parts}])


LARGE: dict[str, tuple[str, int, Callable[[], bytes]]] = {
    "a text that fits": (COMPLETIONS, 200, lambda: prompt("signal " * 25_000)),
    "a text of 95 MiB": (COMPLETIONS, 400, lambda: prompt("signal " * 14_000_000)),
    "a text of other letters": (COMPLETIONS, 400, lambda: prompt("信号线 🚉 " * 400_000)),
    "150 000 token ids": (COMPLETIONS, 200, lambda: prompt([*range(1000, 151_000)])),
    "a million token ids": (COMPLETIONS, 400, lambda: prompt([*range(1000, 1_001_000)])),
    "300 prompts": (COMPLETIONS, 200, lambda: prompt(["points " * 250] * 300)),
    "nothing but quotes": (COMPLETIONS, 400, lambda: prompt([""] * 900_000)),
    "a chat of 4 000 messages": (CHATS, 200, lambda: chat(4000, "clear " * 4)),
    "a chat of 100 000 messages": (CHATS, 400, lambda: chat(100_000, "a")),
    "a chat that the engine renders": (CHATS, 200, lambda: chat(1, "track " * 25_000, reasoning_effort="low")),
    "its stream": (CHATS, 200, lambda: chat(1, "track " * 25_000, reasoning_effort="low", stream=True)),
    "the log-probabilities of a prompt": (COMPLETIONS, 200, lambda: prompt_told(stream=False)),
    "their stream": (COMPLETIONS, 200, lambda: prompt_told(stream=True)),
    "six images of 15 MiB": (CHATS, 200, lambda: pictures(6, 15 * 2**20)),
    "tools of many levels": (CHATS, 200, lambda: tools(300, 300)),
    "a response of 95 MiB": (RESPONSES, 200, lambda: body(input="red " * 25_000_000)),
    "embeddings of 95 MiB": (EMBEDDINGS, 200, lambda: body(input="red")),
}


@pytest.fixture
async def measured(room: Room) -> Any:
    """A gateway whose loop is measured, its worker, and the file with the longest callback."""
    worker = await room.stack.enter_async_context(
        running(Worker("decode-0", room.model_folder, room.tokenizer, max_model_len=CONTEXT, block_size=BLOCK_SIZE))
    )
    path = room.folder / "longest.json"
    program = (str(Path(measured_gateway.__file__)), str(path))
    process = room.stack.enter_context(gateway_process(room.folder, token=TOKEN, program=program, max_body_mib=128))
    gateway = await room.stack.enter_async_context(connected(process))
    gateway.write_endpoints([worker])
    await gateway.knows(worker)
    return gateway, worker, path


async def test_no_callback_of_the_loop_takes_long_whatever_is_asked(measured: tuple[Gateway, Worker, Path]) -> None:
    gateway, worker, path = measured
    found: dict[str, dict[str, Any]] = {}
    streamed = 0

    async def stream() -> None:
        nonlocal streamed
        ask: dict[str, Any] = {"model": SERVED_NAME, "prompt": "The signal is at danger.", "max_tokens": 24}
        right = worker.tokenizer.decode(worker.output(worker.tokenizer(ask["prompt"])["input_ids"], 24))
        while len(found) < len(LARGE):
            chunks = await gateway.client.completions.create(**ask, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in chunks]) == right
            streamed += 1

    async with asyncio.TaskGroup() as streams:
        for _ in range(STREAMS):
            streams.create_task(stream())
        for number, (name, (endpoint, status, make)) in enumerate(LARGE.items(), 1):
            data = make()
            gateway.of.process.send_signal(signal.SIGUSR1)
            await eventually(partial(_round_is, path, number), "a round begins")
            async with gateway.http.post(gateway.of.url + endpoint, data=data) as answer:
                text = await answer.text()
                assert answer.status == status, (name, text[:300])
            async with gateway.http.get(f"{gateway.of.url}/health") as healthy:  # after the callback that answered
                assert healthy.status == 200
            found[name] = json.loads(path.read_text())
    print(json.dumps({name: round(each["cpu_s"] * 1000, 1) for name, each in found.items()}), streamed)
    for name, each in found.items():
        assert each["cpu_s"] < LONGEST_S, (name, each)
    assert streamed >= STREAMS


def _round_is(path: Path, number: int) -> bool:
    return bool(path.exists() and json.loads(path.read_text())["round"] == number)
