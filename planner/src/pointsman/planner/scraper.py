"""Direct scrape of workers' and gateways' /metrics, with the age of every answer."""

import asyncio
import logging
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from pointsman.kube.clock import SYSTEM_CLOCK, Clock
from pointsman.planner.core.observe import Reading
from pointsman.planner.core.scrapes import Labels, Page

log = logging.getLogger(__name__)


@dataclass
class _Target:
    before: Page | None = None
    before_s: float = 0.0
    page: Page | None = None
    page_s: float = 0.0
    failed: bool = False


def parse(text: str) -> Page:
    """A /metrics page by sample name and labels. Raises ValueError for what is no such page."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


class Scraper:
    """The last two pages of every target. Targets are told apart by a key that changes when the process does."""

    def __init__(self, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._targets: dict[str, _Target] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout_s))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def scrape(self, urls: dict[str, str]) -> None:
        """Read every target, key to URL, side by side; failures are remembered, not raised."""
        await asyncio.gather(*(self._scrape(key, url) for key, url in urls.items()))

    async def _scrape(self, key: str, url: str) -> None:
        if self._session is None:
            raise RuntimeError("the scraper is not open")
        target = self._targets.setdefault(key, _Target())
        try:
            async with self._session.get(url) as answer:
                answer.raise_for_status()
                page = parse(await answer.text())
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            target.failed = True
            log.debug("target=%s not read: %s", key, error or type(error).__name__)
            return
        target.failed = False
        target.before, target.before_s = target.page, target.page_s
        target.page, target.page_s = page, self._clock.monotonic_s()

    def reading(self, key: str) -> Reading | None:
        """The last two pages of a target; None before the second one."""
        target = self._targets.get(key)
        if target is None or target.before is None or target.page is None:
            return None
        return Reading(target.before, None if target.failed else target.page, target.page_s - target.before_s)

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
            del self._targets[key]
