"""Embeddings between processes of the engine environment, by every transport: whole, and free again after a kill."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from bench.multimodal.transfer import measure, rows

from fixtures.transfer_processes import TransferProcess, running
from integration.workers.multimodal.transfer_process import Options
from pointsman.local.engine.environment import EngineEnvironment

TRANSPORTS = ("shared_memory", "nixl", "tcp")
TOKENS = 2000
BF16 = 2 * 4096
SEED = 20251020
ROUNDS = 34  # of each transport, with sizes first and without: 204 kills
RECOVERY_SECONDS = 30.0  # far less than the time-out of the transfers
TIMEOUT_SECONDS = 600.0


class Pair:
    """Both sides with one transport, in processes that can be replaced."""

    def __init__(self, environment: EngineEnvironment, folder: Path, transport: str, **options: Any) -> None:
        self._environment = environment
        self._folder = folder
        self._stacks = {"encode": AsyncExitStack(), "language": AsyncExitStack()}
        self.transport = transport
        self.options = {"block_size": 128, "embedding_bytes": BF16, "default_blocks": 8, "blocks": 64} | options
        self.encode: TransferProcess
        self.language: TransferProcess

    async def start(self, side: str) -> None:
        """Start a side, in place of one that may have run before."""
        await self.stop(side)
        variables = self._environment.variables() | {"UCX_NET_DEVICES": "lo", "UCX_TLS": "tcp,self"}
        options = Options(side=side, transports=(self.transport,), folder=str(self._folder), **self.options)
        process = await self._stacks[side].enter_async_context(running(options, self._environment.python, variables))
        setattr(self, side, process)

    async def stop(self, side: str) -> None:
        """End a side if it runs."""
        await self._stacks[side].aclose()

    async def put(self, requests: dict[str, int]) -> None:
        """Have these embeddings ready on the encode side."""
        await self.encode.tell(put=requests)
        for _ in requests:
            await self.encode.line("put")

    async def fetch(self, requests: dict[str, int]) -> None:
        """Begin to fetch these."""
        await self.language.tell(fetch=requests, address=self.encode.address)

    async def arrives(self, request_id: str, tokens: int) -> None:
        """A whole transfer, from nothing to nothing held."""
        await self.put({request_id: tokens})
        await self.fetch({request_id: tokens})
        said = await self.language.line("request")
        assert said == {"request": request_id, "right": True, "transports": [self.transport]}

    async def free(self, *sides: TransferProcess) -> None:
        """All blocks of these are free soon."""
        for side in sides:
            async with asyncio.timeout(RECOVERY_SECONDS):
                while await side.ask("usage"):
                    pass


@asynccontextmanager
async def pair(environment: EngineEnvironment, folder: Path, transport: str, **options: Any) -> AsyncIterator[Pair]:
    """Both sides, running."""
    made = Pair(environment, folder, transport, timeout_s=TIMEOUT_SECONDS, **options)
    try:
        await made.start("encode")
        await made.start("language")
        yield made
    finally:
        await made.stop("encode")
        await made.stop("language")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("sizes_first", [False, True], ids=["1024 + 976", "sizes first"])
async def test_2000_tokens_of_4096_bf16_arrive_byte_for_byte(
    engine_environment: EngineEnvironment, tmp_path: Path, transport: str, sizes_first: bool
) -> None:
    async with pair(engine_environment, tmp_path, transport, sizes_first=sizes_first) as both:
        await both.arrives("r", TOKENS)
        await both.free(both.encode, both.language)


async def kill_round(both: Pair, victim: str, rng: Random, number: str) -> Counter[str]:
    """Kill a side at a random point of four transfers; the other side is free, serves on, and has no wrong bytes."""
    survivor = "language" if victim == "encode" else "encode"
    requests = {f"{number}.{each}": rng.randint(300, 3000) for each in range(4)}
    await both.put(requests)
    await both.fetch(requests)
    seen: Counter[str] = Counter()
    for _ in range(rng.randrange(4)):
        said = await both.language.line("request")
        assert said["right"]
        seen["succeeded"] += 1
    await asyncio.sleep(rng.choice((0.0, rng.uniform(0, 0.02), rng.uniform(0, 0.1))))  # the point is anywhere
    await getattr(both, victim).kill()
    if victim == "encode":
        for _ in range(4 - seen["succeeded"]):
            said = await both.language.line("request")
            assert said.get("right", True), said
            seen["succeeded" if "right" in said else "failed"] += 1
    await both.free(getattr(both, survivor))
    await both.start(victim)
    await both.arrives(f"{number}.again", 1500)
    await both.free(both.encode, both.language)
    seen["kills"] += 1
    return seen


async def test_a_killed_side_frees_the_other_side(engine_environment: EngineEnvironment, tmp_path: Path) -> None:
    """By NIXL; the integration tests and the long form have the others."""
    rng = Random(SEED)
    async with pair(engine_environment, tmp_path, "nixl", sizes_first=False) as both:
        for number, victim in enumerate(("encode", "language", "encode", "language")):
            await kill_round(both, victim, rng, f"r{number}")


@pytest.mark.verify
@pytest.mark.verify_multimodal
async def test_no_kill_of_200_leaves_a_block_or_a_wrong_byte(
    engine_environment: EngineEnvironment, tmp_path: Path, findings: dict[str, object]
) -> None:
    total: Counter[str] = Counter()
    for transport in TRANSPORTS:
        for sizes_first in (False, True):
            rng = Random(f"{SEED} {transport} {sizes_first}")
            async with pair(engine_environment, tmp_path, transport, sizes_first=sizes_first) as both:
                for number in range(ROUNDS):
                    seen = await kill_round(both, rng.choice(("encode", "language")), rng, f"r{number}")
                    total += seen
                    total[f"kills, {transport}"] += seen["kills"]
    findings.update(
        kills=total["kills"],
        kills_by_transport={each: total[f"kills, {each}"] for each in TRANSPORTS},
        transfers_under_way=4 * total["kills"],
        whole_after_it=total["kills"],
        wrong_bytes=0,
        blocks_lost=0,
        seed=SEED,
    )


def test_a_round_of_the_benchmark_measures_every_way(engine_environment: EngineEnvironment) -> None:
    found = measure(rounds=1)
    assert len(rows(found, "make bench-multimodal")) == 2 * len(TRANSPORTS)
    assert all(len(each) == 1 for each in found.values())


async def test_nothing_lands_in_freed_blocks_when_a_stopped_encode_worker_goes_on(
    engine_environment: EngineEnvironment, tmp_path: Path
) -> None:
    """The language side has closed the connection meanwhile, and others have its blocks."""
    async with pair(engine_environment, tmp_path, "nixl", sizes_first=True, max_request_tokens=9000) as both:
        both.options["timeout_s"] = 3.0
        await both.start("language")
        await both.arrives("first", 100)  # so the connection is there
        for attempt in range(20):  # on a busy computer it may be stopped too late, which shows nothing
            await both.put({f"r{attempt}": 8000})
            await both.fetch({f"r{attempt}": 8000})
            while not await both.language.ask("usage"):
                pass
            both.encode.child.send_signal(signal.SIGSTOP)
            said = await both.language.line("request")
            await both.free(both.language)
            before = await both.language.ask("region")
            both.encode.child.send_signal(signal.SIGCONT)
            await both.free(both.encode)
            assert await both.language.ask("region") == before
            if "error" in said:
                break
        assert "error" in said, "it was stopped too late each time: nothing was shown"
        assert os.getpgid(both.encode.child.pid), "it lives"
