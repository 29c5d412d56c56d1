"""A gateway over two real decode workers, and a plain server of the same model as reference."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import aiohttp
import openai
import pytest

from fixtures.engines import Engines, PlainEngines, RunningEngine
from fixtures.gateways import Entry, Gateway, GatewayProcess, connected, gateway_process
from pointsman.api.protocol.control import ROLE_PATH, RoleRequest
from pointsman.api.protocol.names import Role

TOKEN = "a-token-of-the-tests"


def entry(engine: RunningEngine) -> Entry:
    """A worker as an endpoints file names it."""
    return Entry(engine.name, engine.url)


async def give_role(engine: RunningEngine, role: Role) -> None:
    """What the operator does with a new worker."""
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
        session.post(engine.url + ROLE_PATH, data=RoleRequest(role=role).wire()) as answer,
    ):
        assert answer.status == 200, await answer.text()


@contextmanager
def running_decode_workers(
    engines: Engines, *worker_names: str, block_size: int = 128
) -> Iterator[list[RunningEngine]]:
    """Real workers for the time of the context; they start side by side."""
    started = [engines.worker(engines.settings(name, block_size=block_size)) for name in worker_names]
    try:
        yield [engine.wait_until_healthy() for engine in started]
    finally:
        for engine in started:
            engine.process.kill()


@dataclass(frozen=True)
class Stage:
    """Gateway, its workers, and the reference."""

    gateway: Gateway
    workers: list[RunningEngine]
    reference: openai.AsyncOpenAI


@pytest.fixture(scope="module")
def reference_engine(plain_engines: PlainEngines) -> RunningEngine:
    """vLLM alone, as it comes."""
    return plain_engines.one


@pytest.fixture(scope="module")
def decode_workers(engines: Engines) -> Iterator[list[RunningEngine]]:
    """Two workers that no test harms."""
    with running_decode_workers(engines, "decode-0", "decode-1") as running:
        yield running


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """The gateway of the tests that kill nobody."""
    with gateway_process(tmp_path_factory.mktemp("gateway"), token=TOKEN) as process:
        yield process


@pytest.fixture
async def stage(
    gateway: GatewayProcess, decode_workers: list[RunningEngine], reference_engine: RunningEngine
) -> AsyncIterator[Stage]:
    """See Stage."""
    for engine in decode_workers:
        await give_role(engine, Role.DECODE)
    reference = openai.AsyncOpenAI(base_url=reference_engine.openai_url, api_key="none", max_retries=0)
    async with connected(gateway) as connection, reference:
        connection.write_endpoints([entry(engine) for engine in decode_workers])
        await connection.knows(*decode_workers)
        yield Stage(connection, decode_workers, reference)
