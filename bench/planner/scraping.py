"""``make bench-scraping``: one planner reads the /metrics of a thousand workers.

Pages are those that were captured of vLLM, served on loopback by processes of their own. What whole pages parsed in the
event loop took beside it: docs/design/0015-benchmarks.md.
"""

import asyncio
import multiprocessing
import resource
import socket
import sys
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

from aiohttp import web

from bench.rows import Row, finish, options, row
from pointsman.planner.scraper import Scraper

COMMAND: Final = "make bench-scraping"
CAPTURES: Final = Path(__file__).parents[2] / "tests" / "unit" / "planner" / "captures"
TIMEOUT_S: Final = 2.0
INTERVAL_S: Final = 2.5  # of a policy, by default
STALL_MS: Final = 100.0
MOST_MIB: Final = 168.0  # a quarter of what whole pages took
TICK_S: Final = 0.002
SERVERS: Final = 2


@dataclass(frozen=True)
class Round:
    """Seconds that one round took, the longest that the event loop stood still in it, and targets that were lost."""

    seconds: float
    stall_s: float
    lost: int


def _serve(pipe: Connection, addresses: Sequence[str]) -> None:
    """A process: a page of vLLM at each address, as each pod has one of its own; sends their URLs."""
    _open_many()
    pages = [(CAPTURES / f"vllm_metrics_{role}.txt").read_bytes() for role in ("prefill", "decode")]

    async def page(request: web.Request) -> web.Response:
        return web.Response(body=pages[len(request.host) % 2], content_type="text/plain")

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/metrics", page)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        urls = []
        for address in addresses:
            listening = socket.create_server((address, 0))
            urls.append(f"http://{address}:{listening.getsockname()[1]}/metrics")
            await web.SockSite(runner, listening).start()
        pipe.send(urls)
        await asyncio.Event().wait()

    asyncio.run(run())


def _open_many() -> None:
    """Allow as many sockets as the system does: the servers open two for each worker."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextmanager
def served(workers: int) -> Iterator[dict[str, str]]:
    """URLs of so many workers."""
    context = multiprocessing.get_context("spawn")
    addresses = [f"127.78.{n // 250}.{n % 250 + 1}" for n in range(workers)]
    processes: list[SpawnProcess] = []
    urls: list[str] = []
    try:
        for number in range(SERVERS):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=_serve, args=(theirs, addresses[number::SERVERS]), daemon=True))
            processes[-1].start()
            urls += ours.recv()
        yield {url: url for url in urls}
    finally:
        for process in processes:
            process.terminate()
            process.join()


async def rounds(reader: Scraper, urls: Mapping[str, str], count: int) -> list[Round]:
    """So many rounds, one an interval, after two that are not counted."""
    found = []
    for number in range(count + 2):
        stall = asyncio.create_task(_longest_stall_s(asyncio.get_running_loop()))
        began_s = time.perf_counter()
        await reader.scrape(urls)
        took_s = time.perf_counter() - began_s
        stall.cancel()
        stood_s = await stall
        if number >= 2:
            found.append(Round(took_s, stood_s, sum(map(reader.failed, urls))))
        await asyncio.sleep(max(0.0, INTERVAL_S - took_s))
    return found


async def _longest_stall_s(loop: asyncio.AbstractEventLoop) -> float:
    """Until cancelled: how much later than asked for a timer came at most."""
    longest_s, before_s = 0.0, loop.time()
    try:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = loop.time()
            longest_s, before_s = max(longest_s, now_s - before_s - TICK_S), now_s
    except asyncio.CancelledError:
        return longest_s


async def measure(workers: int, count: int) -> tuple[list[Round], float]:
    """(rounds, MiB that are kept of pages)."""
    with served(workers) as urls:
        async with Scraper(TIMEOUT_S) as scraper:
            found = await rounds(scraper, urls, count)
        tracemalloc.start()
        async with Scraper(60.0) as scraper:
            for _ in range(2):
                await scraper.scrape(urls)
            mib = tracemalloc.get_traced_memory()[0] / 2**20
        tracemalloc.stop()
    return found, mib


def scraping_rows(workers: int, count: int) -> list[Row]:
    """What a round takes, how long the loop stands still, what is lost, what is kept."""
    found, mib = asyncio.run(measure(workers, count))
    judged: tuple[tuple[str, str, list[float], float], ...] = (
        ("one round over", "s", [each.seconds for each in found], INTERVAL_S),
        ("longest stall of the event loop in a round over", "ms", [each.stall_s * 1e3 for each in found], STALL_MS),
        ("pages lost in a round over", "pages", [float(each.lost) for each in found], 0),
        ("memory of the last two pages of", "MiB", [mib], MOST_MIB),
    )
    return [
        row(f"{what} {workers} workers", unit, of, at_most=most, command=COMMAND) for what, unit, of, most in judged
    ]


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    asked = options(COMMAND, __doc__, argv, workers=(1000, "pages"), rounds=(9, "counted rounds"))
    _open_many()
    return finish("scraping", scraping_rows(asked.workers, asked.rounds))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
