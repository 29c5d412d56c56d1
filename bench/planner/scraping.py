"""``make bench-scraping``: one planner reads the metrics of a thousand workers, directly and from Prometheus.

Pages are those that were captured of vLLM, served on loopback by processes of their own. What whole pages parsed in the
event loop took beside it: docs/design/0015-benchmarks.md.
"""

import asyncio
import gc
import multiprocessing
import resource
import socket
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from bench.planner.prometheus_stand_in import NAMESPACE, StandIn, capture, pod_names
from bench.rows import Row, finish, listed, options, row
from pointsman.planner.prometheus import Prometheus, PrometheusReadings
from pointsman.planner.scraper import Scraper

COMMAND: Final = "make bench-scraping"
TIMEOUT_S: Final = 2.0
INTERVAL_S: Final = 2.5  # of a policy, by default
MOST_MIB: Final = 168.0  # a quarter of what whole pages took
TICK_S: Final = 0.002
SERVERS: Final = 2

Look = Callable[[], Awaitable[int]]
"""Reads all workers once; returns how many pages were lost."""


def _serve_pages(listening: Sequence[socket.socket]) -> None:
    """A process: a page of vLLM at each address, as each pod has one of its own."""
    pages = [capture(role).encode() for role in ("prefill", "decode")]

    async def page(request: web.Request) -> web.Response:
        return web.Response(body=pages[len(request.host) % 2], content_type="text/plain")

    app = web.Application()
    app.router.add_get("/metrics", page)
    web.run_app(app, sock=listening, access_log=None, print=None)


def _serve_prometheus(listening: Sequence[socket.socket]) -> None:
    """A process: a stand-in for Prometheus."""
    web.run_app(StandIn().app(), sock=listening, access_log=None, print=None)


@contextmanager
def _processes(serve: Callable[[Sequence[socket.socket]], None], *of_each: Sequence[socket.socket]) -> Iterator[None]:
    """A process for each of these lists of sockets, which serves on them."""
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=serve, args=(listening,), daemon=True) for listening in of_each]
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


@contextmanager
def served(workers: int) -> Iterator[dict[str, str]]:
    """URLs of so many workers."""
    # The servers open two sockets for each worker.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listening = [socket.create_server((f"127.78.{n // 250}.{n % 250 + 1}", 0)) for n in range(workers)]
    urls = ["http://{}:{}/metrics".format(*each.getsockname()) for each in listening]
    with _processes(_serve_pages, *(listening[n::SERVERS] for n in range(SERVERS))):
        yield {url: url for url in urls}


@contextmanager
def prometheus() -> Iterator[Prometheus]:
    """A client of the stand-in."""
    listening = socket.create_server(("127.0.0.1", 0))
    with _processes(_serve_prometheus, [listening]):
        server = Prometheus("http://{}:{}".format(*listening.getsockname()), TIMEOUT_S)
        try:
            yield server
        finally:
            server.close()


async def rounds(look: Look, count: int) -> list[dict[str, float]]:
    """So many rounds, one an interval, after two that are not counted.

    Of each the seconds it took, the longest that the event loop stood still in it (ms), and the pages that were lost.
    """
    found = []
    for _ in range(count + 2):
        stall = asyncio.create_task(_longest_stall_s(asyncio.get_running_loop()))
        await asyncio.sleep(TICK_S)  # the meter runs before the look does
        began_s = time.perf_counter()
        lost = await look()
        took_s = time.perf_counter() - began_s
        stall.cancel()
        found.append({"seconds": took_s, "stall_ms": 1e3 * await stall, "lost": float(lost)})
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
        return max(longest_s, loop.time() - before_s - TICK_S)  # the timer that did not come counts too


async def measure_pages(urls: Mapping[str, str], count: int) -> tuple[list[dict[str, float]], float]:
    """The rounds of a direct scrape, and MiB that are kept of pages."""
    async with Scraper(TIMEOUT_S) as scraper:

        async def look() -> int:
            await scraper.scrape(urls)
            return sum(map(scraper.failed, urls))

        found = await rounds(look, count)
    tracemalloc.start()
    async with Scraper(60.0) as scraper:
        for _ in range(2):
            await scraper.scrape(urls)
        mib = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    return found, mib


async def measure_prometheus(server: Prometheus, pods: Mapping[str, str], count: int) -> list[dict[str, float]]:
    """The rounds of a reader of Prometheus. A page is lost that is as old as at the look before."""
    readings = PrometheusReadings(server)

    async def look() -> int:
        before = {key: readings.page_s(key) for key in pods}
        await readings.read(NAMESPACE, pods)
        return sum(readings.page_s(key) == before[key] for key in pods)

    return await rounds(look, count)


def scraping_rows(workers: int, count: int) -> list[Row]:
    """What a round takes, how long the loop stands still, what is lost, what is kept; the same from Prometheus."""
    with served(workers) as urls:
        found, mib = asyncio.run(measure_pages(urls, count))
    memory = row(f"memory of the last two pages of {workers} workers", "MiB", [mib], at_most=MOST_MIB, command=COMMAND)
    with prometheus() as server:
        queried = asyncio.run(measure_prometheus(server, pod_names(workers), count))
    return [
        *listed("scraping", COMMAND, found, workers=workers),
        memory,
        *listed("scraping_prometheus", COMMAND, queried, workers=workers),
    ]


if __name__ == "__main__":
    asked = options(COMMAND, __doc__, workers=(1000, "pages"), rounds=(9, "counted rounds"))
    gc.collect()
    gc.freeze()  # as the planner's process does
    sys.exit(finish("scraping", scraping_rows(asked.workers, asked.rounds)))
