"""Prometheus as source of the live planner: the same readings as a direct scrape, as old as Prometheus has them.

For clusters where only Prometheus may reach the pods. Newest samples with the times of their scrapes, so that nothing
is extrapolated and the age of everything is known (see ``core/metrics/prometheus_vector.py``).
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import median_low
from typing import Any, Final

import requests
from prometheus_api_client import PrometheusApiClientException, PrometheusConnect

from pointsman.api.credentials import mask_credentials
from pointsman.planner.core.metrics.observe import Reading
from pointsman.planner.core.metrics.prometheus_vector import (
    MALFORMED,
    PodPages,
    in_queries,
    pages_of,
    pages_query,
    rates_of,
    rates_query,
    scrape_times,
    times_query,
)
from pointsman.planner.errors import PrometheusFailed
from pointsman.planner.prometheus_access import Access
from pointsman.planner.prometheus_connections import Bearer, Connections
from pointsman.planner.prometheus_urls import is_allowed
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

QUERY_BYTES: Final = 7 * 1024  # of a query in a URL, with room for the rest: many proxies take 8 KiB
GAPS_KEPT: Final = 3
_REFUSED: Final = (401, 403)


@dataclass(frozen=True, slots=True)
class Remedies:
    """What would be right, for messages: where there are no ``credentials``, the ``token`` or the ``basic`` ones are
    wrong, the certificate is not of the ``ca``; ``no_pem`` is the whole message. The defaults are of a policy."""

    credentials: str = "name a Secret with them in metrics.prometheusSecretRef"
    token: str = "correct the token in the Secret of metrics.prometheusSecretRef"
    basic: str = "correct the username and password in the Secret of metrics.prometheusSecretRef"
    ca: str = "put the CA of its certificate into the key 'ca.crt' of the Secret in metrics.prometheusSecretRef"
    no_pem: str = "key 'ca.crt' of metrics.prometheusSecretRef has no certificate in PEM"


_OF_POLICY: Final = Remedies()


class Prometheus:
    """One server. Its queries run one after the other in their own thread, which a server that hangs cannot keep."""

    def __init__(
        self,
        url: str,
        timeout_s: float,
        allowed: Collection[str] = (),
        access: Access | None = None,
        remedies: Remedies = _OF_POLICY,
    ) -> None:
        """``allowed``: the addresses that the planner may query, see :func:`is_allowed`.

        Raises PrometheusFailed if the CA of ``access`` is none.
        """
        self.url = url
        self.access = access
        self._remedies = remedies
        self.shown_url = mask_credentials(url)
        self._timeout_s = timeout_s
        self._is_allowed = is_allowed(url, allowed)
        self._allowed_urls = ", ".join(map(mask_credentials, allowed))
        session = requests.Session()
        if allowed or access is not None:
            session.max_redirects = 0  # another server might be none of them, and must not get the credentials
        if access is not None and (access.token is not None or access.basic is not None):
            session.auth = access.basic if access.token is None else Bearer(access.token)
        try:
            self._connections = Connections(None if access is None else access.ca)
        except (ssl.SSLError, ValueError):
            raise PrometheusFailed(remedies.no_pem) from None
        self._client = PrometheusConnect(url=url.rstrip("/"), timeout=timeout_s, session=session)
        session.mount(self._client.url, self._connections)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prometheus")

    async def samples(self, query: str, at_s: float) -> list[Mapping[str, Any]]:
        """The answer to a query at a Unix time. Raises PrometheusFailed."""
        return await self._answer(self.samples_now, query, at_s)

    async def history(self, query: str, begin_s: float, end_s: float, step_s: float) -> list[Mapping[str, Any]]:
        """What a query had at each step between two Unix times, both included. Raises PrometheusFailed."""
        return await self._answer(self._history_now, query, begin_s, end_s, step_s)

    async def _answer(
        self, ask: Callable[..., list[Mapping[str, Any]]], *arguments: str | float
    ) -> list[Mapping[str, Any]]:
        asked = asyncio.get_running_loop().run_in_executor(self._thread, ask, *arguments)
        try:
            async with asyncio.timeout(self._timeout_s * 2):  # a server that trickles is given up too
                return await asked
        except TimeoutError:
            raise PrometheusFailed(f"{self.shown_url} did not answer within {self._timeout_s * 2:g} s") from None
        finally:
            if not asked.done() or asked.cancelled():
                self._connections.abort()

    def samples_now(self, query: str, at_s: float) -> list[Mapping[str, Any]]:
        """The same, in this thread."""
        return self._found(lambda: self._client.custom_query(query, params={"time": f"{at_s:.3f}"}))

    def _history_now(self, query: str, begin_s: float, end_s: float, step_s: float) -> list[Mapping[str, Any]]:
        begin, end = (datetime.fromtimestamp(at_s, UTC) for at_s in (begin_s, end_s))
        return self._found(lambda: self._client.custom_query_range(query, begin, end, f"{step_s:g}"))

    def _found(self, ask: Callable[[], object]) -> list[Mapping[str, Any]]:
        """Raises PrometheusFailed."""
        if not self._is_allowed:
            raise PrometheusFailed(
                f"metrics.prometheusUrl {self.shown_url} is none of the addresses that this installation may query: "
                f"use one of {self._allowed_urls}"
            )
        try:
            found = ask()
        except requests.Timeout:
            raise PrometheusFailed(f"{self.shown_url} did not answer within {self._timeout_s:g} s") from None
        except requests.exceptions.SSLError as error:
            raise PrometheusFailed(
                f"{self.shown_url} has no certificate that is trusted ({_reason(error)}); {self._remedies.ca}"
            ) from None
        except requests.RequestException as error:
            raise PrometheusFailed(f"{self.shown_url} cannot be reached: {mask_credentials(_reason(error))}") from None
        except PrometheusApiClientException as error:
            # Its text has the whole answer, which may be anybody's: the URL is written by who writes the policy.
            status = re.search(r"HTTP Status Code (\d+)", str(error))
            raise PrometheusFailed(
                f"{self.shown_url} refused the query with {status[0] if status else 'an error'}{self._hint(status)}"
            ) from None
        except (KeyError, TypeError):
            raise PrometheusFailed(f"{self.shown_url} did not answer as a Prometheus does") from None
        if not isinstance(found, list):
            raise PrometheusFailed(f"{self.shown_url} did not answer as a Prometheus does")
        return found

    def _hint(self, status: re.Match[str] | None) -> str:
        """What would be right where credentials are missing or wrong."""
        if status is None or int(status[1]) not in _REFUSED:
            return ""
        if self.access is None or (self.access.token is None and self.access.basic is None):
            return f": it needs credentials; {self._remedies.credentials}"
        return f": {self._remedies.basic if self.access.token is None else self._remedies.token}"

    def close(self) -> None:
        """End what is under way and close its connections."""
        self._connections.abort()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._client.close()


class PrometheusReadings:
    """The readings of one service's pods, as ``Scraper`` has them."""

    def __init__(self, server: Prometheus, clock: Clock = SYSTEM_CLOCK) -> None:
        self.server = server
        self.problem: str | None = None
        self._clock = clock
        self._seen: dict[str, PodPages] = {}
        self._gaps_s: dict[str, tuple[float, ...]] = {}  # between the last pages of each pod

    async def read(self, namespace: str, pods: Mapping[str, str]) -> None:
        """Look at these pods, key to name. A failure is not raised but kept as ``problem``: what was seen grows old."""
        self._seen = {key: self._seen.get(key, PodPages()) for key in pods}
        self._gaps_s = {key: gaps for key, gaps in self._gaps_s.items() if key in pods}
        keys = {pod: key for key, pod in pods.items()}
        try:
            for part in in_queries(namespace, keys, QUERY_BYTES):
                await self._read(namespace, {keys[pod]: pod for pod in part})
        except PrometheusFailed as error:
            self.fail(error)
            return
        self.problem = None

    def fail(self, error: PrometheusFailed) -> None:
        """Nothing is read at this look."""
        self.problem = str(error)
        log.debug("prometheus not read", extra={"why": str(error)})

    async def _read(self, namespace: str, pods: Mapping[str, str]) -> None:
        """Some pods. Raises PrometheusFailed.

        Answers are parsed in a thread, so those of a thousand pods do not stop the event loop.
        """
        at_s = self._clock.now().timestamp()
        try:
            times = await self.server.samples(times_query(namespace, pods.values()), at_s)
            times_s = await asyncio.to_thread(scrape_times, times)
            follows = {key: self._seen[key].followed(times_s.get(pod, {})) for key, pod in pods.items()}
            news = {
                key: target
                for key, target in follows.items()
                if target is not None and self._seen[key].is_news(target, times_s[target[0]][target])
            }
            found = {}
            if news:
                names = {target[0] for target in news.values()}
                pages = await self.server.samples(pages_query(namespace, names), at_s)
                found = await asyncio.to_thread(pages_of, pages)
        except MALFORMED:
            raise PrometheusFailed(f"{self.server.shown_url} did not answer as a Prometheus does") from None
        for key, follow in follows.items():
            seen = self._seen[key]
            target = news.get(key)
            if target is not None and target in found and seen.is_news(target, found[target][0]):
                self._seen[key] = seen.read(target, *found[target])
                if seen.page_s is not None:
                    self._gaps_s[key] = (*self._gaps_s.get(key, ()), found[target][0] - seen.page_s)[-GAPS_KEPT:]
            else:
                self._seen[key] = replace(seen, failed=follow is None)

    async def rates(self, namespace: str, service: str, bin_s: float, bins: int) -> dict[int, float]:
        """Accepted requests a second in each of the last ``bins`` bins that are over, by number since 1970; those of
        which nothing is known are left out. Raises PrometheusFailed."""
        last = int(self._clock.now().timestamp() // bin_s)
        query = rates_query(namespace, service, bin_s)
        found = await self.server.history(query, (last - bins + 1) * bin_s, last * bin_s, bin_s)
        try:
            return rates_of(found, bin_s)
        except MALFORMED:
            raise PrometheusFailed(f"{self.server.shown_url} did not answer as a Prometheus does") from None

    def scrape_interval_s(self, keys: Collection[str]) -> float | None:
        """How often Prometheus scrapes these pods; None before two pages of one of them.

        Of each pod the shortest of its last gaps, since a scrape that failed makes one longer.
        """
        return median_low(gaps) if (gaps := [min(self._gaps_s[key]) for key in keys if key in self._gaps_s]) else None

    def reading(self, key: str) -> Reading | None:
        """The last two pages of a pod; None before the second one."""
        return self._seen.get(key, PodPages()).reading

    def failed(self, key: str) -> bool:
        """The newest attempt of Prometheus failed, or it does not know the pod."""
        return self._seen.get(key, PodPages()).failed

    def age_s(self, key: str) -> float:
        """Since Prometheus last read the pod; infinite if it never did since the pod is planned."""
        at_s = self.page_s(key)
        return float("inf") if at_s is None else max(self._clock.now().timestamp() - at_s, 0.0)

    def page_s(self, key: str) -> float | None:
        """Unix time of a pod's newest page; None if there is none."""
        return self._seen.get(key, PodPages()).page_s


def _reason(error: requests.RequestException) -> str:
    cause = error.args[0] if error.args else error
    return str(getattr(cause, "reason", None) or error).split("): ", 1)[-1]  # without the connection's repr
