"""An ASGI answer whose body is made while it is sent, until the client leaves or the server stops."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from pointsman.process.ending import end
from pointsman.workers.engine import Message, Scope, Send

STOPPING_POLL_S: Final = 0.5


async def stream_answer(
    scope: Scope,
    send: Send,
    gone: Callable[[], Awaitable[Message]],
    pieces: AsyncGenerator[bytes, None],
    content_type: str,
) -> None:
    """Send 200 and every piece as it comes. Returns when ``gone`` does, when the server stops, or after the last piece.

    A server that stops waits for open answers to end, and one that never ends would keep it from its own end.
    """

    async def body() -> None:
        headers = [(b"content-type", content_type.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(pieces):
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})

    sending = asyncio.create_task(body())
    leaving = asyncio.ensure_future(gone())
    done: set[asyncio.Future[None] | asyncio.Future[Message]] = set()
    try:
        while not done and not _stopping(scope):
            done, _ = await asyncio.wait(
                {sending, leaving}, timeout=STOPPING_POLL_S, return_when=asyncio.FIRST_COMPLETED
            )
    finally:
        await end((sending, leaving))
    if not sending.cancelled() and (error := sending.exception()) is not None:
        raise error
    if not leaving.done() or leaving.cancelled():
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _stopping(scope: Scope) -> bool:
    """Whether the server is about to end: vLLM keeps uvicorn's server object in its application's state."""
    server = getattr(getattr(scope.get("app"), "state", None), "server", None)
    return bool(getattr(server, "should_exit", False))
