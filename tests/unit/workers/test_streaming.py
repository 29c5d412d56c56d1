"""An answer that does not end by itself: it ends with its client and with its server."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from pointsman.workers import streaming
from pointsman.workers.engine import Message
from pointsman.workers.streaming import stream_answer


class Endless:
    """Pieces without end, and whether they were let go."""

    def __init__(self) -> None:
        self.closed = False
        self.wanted = asyncio.Event()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            self.wanted.set()
            await asyncio.Event().wait()
        finally:
            self.closed = True


class Connection:
    """What the server was told to send; ``left`` when its client is gone."""

    def __init__(self, **state: Any) -> None:
        self.sent: list[Message] = []
        self.left = asyncio.Event()
        self.scope = {"type": "http", "app": SimpleNamespace(state=SimpleNamespace(**state))}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def gone(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def serve(self, pieces: AsyncGenerator[bytes, None]) -> None:
        async with asyncio.timeout(30):
            await stream_answer(self.scope, self.send, self.gone, pieces, "application/octet-stream")


async def test_it_ends_when_its_client_leaves() -> None:
    connection, endless = Connection(), Endless()
    serving = asyncio.create_task(connection.serve(endless.pieces()))
    await endless.wanted.wait()
    connection.left.set()
    await serving
    assert [message.get("body") for message in connection.sent] == [None, b"first"]
    assert endless.closed


async def test_it_ends_in_order_when_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops waits for open answers: it would wait for ever."""
    monkeypatch.setattr(streaming, "STOPPING_POLL_S", 0.01)
    server = SimpleNamespace(should_exit=False)
    connection, endless = Connection(server=server), Endless()
    serving = asyncio.create_task(connection.serve(endless.pieces()))
    await endless.wanted.wait()
    server.should_exit = True
    await serving
    assert connection.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert endless.closed


async def test_what_fails_while_it_is_sent_is_not_hidden() -> None:
    async def broken() -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        await Connection().serve(broken())
