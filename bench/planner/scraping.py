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
from pathlib import Path
from typing import Final

from aiohttp import web

from bench.rows import Row, finish, listed, options, row
from pointsman.planner.scraper import Scraper

COMMAND: Final = "make bench-scraping"
CAPTURES: Final = Path(__file__).parents[2] / "tests" / "unit" / "planner" / "captures"
TIMEOUT_S: Final = 2.0
INTERVAL_S: Final = 2.5  # of a policy, by default
MOST_MIB: Final = 168.0  # a quarter of what whole pages took
TICK_S: Final = 0.002
SERVERS: Final = 2


def _serve(listening: Sequence[socket.socket]) -> None:
    """A process: a page of vLLM at each address, as each pod has one of its own."""
    pages = [(CAPTURES / f"vllm_metrics_{role}.txt").read_bytes() for role in ("prefill", "decode")]

    async def page(request: web.Request) -> web.Response:
        return web.Response(body=pages[len(request.host) % 2], content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", page)
    web.run_app(app, sock=listening, access_log=None, print=None)


@contextmanager
def served(workers: int) -> Iterator[dict[str, str]]:
    """URLs of so many workers."""
    # The servers open two sockets for each worker.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listening = [socket.create_server((f"127.78.{n // 250}.{n % 250 + 1}", 0)) for n in range(workers)]
    urls = ["http://{}:{}/metrics".format(*each.getsockname()) for each in listening]
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_serve, args=(listening[n::SERVERS],), daemon=True) for n in range(SERVERS)]
    try:
        for process in processes:
            process.start()
        yield {url: url for url in urls}
    finally:
        for process in processes:
            process.terminate()
            process.join()


async def rounds(reader: Scraper, urls: Mapping[str, str], count: int) -> list[dict[str, float]]:
    """So many rounds, one an interval, after two that are not counted.

    Of each the seconds it took, the longest that the event loop stood still in it (ms), and the pages that were lost.
    """
    found = []
    for _ in range(count + 2):
        stall = asyncio.create_task(_longest_stall_s(asyncio.get_running_loop()))
        began_s = time.perf_counter()
        await reader.scrape(urls)
        took_s = time.perf_counter() - began_s
        stall.cancel()
        lost = float(sum(map(reader.failed, urls)))
        found.append({"seconds": took_s, "stall_ms": 1e3 * await stall, "lost": lost})
        await asyncio.sleep(max(0.0, INTERVAL_S - took_s))
    return found[2:]


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


async def measure(urls: Mapping[str, str], count: int) -> tuple[list[dict[str, float]], float]:
    """The rounds, and MiB that are kept of pages."""
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
    with served(workers) as urls:
        found, mib = asyncio.run(measure(urls, count))
    memory = row(f"memory of the last two pages of {workers} workers", "MiB", [mib], at_most=MOST_MIB, command=COMMAND)
    return [*listed("scraping", COMMAND, found, workers=workers), memory]


if __name__ == "__main__":
    asked = options(COMMAND, __doc__, workers=(1000, "pages"), rounds=(9, "counted rounds"))
    sys.exit(finish("scraping", scraping_rows(asked.workers, asked.rounds)))
