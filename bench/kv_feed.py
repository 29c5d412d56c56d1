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
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.engine_process import engine_process
from bench.rows import Row, finish, listed, options, repeated
from fixtures.kv_event_publisher import BLOCK, prompt_tokens
from fixtures.kv_feed import kv_feed
from pointsman.api.protocol.names import Role
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.kv_events import KvEventFeed
from pointsman.gateway.types import Discovered, Worker, WorkerKey
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.serving.block_hashes import chained_block_hashes

COMMAND: Final = "make bench-kv-feed"
WORKERS: Final = 8
PATIENCE_S: Final = 60.0
POLL_S: Final = 0.002
# Stored first, before anything that a buffer still has.
OLD_PROMPTS: Final = [chained_block_hashes(prompt_tokens(number, 100), BLOCK) for number in range(25)]


@dataclass(frozen=True, slots=True)
class Found:
    """One way of coming to know the caches: seconds until all are known, and the longest callback meanwhile."""

    seconds: float
    slice_ms: float
    hits: float  # least share of the old blocks that was known: at its end, or all the time where it was known before


class LongestCallback:
    """The longest time of its thread that one callback of the event loop took since ``seconds`` was 0."""

    seconds = 0.0

    def watch(self) -> None:
        """Measure all callbacks from now on."""
        run = events.Handle._run

        def timed(handle: Any) -> None:
            began_s = time.thread_time()
            run(handle)
            self.seconds = max(self.seconds, time.thread_time() - began_s)

        events.Handle._run = timed  # type: ignore[method-assign, assignment]


async def measure(runs: int) -> dict[str, list[Found]]:
    """What was found, by the way it was found."""
    found: dict[str, list[Found]] = defaultdict(list)
    longest = LongestCallback()
    longest.watch()
    program = partial(engine_process, ensure_engine_environment(), "bench.kv_feed_workers", str(WORKERS))
    with TemporaryDirectory() as sockets, program(TMPDIR=sockets) as ask:
        told = [ask(None) for _ in range(WORKERS)]
        workers = [Worker(WorkerKey(f"w{n}"), f"w{n}", each["url"], Role.DECODE) for n, each in enumerate(told)]
        for _ in range(runs):
            async with kv_feed(*workers) as first:
                found["first gateway"].append(await learned(*first, longest))
                async with kv_feed(*workers) as second:
                    await learned(*second, longest)
                    async with kv_feed(*workers) as third:
                        found["third gateway"].append(await learned(*third, longest))
                        for now in (replace(workers[0], role=Role.PREFILL), workers[0]):
                            first[0].apply(Discovered((now, *workers[1:])))
                        found["switch to decode"].append(await learned(*first, longest))
                for each in told:
                    os.kill(each["pid"], signal.SIGUSR1)  # it cuts all its connections
                unbroken = {worker.key for worker in workers}
                found["reconnect"].append(await learned(*first, longest, unbroken))
    return found


async def learned(
    fleet: Fleet, feed: KvEventFeed, longest: LongestCallback, unbroken: set[WorkerKey] | None = None
) -> Found:
    """Wait until the caches of all workers are known, after the streams of those ``unbroken`` were seen to break."""
    longest.seconds, began_s = 0.0, time.monotonic()
    keys = {worker.key for worker in fleet.workers}
    prompts = cycle(OLD_PROMPTS)
    hits: list[float] = []

    def look(chain: Sequence[int]) -> None:
        held = fleet.index.matches(chain)
        hits.append(min(held.get(key, 0) for key in keys) / len(chain))

    async with asyncio.timeout(PATIENCE_S):
        while unbroken or feed.known != keys:
            if unbroken is not None:
                unbroken &= feed.known
                look(next(prompts))
            await asyncio.sleep(POLL_S)
    seconds, slice_ms = time.monotonic() - began_s, longest.seconds * 1e3
    for chain in OLD_PROMPTS:
        look(chain)
    return Found(seconds, slice_ms, min(hits))


def rows(found: Mapping[str, Sequence[Found]], command: str) -> list[Row]:
    """The rows of the benchmark."""
    made = list[Row]()
    for way, each in found.items():
        made += listed("kv_feed", command, [asdict(one) for one in each], way=way)
    return made


def main(argv: list[str]) -> int:
    """Measure and write ``bench/results/kv_feed.json``; 1 if a target is missed."""
    asked = options(COMMAND, __doc__, argv, runs=(3, "runs"))
    return finish("kv_feed", rows(asyncio.run(measure(asked.runs)), repeated(COMMAND, argv)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
