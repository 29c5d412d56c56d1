"""The KV feed of real vLLM workers: what a gateway that starts after them knows, and who may read it."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import psutil
import pytest

from engine.gateway.conftest import TOKEN, entry, give_role, running_decode_workers
from fixtures.engines import MODEL, Engines, RunningEngine
from fixtures.gateways import Gateway, connected, gateway_process
from pointsman.api.protocol.control import KV_EVENTS_PATH
from pointsman.api.protocol.kv_feed import Blocks, FrameReader
from pointsman.api.protocol.names import Role
from waiting import eventually

BLOCK = 32  # the smallest that vLLM's CPU attention takes; fixtures use 128
SALT = {"cache_salt": "tenant-a"}


@pytest.fixture(scope="module")
def workers(engines: Engines) -> Iterator[list[RunningEngine]]:
    """Two workers with small blocks."""
    with running_decode_workers(engines, "feed-0", "feed-1", block_size=BLOCK) as running:
        yield running


def prompt(seed: int) -> list[int]:
    """A prompt of 20 blocks that nobody else asks."""
    rng = random.Random(seed)
    return [rng.randrange(10, 250) for _ in range(20 * BLOCK)]


async def ask(client: openai.AsyncOpenAI, seed: int, **more: Any) -> None:
    """Have a prompt computed, so that its blocks are in the cache."""
    await client.completions.create(
        model=MODEL, prompt=prompt(seed), max_tokens=1, temperature=0.0, extra_body=more or None
    )


async def overlap(gateway: Gateway, seed: int, **more: Any) -> tuple[str, int]:
    """The worker that the gateway chooses for a prompt, and the tokens that it believes are cached there."""
    await ask(gateway.client, seed, **more)
    chosen = gateway.of.logged("worker chosen")[-1]
    return chosen["worker"], chosen["overlap_tokens"]


async def test_a_gateway_that_starts_after_the_workers_knows_their_caches_and_keeps_tenants_apart(
    workers: list[RunningEngine], tmp_path: Path
) -> None:
    for engine in workers:
        await give_role(engine, Role.DECODE)
    async with openai.AsyncOpenAI(base_url=workers[1].openai_url, api_key="none", max_retries=0) as direct:
        for seed in range(4):
            await ask(direct, seed)
        await ask(direct, 10, **SALT)
    for number in range(2):
        with gateway_process(tmp_path / str(number), token=TOKEN) as process:
            async with connected(process) as gateway:
                gateway.write_endpoints([entry(engine) for engine in workers])
                await gateway.knows(*workers)
                await eventually(
                    lambda process=process: len(process.logged("kv events followed")) == 2,  # type: ignore[misc]
                    "the caches of both workers are known",
                )
                for seed in range(4):
                    worker, tokens = await overlap(gateway, seed)
                    assert (worker, tokens) == (workers[1].name, 20 * BLOCK)
                assert await overlap(gateway, 10, **SALT) == (workers[1].name, 20 * BLOCK)
                assert (await overlap(gateway, 10, cache_salt=f"tenant-{number}-b"))[1] == 0
                assert not process.logged("kv events interrupted")


async def test_only_who_has_the_services_token_reads_the_feed_and_it_holds_no_tokens(
    workers: list[RunningEngine],
) -> None:
    url = workers[0].url + KV_EVENTS_PATH
    async with aiohttp.ClientSession() as session:
        for headers in ({}, {"Authorization": "Bearer another-token"}):
            async with session.get(url, headers=headers) as answer:
                assert answer.status == 401
        async with session.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
            assert answer.status == 200
            frames, frame = FrameReader(), None
            while not (isinstance(frame, Blocks) and frame.last):
                frame = frames.next()
                if frame is None:
                    frames.push(await answer.content.readany())
    listening = {
        connection.laddr.port
        for pid in workers[0].processes()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert not listening & {5557, 5558}


async def test_a_worker_that_is_stopped_ends_although_a_gateway_reads_its_feed(engines: Engines) -> None:
    with running_decode_workers(engines, "feed-2", block_size=BLOCK) as (engine,):
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
            session.get(engine.url + KV_EVENTS_PATH) as answer,
        ):
            assert await answer.content.readany()
            began_s = time.monotonic()
            code = asyncio.create_task(asyncio.to_thread(engine.stop))
            assert await answer.content.read() is not None, "the stream ends in order"
            assert await code == 0
            assert time.monotonic() - began_s < 30
