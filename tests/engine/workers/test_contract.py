"""The real worker keeps the contracts of the stand-ins, with the smallest block size that vLLM takes on CPU."""

from collections.abc import Iterator

import aiohttp
import pytest

from contracts import control_api, engine_api, worker_server
from contracts.control_api import *  # noqa: F403
from contracts.control_api import Controlled
from contracts.engine_api import *  # noqa: F403
from contracts.engine_api import Serving
from contracts.worker_server import *  # noqa: F403
from fixtures.engines import MODEL, Engines, RunningEngine
from pointsman.api.protocol import headers
from pointsman.api.protocol.names import Role

TOKEN = "a-token-of-the-tests"
BLOCK_SIZE = 32  # the smallest that vLLM takes on CPU

__all__ = [*control_api.__all__, *engine_api.__all__, *worker_server.__all__]


@pytest.fixture(scope="module")
def engine(engines: Engines) -> Iterator[RunningEngine]:
    """One worker for all of them."""
    own = engines.settings("contract", block_size=BLOCK_SIZE)
    worker = engines.worker(own, variables=worker_server.FROM_A_CONFIG_MAP)
    yield worker.wait_until_healthy()
    worker.stop()


@pytest.fixture
async def controlled(engine: RunningEngine) -> Controlled:
    return Controlled(engine.url, TOKEN)


@pytest.fixture
async def serving(controlled: Controlled) -> Serving:
    async with aiohttp.ClientSession() as session:
        await control_api.Api(session, controlled).role(Role.DECODE)
    return Serving(controlled.url, TOKEN, MODEL)


async def test_more_tokens_of_a_whole_answer_took_the_engine_longer(serving: Serving) -> None:
    """The stand-in needs no time for a token, so the contract allows 0."""

    async def took_ms(session: aiohttp.ClientSession, tokens: int) -> float:
        asked = {"model": MODEL, "prompt": "Hello", "max_tokens": tokens, "ignore_eos": True}
        sent = {"Authorization": f"Bearer {TOKEN}"}
        async with session.post(f"{serving.url}/v1/completions", json=asked, headers=sent) as answer:
            assert answer.status == 200, await answer.text()
            return float(answer.headers[headers.DECODE_MS])

    async with aiohttp.ClientSession() as session:
        # Of several the shortest: others on the computer may stretch one step to the time of many.
        one, two, many = [min([await took_ms(session, tokens) for _ in range(5)]) for tokens in (1, 2, 32)]
    assert one == 0 < two < many
