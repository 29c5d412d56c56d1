"""An engine of two ranks whose inputs go by input broadcast answers as one with vLLM's own executor.

Also while clients leave.
"""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from engine.multimodal.images import chat_of, image_of, words_of
from engine.multimodal.workers import Client
from fixtures.engines import SMALL_ENGINE, RunningEngine, running_vision_engines
from fixtures.nats_server import PASSWORD, USER, running_nats
from pointsman.api.protocol.names import Role
from waiting import eventually

TWO_RANKS = (*SMALL_ENGINE, "--tensor-parallel-size", "2")
REQUESTS = "pointsman_input_broadcast_requests_total"
PENDING_BYTES = "pointsman_input_broadcast_pending_bytes"
SECONDS = 90.0
LEAVING = 60
LAST_LEAVES_SECONDS = 4.0


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningEngine, RunningEngine]]:
    """A worker with input broadcast, and plain vLLM with its own executor."""
    folder = tmp_path_factory.mktemp("ranks")
    with running_nats() as nats, running_vision_engines(folder) as engines:
        login = {"nats_url": nats.url, "nats_user": USER, "nats_password": PASSWORD, "service_uid": "ranks"}
        worker = engines.worker(engines.settings("broadcast", input_broadcast=True, **login), TWO_RANKS)
        plain = engines.plain(engines.settings("own"), TWO_RANKS)
        yield worker.wait_until_healthy(), plain.wait_until_healthy()


async def test_tokens_are_those_of_vllms_own_executor_and_the_inputs_were_broadcast(
    two: tuple[RunningEngine, RunningEngine],
) -> None:
    worker, plain = two
    dice = random.Random(22)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SECONDS)) as session:
        client = Client(session)
        await client.take_role(worker, Role.DECODE)
        # Images of one request in several steps, several requests in one, and none.
        shapes = [(1, 40), (0, 100), (3, 700), (2, 10), (1, 300), (0, 20), (1, 1)]
        bodies = [
            chat_of([image_of(dice) for _ in range(images)], words_of(dice, letters)) for images, letters in shapes
        ]
        answers = await asyncio.gather(*(client.ask(worker, body) for body in bodies))
        for body, answer in zip(bodies, answers, strict=True):
            assert answer.token_ids == (await client.ask(plain, body)).token_ids
        assert len({answer.token_ids for answer in answers}) == len(answers), "each answer depends on its inputs"
        with_images = sum(images > 0 for images, _ in shapes)
        for rank in (0, 1, 2):

            async def broadcast(labels: str = f'mode="async",rank="{rank}"') -> bool:
                return await client.metric(worker, REQUESTS, labels) == with_images

            await eventually(broadcast, f"rank {rank} has had the inputs of {with_images} requests")


async def test_clients_that_leave_in_the_middle_break_no_step_of_others(
    two: tuple[RunningEngine, RunningEngine],
) -> None:
    worker, plain = two
    dice = random.Random(2210)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(SECONDS)) as session:
        client = Client(session)
        await client.take_role(worker, Role.DECODE)

        async def leave_after(seconds: float, body: dict[str, Any]) -> bool:
            try:
                async with asyncio.timeout(seconds):
                    await client.ask(worker, body)
            except TimeoutError:
                return True
            return False

        leaving = []
        for _ in range(LEAVING):
            body = chat_of([image_of(dice, side=448) for _ in range(2)], words_of(dice, 200), max_tokens=2000)
            leaving.append(leave_after(dice.uniform(0, LAST_LEAVES_SECONDS), body))
        staying = [chat_of([image_of(dice)], words_of(dice, 50)) for _ in range(4)]
        answers, left = await asyncio.gather(
            asyncio.gather(*(client.ask(worker, body) for body in staying)), asyncio.gather(*leaving)
        )
        assert all(left), "no request of these had its answer"
        for body, answer in zip(staying, answers, strict=True):
            assert answer.token_ids == (await client.ask(plain, body)).token_ids
            assert answer.token_ids == (await client.ask(worker, body)).token_ids, "and afterwards"

        async def nothing_pending() -> bool:
            return await client.metric(worker, PENDING_BYTES) == 0

        await eventually(nothing_pending, "inputs of requests that were aborted are not kept")
