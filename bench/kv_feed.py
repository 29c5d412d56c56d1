"""How fast a gateway learns the caches of workers that have been busy for long: ``make bench-kv-feed``.

Eight workers: vLLM's own ``ZmqEventPublisher`` and server (uvicorn), Pointsman's middleware around it, 100 000 blocks
of 16 tokens each in the cache, a replay buffer of 10 000 batches that half of the blocks are older than, and 50 batches
a second of new events (``bench/kv_feed_workers.py``). Beside them the part of a gateway that feeds its index, in this
process. Measured is the time until the caches of all are known, and the longest time that one callback of the
gateway's event loop takes of its thread: streams of clients wait for that long at most.
"""

import asyncio
import os
import signal
import sys
import time
from asyncio import events
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, astuple, dataclass
from functools import partial
from random import Random
from typing import Any, Final

import aiohttp

from bench.engine_process import EngineProcess
from bench.kv_feed_workers import BLOCK_SIZE, TOKEN, prompt_tokens
from bench.rows import Row, finish, options, repeated, row
from pointsman.api.protocol.names import Role
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.router import token_load
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.kv_events import KvEventFeed
from pointsman.gateway.types import UNKNOWN_LOAD, Discovered, Worker, WorkerKey
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.serving.block_hashes import chained_block_hashes

COMMAND: Final = "make bench-kv-feed"
MAX_S: Final = 3.0
MAX_SLICE_MS: Final = 20.0
PATIENCE_S: Final = 60.0
POLL_S: Final = 0.002
OLD_PROMPTS: Final = 25  # looked for: stored first, before anything that a buffer still has


@dataclass(frozen=True)
class WorkerLoad:
    """What the workers are. ``batches``: published before anybody asks; ``blocks``: in each cache since then."""

    workers: int = 8
    blocks: int = 100_000
    batches: int = 20_000
    buffer: int = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """One way of coming to know the caches: seconds until all are known, and the longest callback meanwhile."""

    seconds: float
    slice_ms: float
    hits: float  # least share of the old blocks that was known: at its end, or all the time where it was known before


class Slices:
    """The longest time of its thread that one callback of the event loop took since ``begin``."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    @contextmanager
    def watched(self) -> Iterator["Slices"]:
        run: Any = events.Handle._run

        def timed(handle: Any) -> None:
            began_s = time.thread_time()
            run(handle)
            self.longest_s = max(self.longest_s, time.thread_time() - began_s)

        events.Handle._run = timed  # type: ignore[method-assign, assignment]
        try:
            yield self
        finally:
            events.Handle._run = run  # type: ignore[method-assign]

    def begin(self) -> None:
        self.longest_s = 0.0


class Gateway:
    """A fleet of the workers and the feed of its index. It follows no worker yet."""

    def __init__(self, session: aiohttp.ClientSession, workers: tuple[Worker, ...]) -> None:
        self.workers = workers
        self.fleet = Fleet(
            clock=time.monotonic,
            rng=Random(1),
            cost=token_load,
            index=KvIndex(),
            load_of=lambda _worker: UNKNOWN_LOAD,
            suspect_seconds=1.0,
        )
        self.feed = KvEventFeed(self.fleet, session, control_token=TOKEN)
        self.fleet.on_change(self.feed.look)
        self._old = [chained_block_hashes(prompt_tokens(n, 100), BLOCK_SIZE) for n in range(OLD_PROMPTS)]

    def use(self, *workers: Worker) -> None:
        """These are the workers from now on."""
        self.fleet.apply(Discovered(workers or self.workers))

    @property
    def complete(self) -> bool:
        """The caches of all decode workers are known."""
        decoding = {worker.key for worker in self.fleet.workers if worker.role is Role.DECODE}
        return self.feed.known == decoding

    def hits(self, number: int) -> float:
        """The share of an old prompt's blocks that is known to be at every worker."""
        chain = self._old[number % OLD_PROMPTS]
        found = self.fleet.index.matches(chain)
        return min(found.get(worker.key, 0) for worker in self.workers) / len(chain)

    def all_hits(self) -> float:
        """The same of all old prompts."""
        return min(self.hits(number) for number in range(OLD_PROMPTS))


