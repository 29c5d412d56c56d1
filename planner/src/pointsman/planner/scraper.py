"""Direct scrape of workers' and gateways' /metrics, with the age of every answer."""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

import aiohttp
from yarl import URL

from pointsman.planner.core.metrics.observe import FAMILIES, Reading
from pointsman.planner.core.metrics.scrape_pair import Page
from pointsman.planner.exposition import PageParser
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

MAX_CONCURRENT: Final = 128  # requests of one round
MAX_KEPT_CONNECTIONS: Final = 512  # idle between two rounds; further targets get a new connection each time
KEEP_ALIVE_S: Final = 60.0
MAX_PAGE_BYTES: Final = 8 * 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_CLOSE: Final = {"Connection": "close"}


@dataclass(slots=True)
class _Target:
    before: Page | None = None
    before_s: float = 0.0
    page: Page | None = None
    page_s: float = 0.0
    failed: bool = False
    is_kept: bool = False  # its connection


class Scraper:
    """The last two pages of every target. Targets are told apart by a key that changes when the process does.

    Only the samples of an observation are kept. Pages are parsed in a thread, so a round of a thousand of them does not
    stop the event loop.
    """

    def __init__(self, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        """``timeout_s``: of one page, from the moment that its request is sent."""
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._clock = clock
        self._targets: dict[str, _Target] = {}
        self._kept = 0
        self._session: aiohttp.ClientSession | None = None
        self._parser = PageParser(FAMILIES)
        self._thread: ThreadPoolExecutor | None = None

    async def __aenter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics-parser")
        # The rounds bound the requests: a wait for the connector would be part of a page's timeout.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def scrape(self, urls: Mapping[str, str]) -> None:
        """Read every target, key to URL, side by side; failures are remembered, not raised.

        Targets that failed the last time are read last: where many do not answer, the others do not wait for them.
        """
        slots = asyncio.Semaphore(MAX_CONCURRENT)

        async def one(key: str, url: str) -> None:
            async with slots:
                await self._scrape(key, url)

        await asyncio.gather(*(one(key, urls[key]) for key in sorted(urls, key=self.failed)))

    async def _scrape(self, key: str, url: str) -> None:
        if self._session is None or self._thread is None:
            raise RuntimeError("the scraper is not open")
        target = self._targets.get(key) or self._add(key)
        try:
            body = await _read(self._session, URL(url), {} if target.is_kept else _CLOSE)
            page = await asyncio.get_running_loop().run_in_executor(self._thread, self._parse, body)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            target.failed = True
            log.debug("target not read", extra={"target": key, "why": str(error) or type(error).__name__})
            return
        target.failed = False
        target.before, target.before_s = target.page, target.page_s
        target.page, target.page_s = page, self._clock.monotonic_s()

    def _parse(self, body: bytes) -> Page:
        return self._parser.parse(body.decode())

    def _add(self, key: str) -> _Target:
        made = self._targets[key] = _Target(is_kept=self._kept < MAX_KEPT_CONNECTIONS)
        self._kept += made.is_kept
        return made

    def reading(self, key: str) -> Reading | None:
        """The last two pages of a target; None before the second one."""
        target = self._targets.get(key)
        if target is None or target.before is None or target.page is None:
            return None
        return Reading(target.before, target.page, target.page_s - target.before_s, is_old=target.failed)

    def failed(self, key: str) -> bool:
        """The newest attempt failed."""
        target = self._targets.get(key)
        return target is not None and target.failed

    def age_s(self, key: str) -> float:
        """Since the target's last answer; infinite if it never answered."""
        target = self._targets.get(key)
        return self._clock.monotonic_s() - target.page_s if target and target.page is not None else float("inf")

    def keep(self, keys: set[str], prefix: str) -> None:
        """Forget the targets under ``prefix`` that are not in ``keys``."""
        for key in [key for key in self._targets if key.startswith(prefix) and key not in keys]:
            self._kept -= self._targets.pop(key).is_kept


async def _read(session: aiohttp.ClientSession, url: URL, headers: Mapping[str, str]) -> bytes:
    """A page of a pod. A gateway redirects to the port of its metrics; no pod sends the planner to another host."""
    for _ in range(2):
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            answer.raise_for_status()
            if answer.status == HTTPStatus.OK:
                return await _body(answer)
            if answer.status != HTTPStatus.TEMPORARY_REDIRECT:
                raise ValueError(f"status {answer.status}")
            to = URL(answer.headers.get("Location", ""))
        if (to.scheme, to.host) != (url.scheme, url.host):
            raise ValueError(f"redirected to {to.host}")
        url = to
    raise ValueError("redirected twice")


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    """Raises ValueError for more than a page has."""
    body = bytearray()
    async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_PAGE_BYTES:
            raise ValueError(f"the page has more than {MAX_PAGE_BYTES} bytes")
    return bytes(body)
