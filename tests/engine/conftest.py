"""Fixtures of the engine tier."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from engine.vllm.by_hand import Hand
from fixtures.engines import engine_environment, engines, plain_engines
from fixtures.findings import findings

__all__ = ["engine_environment", "engines", "findings", "plain_engines"]


@pytest.fixture
async def hand() -> AsyncIterator[Hand]:
    """Asks engines by hand; a connection per request, for some engines die and come back at their address."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield Hand(session)
