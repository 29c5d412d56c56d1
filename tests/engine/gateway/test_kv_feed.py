"""The KV feed of real vLLM workers: what a gateway that starts after them knows, and who may read it."""

import asyncio
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import psutil
import pytest

from engine.gateway.conftest import TOKEN, entry, give_role, running_decode_workers
from fixtures.engines import MODEL, Engines, RunningEngine
from fixtures.gateways import Gateway, connected, gateway_process
from pointsman.api.protocol import headers
from pointsman.api.protocol.control import KV_EVENTS_PATH
from pointsman.api.protocol.kv_feed import Blocks, Frame, FrameReader, Increment, Stored
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


async def ask(client: openai.AsyncOpenAI, seed: int, **more: Any) -> str | None:
    """Have a prompt computed, so that its blocks are in the cache; the request's id."""
    answer = await client.completions.with_raw_response.create(
        model=MODEL, prompt=prompt(seed), max_tokens=1, temperature=0.0, extra_body=more or None
    )
    return answer.headers.get(headers.REQUEST_ID)


async def overlap(gateway: Gateway, seed: int, **more: Any) -> tuple[str, int]:
    """The worker that the gateway chooses for a prompt, and the tokens that it believes are cached there."""
    chosen = (await gateway.logged("worker chosen", request_id=await ask(gateway.client, seed, **more)))[-1]
    return chosen["worker"], chosen["overlap_tokens"]


def followed(gateway: Gateway) -> set[str]:
    """Names of the workers whose caches it knows."""
    return {line["worker"] for line in gateway.of.logged("kv events followed")}


async def indexed_blocks(gateway: Gateway) -> float:
    """Blocks of both workers that it knows."""
    name = "pointsman_gateway_worker_indexed_blocks"
    return sum(value for key, value in (await gateway.metrics()).items() if key.startswith(name))


async def test_gateways_that_start_after_the_workers_know_their_caches_and_keep_tenants_apart(
    workers: list[RunningEngine], tmp_path: Path
) -> None:
    for engine in workers:
        await give_role(engine, Role.DECODE)
    async with openai.AsyncOpenAI(base_url=workers[1].openai_url, api_key="none", max_retries=0) as direct:
        for seed in range(4):
            await ask(direct, seed)
        await ask(direct, 10, **SALT)
    async with AsyncExitStack() as stack:
        gateways = []
        for number in range(2):
            process = stack.enter_context(gateway_process(tmp_path / str(number), token=TOKEN))
            gateways.append(await stack.enter_async_context(connected(process)))
            gateways[-1].write_endpoints([entry(engine) for engine in workers])
        for gateway in gateways:
            await gateway.knows(*workers)
            await eventually(
                lambda gateway=gateway: followed(gateway) == {worker.name for worker in workers},  # type: ignore[misc]
                "the caches of both workers are known",
            )
        known = (workers[1].name, 20 * BLOCK)

        async def check(gateway: Gateway, number: int) -> None:
            for seed in range(4):
                assert await overlap(gateway, seed) == known
            assert await overlap(gateway, 10, **SALT) == known
            assert (await overlap(gateway, 10, cache_salt=f"tenant-{number}-b"))[1] == 0

        await asyncio.gather(*(check(gateway, number) for number, gateway in enumerate(gateways)))
        # What a client of one gateway had computed is known to the other one. Before: five prompts, and two of tenants.
        worker, _ = await overlap(gateways[0], 20)

        async def all_known() -> bool:
            return min([await indexed_blocks(gateway) for gateway in gateways]) >= (5 + 2 + 1) * 20

        await eventually(all_known, "both gateways know the new blocks")
        assert await overlap(gateways[1], 20) == (worker, 20 * BLOCK)
        assert not [line for gateway in gateways for line in gateway.of.logged("kv events interrupted")]


def encodings(token_ids: Sequence[int]) -> dict[str, bytes]:
    """How token ids could stand in bytes."""
    packed = {code: struct.pack(f"{code[0]}{len(token_ids)}{code[1]}", *token_ids) for code in ("<H", "<I", ">I", "<Q")}
    texts = {repr(join): join.join(map(str, token_ids)).encode() for join in (",", ", ", " ")}
    # Without the head of the array, which says how long it is.
    return packed | texts | {"msgpack": b"".join(msgspec.msgpack.encode(token) for token in token_ids)}


async def test_only_who_has_the_services_token_reads_the_feed_and_it_holds_no_tokens(
    workers: list[RunningEngine],
) -> None:
    url = workers[0].url + KV_EVENTS_PATH
    async with aiohttp.ClientSession() as session:
        for credential in ({}, {"Authorization": "Bearer another-token"}):
            async with session.get(url, headers=credential) as answer:
                assert answer.status == 401
        async with openai.AsyncOpenAI(base_url=workers[0].openai_url, api_key="none", max_retries=0) as direct:
            await ask(direct, 30)
            async with session.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
                assert answer.status == 200
                read, blocks = await _read(answer, lambda frame: isinstance(frame, Blocks) and frame.last)
                assert blocks >= 20, "the snapshot has the prompt's blocks"
                await ask(direct, 31)
                more, blocks = await _read(answer, lambda frame: isinstance(frame, Increment) and bool(frame.changes))
                assert blocks > 0, "so do increments"
    for seed, raw in ((30, read), (31, more)):
        for start in (0, BLOCK, 19 * BLOCK):
            for name, tokens in encodings(prompt(seed)[start : start + 8]).items():
                assert tokens not in raw, f"the tokens of a prompt, as {name}"
    listening = {
        connection.laddr.port
        for pid in workers[0].processes()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert not listening & {5557, 5558}


async def _read(answer: aiohttp.ClientResponse, is_last: Callable[[Frame], bool]) -> tuple[bytes, int]:
    """All bytes of the feed until a frame that ``is_last``, and the blocks in them."""
    frames, raw, blocks = FrameReader(), b"", 0
    async with asyncio.timeout(120):
        while True:
            data = await answer.content.readany()
            raw += data
            frames.push(data)
            while (frame := frames.next()) is not None:
                if isinstance(frame, Blocks):
                    blocks += sum(len(run.hashes) // 8 for run in frame.runs)
                elif isinstance(frame, Increment):
                    blocks += sum(len(change.hashes) // 8 for change in frame.changes if isinstance(change, Stored))
                if is_last(frame):
                    return raw, blocks


async def test_a_worker_that_is_stopped_ends_although_a_gateway_reads_its_feed(engines: Engines) -> None:
    with running_decode_workers(engines, "feed-2", block_size=BLOCK) as (engine,):
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
            session.get(engine.url + KV_EVENTS_PATH) as answer,
        ):
            assert await answer.content.readany()
            began_s = time.monotonic()
            code = asyncio.create_task(asyncio.to_thread(engine.stop))
            await answer.content.read()  # raises if the stream does not end in order
            assert await code == 0
            assert time.monotonic() - began_s < 30
