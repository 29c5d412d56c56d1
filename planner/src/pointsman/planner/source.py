"""Reading pods: their own /metrics, or the Prometheus that the policy names."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pointsman.api.v1alpha1.plannerpolicy import DEFAULT_STALE_AFTER_S, Metrics, PlannerPolicy
from pointsman.planner.cluster import Target
from pointsman.planner.core.messages.health import stale_before_scrape
from pointsman.planner.core.metrics.observe import Reading
from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.policies import STALE_INTERVALS
from pointsman.planner.prometheus import Prometheus, PrometheusReadings
from pointsman.planner.prometheus_secrets import PrometheusSecrets
from pointsman.planner.scraper import Scraper
from pointsman.process.clock import Clock

PROMETHEUS_DEFAULT_S: Final = 60.0  # its scrape_interval, where nothing else is configured


@dataclass(frozen=True, slots=True)
class Unread:
    """Gateways of which there are no two pages yet: those that were there from the ``first`` look on, for as long as
    metrics may be old; ``new`` ones, which came later, for as long; those that should have been read by now, and those
    that could not be read lately while others could (``late``); and how many are ``gone`` since the last look: nobody
    knows what they accepted since."""

    first: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    gone: int = 0


class Source:
    """Of one object that is planned.

    ``prefix`` of the names of its targets; ``prometheus_urls`` that a policy may name, empty: any
    """

    def __init__(
        self,
        prefix: str,
        scraper: Scraper,
        secrets: PrometheusSecrets,
        timeout_s: float,
        clock: Clock,
        prometheus_urls: Collection[str] = (),
    ) -> None:
        self._prefix = prefix
        self._scraper = scraper
        self._secrets = secrets
        self._timeout_s = timeout_s
        self._prometheus_urls = prometheus_urls
        self._clock = clock
        self._prometheus: PrometheusReadings | None = None
        self._url: str | None = None  # of Prometheus, at the last look
        self._pages_s: dict[str, float | None] = {}  # Unix times of the pages that were decided on
        self._since_s: dict[str, float] = {}  # since when each pod is there
        self._was_whole = False  # all gateways were read, but for those that cannot be

    async def read(
        self, namespace: str, policy: PlannerPolicy, targets: dict[str, Target]
    ) -> Scraper | PrometheusReadings:
        """Look at the pods; ``targets`` by name."""
        metrics = policy.spec.metrics
        url = metrics.prometheus_url
        if url != self._url:
            self._url, self._since_s = url, {}  # by this source nothing was read before
        if url is None:
            self.close()
            self._scraper.keep(set(targets), self._prefix)
            await self._scraper.scrape({name: target.url for name, target in targets.items()})
            return self._scraper
        self._scraper.keep(set(), self._prefix)
        try:
            access = await self._secrets.access(namespace, metrics)
            readings = self._prometheus
            if readings is None or readings.server.url != url:
                made = PrometheusReadings(Prometheus(url, self._timeout_s, self._prometheus_urls, access), self._clock)
                self.close()
                readings = self._prometheus = made
            elif readings.server.access != access:  # what was seen before is still true
                server = Prometheus(url, self._timeout_s, self._prometheus_urls, access)
                readings.server.close()
                readings.server = server
        except PrometheusFailed as error:
            if self._prometheus is None or self._prometheus.server.url != url:
                self.close()
                server = Prometheus(url, self._timeout_s, self._prometheus_urls)
                self._prometheus = PrometheusReadings(server, self._clock)
            self._prometheus.fail(error)
            return self._prometheus
        await readings.read(namespace, {name: target.pod.metadata.name for name, target in targets.items()})
        return readings

    def close(self) -> None:
        """Close the connections to Prometheus; the next look may open new ones."""
        if self._prometheus is not None:
            self._prometheus.server.close()
        self._prometheus = None

    def stale_after_s(self, metrics: Metrics, pods: Collection[str]) -> float:
        """From which age on pages are too old. The default is raised for a Prometheus that scrapes less often, so that
        one scrape may fail; a value that was chosen holds. ``pods``: names of targets."""
        told_s = metrics.stale_after_seconds
        if self._prometheus is None or told_s != DEFAULT_STALE_AFTER_S:
            return told_s
        every_s = self._prometheus.scrape_interval_s(pods)
        return max(told_s, STALE_INTERVALS * (PROMETHEUS_DEFAULT_S if every_s is None else every_s))

    def too_soon(self, metrics: Metrics, pods: Collection[str]) -> str | None:
        """Why the policy's ``staleAfterSeconds`` makes pages too old before their next scrape; None: it does not."""
        every_s = self._prometheus.scrape_interval_s(pods) if self._prometheus is not None else None
        stale_after_s = self.stale_after_s(metrics, pods)
        if every_s is None or stale_after_s > every_s + metrics.interval_seconds:
            return None
        return stale_before_scrape(stale_after_s, every_s)

    def is_repeated(self, source: Scraper | PrometheusReadings, names: Sequence[str], stale_after_s: float) -> bool:
        """Whether one of these pages was read before: no page is decided on twice, or its requests count twice.

        Each pod is scraped by Prometheus at a moment of its own; without one every look reads all pages anew. Pods
        whose scrapes fail are not waited for, unless all do: what is known of them is old.
        """
        if not isinstance(source, PrometheusReadings):
            return False
        names = [name for name in names if source.reading(name) is not None] or names  # others are in no decision
        pages_s = {name: source.page_s(name) for name in names}
        fresh = [name for name in names if source.age_s(name) <= stale_after_s]
        awaited = [name for name in fresh if not source.failed(name)] or fresh
        if any(self._pages_s.get(name) == pages_s[name] for name in awaited):
            return True
        self._pages_s = pages_s
        return False

    def known_targets(self) -> set[str]:
        """The targets of the last look, by their keys."""
        return {name.removeprefix(self._prefix) for name in self._since_s}

    def unread(
        self,
        readings: Mapping[str, Reading | None],
        at_s: float,
        stale_after_s: float,
        manager: str | None = None,
        *,
        lost_s: Mapping[str, float],
    ) -> Unread:
        """Which gateways were not read twice, or not lately. ``readings`` of all that accept requests, and of the
        ``manager`` of a group, which says nothing of the load: until it is read, it is a first look. ``lost_s``: of
        those whose newest scrape failed, the ages of the pages before."""
        gone = len(self._since_s.keys() - readings.keys() - {manager})
        self._since_s = {name: self._since_s.get(name, at_s) for name in readings}
        missing = [name for name, reading in readings.items() if reading is None]
        late = tuple(name for name in missing if at_s - self._since_s[name] > stale_after_s)
        read = {*readings} - {*missing, manager}
        old = {name for name in read if lost_s.get(name, 0.0) > stale_after_s}
        late += tuple(name for name in readings if name in old and old != read)  # in one order: a condition names them
        waiting = tuple(name for name in missing if name not in late)
        unread, new = {*missing} - {manager}, {*waiting} - {manager}
        self._was_whole = len(unread) < len({*readings} - {manager}) and (self._was_whole or not new)
        first = tuple(name for name in waiting if name == manager or not self._was_whole)
        return Unread(first, tuple(name for name in waiting if name not in first), late, gone)


def exclude_ended_gateways(
    gateways: Mapping[str, Target], source: Scraper | PrometheusReadings, stale_after_s: float
) -> dict[str, Target]:
    """Without those that are not ready and cannot be read: what they had is sent to the others now."""

    def answers(name: str) -> bool:
        return not source.failed(name) and source.age_s(name) <= stale_after_s

    return {name: each for name, each in gateways.items() if each.is_ready or answers(name)}


def ages_of_failed_s(source: Scraper | PrometheusReadings, names: Iterable[str]) -> dict[str, float]:
    """The ages of the newest pages of those whose newest scrape failed."""
    return {name: source.age_s(name) for name in names if source.failed(name)}


def reading_within(source: Scraper | PrometheusReadings, name: str, stale_after_s: float) -> Reading | None:
    """The last two pages of a target. A newest one that is older than ``stale_after_s`` is left out."""
    reading = source.reading(name)
    return None if reading is None else reading.within(source.age_s(name), stale_after_s)
