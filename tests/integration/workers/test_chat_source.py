"""A prefill worker gets a chat from a decode worker over HTTP, and never more than it takes."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from fixtures.workers import settings
from pointsman.workers.chat_source import ChatSource
from pointsman.workers.errors import ChatUnavailable

MAX_BYTES = 1 << 20


@pytest.fixture
async def decode() -> AsyncIterator[str]:
    """Host and port of a server that answers ``/…/<number>`` with so many bytes of a chat, of unknown length."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        chat = json.dumps(chat_of(int(request.match_info["size"]))).encode()
        for start in range(0, len(chat), 1 << 16):
            await response.write(chat[start : start + (1 << 16)])
        return response

    app = web.Application()
    app.router.add_get("/{rest:.*}/{size}", answer)
    async with TestServer(app) as server:
        yield f"{server.host}:{server.port}"


def chat_of(size: int) -> dict[str, Any]:
    """A chat that is ``size`` bytes of JSON."""
    empty = len(json.dumps({"messages": ""}))
    return {"messages": "x" * (size - empty)}


async def test_a_chat_of_unknown_length_is_taken_up_to_the_limit_and_not_beyond(decode: str) -> None:
    source = ChatSource(settings("prefill-0"), MAX_BYTES)
    try:
        assert await source.fetch(decode, str(MAX_BYTES)) == chat_of(MAX_BYTES)
        with pytest.raises(ChatUnavailable, match=f"more than {MAX_BYTES} bytes"):
            await source.fetch(decode, str(MAX_BYTES + 1))
    finally:
        await source.close()