async def measure(load: WorkerLoad, runs: int) -> dict[str, list[Found]]:
    """What was found, by the way it was found."""
    found: dict[str, list[Found]] = {}
    with running_workers(load) as (workers, pids), Slices().watched() as slices:
        for _ in range(runs):
            async with gateways(workers) as (first, second, third):
                ways = (("first gateway", first), ("", second), ("third gateway", third), ("switch to decode", first))
                for name, gateway in ways:
                    if name == "switch to decode":
                        switched = Worker(workers[0].key, workers[0].name, workers[0].url, Role.PREFILL)
                        gateway.use(switched, *workers[1:])
                    slices.begin()
                    began_s = time.monotonic()
                    gateway.use()
                    await completed(gateway)
                    seconds, slice_ms = time.monotonic() - began_s, slices.longest_s * 1e3
                    if name:
                        found.setdefault(name, []).append(Found(seconds, slice_ms, gateway.all_hits()))
                await second.feed.stop()
                await third.feed.stop()
                found.setdefault("reconnect", []).append(await reconnected(first, pids, slices))
    return found


async def reconnected(gateway: Gateway, pids: list[int], slices: Slices) -> Found:
    """All connections are cut at once."""
    slices.begin()
    least, number = 1.0, 0
    began_s = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    unbroken = {worker.key for worker in gateway.workers}
    while unbroken or not gateway.complete:
        unbroken &= gateway.feed.known
        least = min(least, gateway.hits(number))
        number += 1
        await asyncio.sleep(POLL_S)
        _give_up_after(began_s)
    return Found(time.monotonic() - began_s, slices.longest_s * 1e3, min(least, gateway.all_hits()))


async def completed(gateway: Gateway) -> None:
    """Wait until the caches of all workers are known."""
    began_s = time.monotonic()
    while not gateway.complete:
        await asyncio.sleep(POLL_S)
        _give_up_after(began_s)


def _give_up_after(began_s: float) -> None:
    if time.monotonic() - began_s > PATIENCE_S:
        raise TimeoutError(f"the caches are not known after {PATIENCE_S:.0f} s")


@asynccontextmanager
async def gateways(workers: tuple[Worker, ...]) -> AsyncIterator[list[Gateway]]:
    """Three gateways in one event loop, which they share as requests would share it with one."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, read_bufsize=2**18
    ) as session:
        made = [Gateway(session, workers) for _ in range(3)]
        try:
            yield made
        finally:
            for gateway in made:
                await gateway.feed.stop()


@contextmanager
def running_workers(load: WorkerLoad) -> Iterator[tuple[tuple[Worker, ...], list[int]]]:
    """The workers, busy as ``load`` says, and their process ids."""
    arguments = map(str, astuple(load))
    with EngineProcess(ensure_engine_environment(), "bench.kv_feed_workers", *arguments) as process:
        ready = []
        for number in range(load.workers):
            ready.append(process.answer())
            print(f"worker {number + 1} of {load.workers}: {ready[-1]['blocks']} blocks", file=sys.stderr)
        workers = (Worker(WorkerKey(f"w{n}"), f"w{n}", one["url"], Role.DECODE) for n, one in enumerate(ready))
        yield tuple(workers), [one["pid"] for one in ready]


def rows(found: dict[str, list[Found]], command: str) -> list[Row]:
    """The rows of the benchmark."""
    made = []
    for name, each in found.items():
        of = partial(row, command=command)
        made += [
            of(f"{name}: caches of all workers known", "s", [one.seconds for one in each], at_most=MAX_S),
            of(f"{name}: longest callback, thread CPU", "ms", [one.slice_ms for one in each], at_most=MAX_SLICE_MS),
            of(f"{name}: old blocks known", "share", [one.hits for one in each], at_least=1.0),
        ]
    return made


def main(argv: list[str]) -> int:
    """Measure and write ``bench/results/kv_feed.json``; 1 if a target is missed."""
    load = {name: (default, "of the load") for name, default in asdict(WorkerLoad()).items()}
    asked = vars(options(COMMAND, __doc__, argv, runs=(3, "runs"), **load))
    runs = asked.pop("runs")
    return finish("kv_feed", rows(asyncio.run(measure(WorkerLoad(**asked), runs)), repeated(COMMAND, argv)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
