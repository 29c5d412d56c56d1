"""Direct scrapes of many targets on loopback: none waits for those that do not answer, connections are kept and few.

P-D8: once pages were parsed whole, in the event loop, and those of 256 workers came too late.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from pointsman.planner import scraper as module
from pointsman.planner.core.metrics.scrape_pair import Page
from pointsman.planner.exposition import PageParser
from pointsman.planner.scraper import Scraper

PAGE = "vllm:num_requests_running 3.0\nvllm:iteration_tokens_total_sum 9.0\n"


class Server:
    """Answers with a page, and counts who comes."""

    def __init__(self) -> None:
        self.connections: set[object] = set()
        self.open = self.most_open = 0
        self.answer: Callable[[web.Request], web.StreamResponse | None] = lambda _: None
        self.asked: list[str] = []
        self.release = asyncio.Event()
        self.url = ""

    async def page(self, request: web.Request) -> web.StreamResponse:
        self.connections.add(request.transport)
        self.asked.append(request.path)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            if request.path.startswith("/hung"):
                await self.release.wait()
            return self.answer(request) or web.Response(text=PAGE)
        finally:
            self.open -= 1


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_get("/{name:.*}", server.page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = site.name
    try:
        yield server
    finally:
        server.release.set()
        await runner.cleanup()


async def test_only_the_samples_of_an_observation_are_kept() -> None:
    async with serving() as server, Scraper(5.0) as scraper:
        for _ in range(2):
            await scraper.scrape({"a": f"{server.url}/a"})
        reading = scraper.reading("a")
    assert reading is not None
    assert reading.page == {"vllm:num_requests_running": {(): 3.0}}
    assert not reading.is_old


async def test_pages_are_parsed_outside_the_thread_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand pages take a second to parse, in which nothing else of the planner would run."""
    threads: list[int] = []
    parse = PageParser.parse

    def recorded(self: PageParser, text: str) -> Page:
        threads.append(threading.get_ident())
        return parse(self, text)

    monkeypatch.setattr(PageParser, "parse", recorded)
    async with serving() as server, Scraper(5.0) as scraper:
        urls = {name: f"{server.url}/{name}" for name in ("a", "b")}
        for _ in range(2):
            await scraper.scrape(urls)
        assert not any(map(scraper.failed, urls))
    assert len(threads) == 4
    assert threading.get_ident() not in threads


async def test_after_a_failure_the_pages_before_it_are_old_and_age() -> None:
    async with serving() as server, Scraper(5.0) as scraper:
        urls = {"a": f"{server.url}/a"}
        for _ in range(2):
            await scraper.scrape(urls)
        before = scraper.reading("a")
        server.answer = lambda _: web.Response(status=500)
        await scraper.scrape(urls)
        reading, age_s = scraper.reading("a"), scraper.age_s("a")
        assert before is not None and reading is not None
        assert (reading.page, reading.seconds, reading.is_old) == (before.page, before.seconds, True)
        assert scraper.failed("a")
        assert 0 < age_s < scraper.age_s("a")
        assert reading.within(age_s, stale_after_s=20.0).page is not None
        assert reading.within(20.1, stale_after_s=20.0).page is None
        server.answer = lambda _: None
        await scraper.scrape(urls)
        again = scraper.reading("a")
    assert again is not None and not again.is_old and not scraper.failed("a")


async def test_connections_are_kept_between_rounds_and_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_CONNECTIONS", 5)
    monkeypatch.setattr(module, "MAX_CONCURRENT", 4)
    async with serving() as server, Scraper(5.0) as scraper:
        # Targets of one host share connections: so many are open as are read at one time.
        urls = {f"kept-{n}": f"{server.url}/{n}" for n in range(5)}
        for _ in range(4):
            await scraper.scrape(urls)
        assert len(server.connections) <= 4
        assert server.most_open <= 4
        server.connections.clear()
        more = {f"more-{n}": f"{server.url}/{n}" for n in range(3)}
        for _ in range(2):
            await scraper.scrape({**urls, **more})
        assert len(server.connections) >= 6, "each of the further ones has a new connection each time"
        scraper.keep(set(), "kept-")
        await scraper.scrape({"new": f"{server.url}/new"})
        assert scraper._targets["new"].is_kept, "there is room again"


async def test_targets_that_do_not_answer_are_read_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONCURRENT", 2)
    async with serving() as server, Scraper(0.3) as scraper:
        urls = {f"hung-{n}": f"{server.url}/hung-{n}" for n in range(4)} | {"a": f"{server.url}/a"}
        await scraper.scrape(urls)
        assert not scraper.failed("a"), "a page's timeout begins with its request"
        server.asked.clear()
        await scraper.scrape(urls)
        assert server.asked[0] == "/a"
        assert scraper.reading("a") is not None


async def test_a_page_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAGE_BYTES", 1000)
    async with serving() as server, Scraper(5.0) as scraper:
        server.answer = lambda _: web.Response(text=PAGE * 100)
        await scraper.scrape({"a": f"{server.url}/a"})
    assert scraper.failed("a")


@pytest.mark.parametrize(
    ("status", "host", "read"), [(307, "127.0.0.1", True), (307, "localhost", False), (302, "127.0.0.1", False)]
)
async def test_a_pod_sends_the_planner_to_a_port_of_its_own_and_nowhere_else(
    status: int, host: str, read: bool
) -> None:
    """Gateways redirect to the port of their metrics; what else runs in a pod is its users'."""
    async with serving() as pod, serving() as other, Scraper(5.0) as scraper:
        location = {"Location": f"{other.url.replace('127.0.0.1', host)}/metrics"}
        pod.answer = lambda _: web.Response(status=status, headers=location)
        await scraper.scrape({"a": f"{pod.url}/metrics"})
    assert scraper.failed("a") is not read
    assert other.asked == (["/metrics"] if read else [])
