"""No request stalls the gateway's event loop, however large: the streams of others go on meanwhile."""

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fixtures.gateways import Gateway, connected, gateway_process
from integration.gateway import measured_gateway
from integration.gateway.conftest import Room
from integration.gateway.stand_in_worker import SERVED_NAME, TOKEN, StandInWorker, running
from waiting import eventually

CONTEXT = 200_000
LONGEST_S = 0.05
"""Of one callback. Copying a body of 20 MiB takes 20 ms here; what is computed on the loop by mistake takes 100."""


COMPLETIONS, CHATS, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"


def body(**fields: Any) -> bytes:
    """A request as bytes."""
    return json.dumps({"model": SERVED_NAME, "max_tokens": 1, **fields}, ensure_ascii=False).encode()


def prompt(given: Any) -> bytes:
    """A completion."""
    return body(prompt=given)


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


LARGE: dict[str, tuple[str, int, Callable[[], bytes]]] = {
    "a text that fits": (COMPLETIONS, 200, lambda: prompt("signal " * 25_000)),
    "a text of 20 MiB": (COMPLETIONS, 400, lambda: prompt("signal " * 3_000_000)),
    "a text of other letters": (COMPLETIONS, 400, lambda: prompt("信号线 🚉 " * 400_000)),
    "150 000 token ids": (COMPLETIONS, 200, lambda: prompt([5] * 150_000)),
    "a million token ids": (COMPLETIONS, 400, lambda: prompt([5] * 1_000_000)),
    "300 prompts": (COMPLETIONS, 200, lambda: prompt(["points " * 500] * 300)),
    "nothing but quotes": (COMPLETIONS, 400, lambda: prompt([""] * 900_000)),
    "a chat of 4 000 messages": (CHATS, 200, lambda: chat(4000, "clear " * 4)),
    "a chat of 100 000 messages": (CHATS, 400, lambda: chat(100_000, "a")),
    "tools of many levels": (CHATS, 200, lambda: tools(300, 300)),
    "a response of 20 MiB": (RESPONSES, 404, lambda: body(input="red " * 5_000_000)),
}


@pytest.fixture
async def measured(room: Room) -> Any:
    """A gateway whose loop is measured, over a worker of a long context, and the file with the longest callback."""
    worker = await room.stack.enter_async_context(
        running(StandInWorker("decode-0", room.model_folder, room.tokenizer, max_model_len=CONTEXT))
    )
    path = room.folder / "longest.json"
    process = room.stack.enter_context(
        gateway_process(room.folder, token=TOKEN, program=(str(Path(measured_gateway.__file__)), str(path)))
    )
    gateway = await room.stack.enter_async_context(connected(process))
    gateway.write_endpoints([worker])
    await gateway.knows(worker)
    return gateway, path


async def test_no_callback_of_the_loop_takes_long_whatever_is_asked(measured: tuple[Gateway, Path]) -> None:
    gateway, path = measured
    found = {}
    for number, (name, (endpoint, status, make)) in enumerate(LARGE.items(), 1):
        data = make()
        gateway.of.process.send_signal(signal.SIGUSR1)
        await eventually(partial(_round_is, path, number), "a round begins")
        async with gateway.http.post(gateway.of.url + endpoint, data=data) as answer:
            text = await answer.text()
            assert answer.status == status, (name, text[:300])
        found[name] = json.loads(path.read_text())
    print(json.dumps({name: round(each["cpu_s"] * 1000, 1) for name, each in found.items()}))
    for name, each in found.items():
        assert each["cpu_s"] < LONGEST_S, (name, each)


def _round_is(path: Path, number: int) -> bool:
    return bool(path.exists() and json.loads(path.read_text())["round"] == number)
