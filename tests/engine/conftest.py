"""Fixtures of the engine tier."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from engine.vllm.by_hand import Hand
from fixtures.engines import engine_environment, engines, plain_engines

__all__ = ["engine_environment", "engines", "plain_engines"]


@pytest.fixture
async def hand() -> AsyncIterator[Hand]:
    """Asks engines by hand; a connection per request, for some engines die and come back at their address."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield Hand(session)


@pytest.fixture
def findings(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    """What a long form found, filled in at its end; kept in ``bench/results/verify.json``, one entry a test."""
    results = Path(__file__).parents[2] / "bench" / "results" / "verify.json"
    found: dict[str, object] = {}
    started = time.monotonic()
    yield found
    if found:
        known = json.loads(results.read_text()) if results.exists() else {}
        seconds = round(time.monotonic() - started)
        known[request.node.name] = {**found, "seconds": seconds, "command": "make verify"}
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")
