"""``make bench-scraping``: one planner reads the /metrics of a thousand workers.

Pages are those that were captured of vLLM, served on loopback by processes of their own. Beside it, in the same run, is
what the planner did before: each page parsed whole in the event loop, all requests begun at once, a timeout that counts
the wait for a connection.
"""

import argparse
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
from typing import Final, Protocol

import aiohttp
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from bench.rows import Row, row, write
from pointsman.planner.core.metrics.scrape_pair import Labels
from pointsman.planner.scraper import Scraper

COMMAND: Final = "make bench-scraping"
PEER: Final = "whole pages in the event loop"
CAPTURES: Final = Path(__file__).parents[2] / "tests" / "unit" / "planner" / "captures"
TIMEOUT_S: Final = 2.0
INTERVAL_S: Final = 2.5  # of a policy, by default
STALL_S: Final = 0.1
TICK_S: Final = 0.002
SERVERS: Final = 2


class Reader(Protocol):
    """Reads all pages."""

    async def scrape(self, urls: Mapping[str, str]) -> None:
        """Read these, key to URL."""

    def failed(self, key: str) -> bool:
        """The newest attempt failed."""


class WholePages:
    """As the planner read pages before."""

    def __init__(self, timeout_s: float) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s))
        self._pages: dict[str, list[dict[str, dict[Labels, float]]]] = {}
        self._failed: set[str] = set()

    async def scrape(self, urls: Mapping[str, str]) -> None:
        """All side by side."""
        await asyncio.gather(*(self._scrape(key, url) for key, url in urls.items()))

    async def _scrape(self, key: str, url: str) -> None:
        try:
            async with self._session.get(url) as answer:
                page: dict[str, dict[Labels, float]] = {}
                for family in text_string_to_metric_families(await answer.text()):
                    for sample in family.samples:
                        page.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        except (aiohttp.ClientError, TimeoutError):
            self._failed.add(key)
            return
        self._failed.discard(key)
        self._pages[key] = [*self._pages.get(key, [])[-1:], page]

    def failed(self, key: str) -> bool:
        """The newest attempt failed."""
        return key in self._failed

    async def close(self) -> None:
        """End it."""
        await self._session.close()


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
    """Allow as many sockets as the system does: the peer opens one for each worker, the servers two."""
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


async def rounds(reader: Reader, urls: Mapping[str, str], count: int) -> list[Round]:
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


async def measure(workers: int, count: int) -> tuple[list[Round], list[Round], float, float]:
    """(rounds of ours, of the peer, MiB that ours and that the peer keep of pages)."""
    with served(workers) as urls:
        async with Scraper(TIMEOUT_S) as scraper:
            ours = await rounds(scraper, urls, count)
        before = WholePages(TIMEOUT_S)
        peer = await rounds(before, urls, count)
        await before.close()
        tracemalloc.start()
        async with Scraper(60.0) as scraper:
            for _ in range(2):
                await scraper.scrape(urls)
            ours_mib = tracemalloc.get_traced_memory()[0] / 2**20
        tracemalloc.stop()
        tracemalloc.start()
        few = dict(list(urls.items())[: max(1, workers // 10)])  # whole pages of all may be more than there is
        before = WholePages(60.0)
        for _ in range(2):
            await before.scrape(few)
        peer_mib = tracemalloc.get_traced_memory()[0] / 2**20 * workers / len(few)
        tracemalloc.stop()
        await before.close()
    return ours, peer, ours_mib, peer_mib


def scraping_rows(workers: int, count: int) -> list[Row]:
    """What a round takes, how long the loop stands still, what is lost, what is kept."""
    ours, peer, ours_mib, peer_mib = asyncio.run(measure(workers, count))
    name = f"{workers} workers"
    return [
        row(
            f"one round over {name}", "s", [each.seconds for each in ours], peer=[each.seconds for each in peer],
            peer_name=PEER, at_most=INTERVAL_S, command=COMMAND,
        ),
        row(
            f"longest stall of the event loop in a round over {name}", "ms", [each.stall_s * 1e3 for each in ours],
            peer=[each.stall_s * 1e3 for each in peer], peer_name=PEER, at_most=STALL_S * 1e3, command=COMMAND,
        ),
        row(
            f"pages lost in a round over {name}", "pages", [float(each.lost) for each in ours],
            peer=[float(each.lost) for each in peer], peer_name=PEER, at_most=0, command=COMMAND,
        ),
        row(
            f"memory of the last two pages of {name}", "MiB", [ours_mib], peer=[peer_mib], peer_name=PEER,
            of_ratio=True, at_most=0.25, command=COMMAND,
        ),
    ]  # fmt: skip


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000, help="pages (default: 1000)")
    parser.add_argument("--rounds", type=int, default=9, help="counted rounds of each side (default: 9)")
    options = parser.parse_args(argv)
    _open_many()
    rows = scraping_rows(options.workers, options.rounds)
    path = write("scraping", rows)
    for each in rows:
        beside = f", {each.peer_name} {each.peer:g}" if each.peer is not None else ""
        print(f"{'met   ' if each.met else 'MISSED'} {each.name}: {each.ours:g} {each.unit}{beside} ({each.target})")
    print(f"wrote {path}")
    return 0 if all(each.met for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
