"""Images through an encode, a prefill and a decode worker: three engines answer as one does, whatever dies."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from engine.multimodal.images import chat_of, image_of, words_of
from engine.multimodal.workers import FETCHES, LEASE_SECONDS, TOKEN, Client, VisionWorkers, start_vision_workers
from fixtures.engines import RunningEngine, running_vision_engines
from fixtures.nats_server import running_nats
from pointsman.api.protocol.names import EmbeddingRole, Role
from pointsman.workers.multimodal.exchange.references import references
from waiting import eventually

DEADLINE_SECONDS = 90.0


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VisionWorkers]:
    """The workers of this module's service; only to be asked."""
    with running_nats() as nats_server, running_vision_engines(tmp_path_factory.mktemp("vision")) as engines:
        yield start_vision_workers(engines, nats_server, "vision")


@pytest.fixture
def dice() -> random.Random:
    """Seeded; the seed is printed."""
    seed = int(os.environ.get("POINTSMAN_SEED", random.randrange(1 << 32)))
    print(f"POINTSMAN_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
async def client(workers: VisionWorkers) -> AsyncIterator[Client]:
    """A client of workers that have their roles."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(DEADLINE_SECONDS)) as session:
        made = Client(session)
        for worker, role in (
            (workers.encode, Role.ENCODE),
            (workers.prefill, Role.PREFILL),
            (workers.decode, Role.DECODE),
        ):
            await made.take_role(worker, role)

        async def remote() -> bool:
            answer = await made.ask(workers.decode, chat_of([], words_of(random.Random(), 200)))
            return answer.prefill == "remote"

        await eventually(remote, "prompts are prefilled at the prefill worker")
        yield made


async def nothing_left(client: Client, *engines: RunningEngine) -> None:
    """Wait until nothing is in flight or leased, and no KV block is in use."""

    async def idle() -> bool:
        states = [await client.state(engine) for engine in engines]
        return all(state.idle and not state.kv_usage for state in states)

    await eventually(idle, "nothing in flight, queued, leased or in use", 4 * LEASE_SECONDS + 10)


async def test_three_engines_answer_as_one(client: Client, workers: VisionWorkers, dice: random.Random) -> None:
    fetched = await client.metric(workers.prefill, FETCHES, 'outcome="succeeded"')
    distinct = 0
    for count, letters in ((1, 40), (2, 300), (3, 700)):
        images = [image_of(dice) for _ in range(count)]
        body = chat_of([*images, images[0]], words_of(dice, letters))  # one of them twice
        params = {}
        for image in images:
            params |= await client.encode(workers.encode, [image])
        assert params.keys() == {image.item for image in images}
        answer = await client.ask(workers.decode, body | {"ec_transfer_params": params})
        assert answer.prefill == "remote"
        assert answer.token_ids == (await client.ask(workers.alone, body)).token_ids
        distinct += count
    assert await client.metric(workers.prefill, FETCHES, 'outcome="succeeded"') - fetched == distinct
    assert await client.metric(workers.decode, FETCHES) == 0
    await nothing_left(client, workers.prefill, workers.decode)
