"""Prometheus as source of the live planner: the same readings as a direct scrape, as old as Prometheus has them.

For clusters where only Prometheus may reach the pods. One query a service and look; raw samples with the times of
their scrapes, so that nothing is extrapolated and the age of everything is known.
"""

import asyncio
import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import requests
from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
from urllib3.util.retry import Retry

from pointsman.api.credentials import mask_credentials
from pointsman.kube.clock import SYSTEM_CLOCK, Clock
from pointsman.planner.core.matrices import NAME, UNSEEN, UP, Matrix, PodReading, by_pod
from pointsman.planner.core.observe import FAMILIES, Reading
from pointsman.planner.core.prometheus_urls import is_allowed
from pointsman.planner.errors import PrometheusFailed

log = logging.getLogger(__name__)

LOOK_BACK_S: Final = 120.0  # two scrapes of a minute's interval are within it


def selector(namespace: str, pods: Iterable[str]) -> str:
    """The series of these pods that an observation is made of. PromQL anchors both ends of a pattern."""
    names = "|".join((UP, *(re.escape(family) for family in FAMILIES)))
    chosen = "|".join(re.escape(pod) for pod in sorted(pods))
    return f"{{{NAME}=~{_quoted(names)},namespace={_quoted(namespace)},pod=~{_quoted(chosen)}}}"


class Prometheus:
    """One server. A request runs in a thread and is given up after ``timeout_s``; the next look is soon anyway."""

    def __init__(self, url: str, timeout_s: float, allowed: Collection[str] = ()) -> None:
        """``allowed``: the addresses that the planner may query, see :func:`is_allowed`."""
        self.url = url
        self.shown_url = mask_credentials(url)
        self._timeout_s = timeout_s
        self._is_allowed = is_allowed(url, allowed)
        self._allowed_urls = ", ".join(map(mask_credentials, allowed))
        session = requests.Session()
        if allowed:
            session.max_redirects = 0  # another server might be none of them
        self._client = PrometheusConnect(url=url.rstrip("/"), retry=Retry(total=0), timeout=timeout_s, session=session)

    async def samples(self, query: str, at_s: float) -> Matrix:
        """The answer to a range selector at a Unix time. Raises PrometheusFailed."""
        try:
            async with asyncio.timeout(self._timeout_s * 2):  # a server that trickles is given up too
                return await asyncio.to_thread(self.samples_now, query, at_s)
        except TimeoutError:
            raise PrometheusFailed(f"{self.shown_url} did not answer within {self._timeout_s * 2:g} s") from None

    def samples_now(self, query: str, at_s: float) -> Matrix:
        """The same, in this thread."""
        if not self._is_allowed:
            raise PrometheusFailed(
                f"metrics.prometheusUrl {self.shown_url} is none of the addresses that this installation may query: "
                f"use one of {self._allowed_urls}"
            )
        try:
            found = self._client.custom_query(query, params={"time": f"{at_s:.3f}"})
        except requests.Timeout:
            raise PrometheusFailed(f"{self.shown_url} did not answer within {self._timeout_s:g} s") from None
        except requests.RequestException as error:
            raise PrometheusFailed(f"{self.shown_url} cannot be reached: {mask_credentials(_reason(error))}") from None
        except PrometheusApiClientException as error:
            # Its text has the whole answer, which may be anybody's: the URL is written by who writes the policy.
            status = re.search(r"HTTP Status Code (\d+)", str(error))
            raise PrometheusFailed(
                f"{self.shown_url} refused the query with {status[0] if status else 'an error'}"
            ) from None
        except (KeyError, TypeError):
            raise PrometheusFailed(f"{self.shown_url} did not answer as a Prometheus does") from None
        if not isinstance(found, list):
            raise PrometheusFailed(f"{self.shown_url} did not answer as a Prometheus does")
        return found

    def close(self) -> None:
        """Close its connections."""
        self._client.close()


class PrometheusReadings:
    """The readings of one service's pods, as ``Scraper`` has them."""

    def __init__(self, server: Prometheus, clock: Clock = SYSTEM_CLOCK) -> None:
        self.server = server
        self.problem: str | None = None
        self._clock = clock
        self._seen: dict[str, PodReading] = {}

    async def read(self, namespace: str, pods: Mapping[str, str]) -> None:
        """Look at these pods, key to name. A failure is not raised but kept as ``problem``: what was seen grows old."""
        if not pods:
            self._seen = {}
            return
        query = f"{selector(namespace, pods.values())}[{LOOK_BACK_S:.0f}s]"
        try:
            found = by_pod(await self.server.samples(query, self._clock.now().timestamp()))
        except PrometheusFailed as error:
            self.problem = str(error)
            log.debug("%s", error)
            return
        self.problem = None
        self._seen = {key: found[pod].last() if pod in found else UNSEEN for key, pod in pods.items()}

    def reading(self, key: str) -> Reading | None:
        """The last two pages of a pod; None before the second one."""
        return self._seen.get(key, UNSEEN).reading

    def failed(self, key: str) -> bool:
        """The newest attempt of Prometheus failed, or it does not know the pod."""
        return self._seen.get(key, UNSEEN).failed

    def age_s(self, key: str) -> float:
        """Since Prometheus last read the pod; infinite if it did not within its look back."""
        at_s = self._seen.get(key, UNSEEN).at_s
        return float("inf") if at_s is None else max(self._clock.now().timestamp() - at_s, 0.0)

    def page_s(self, key: str) -> float | None:
        """Unix time of a pod's newest page; None if there is none."""
        return self._seen.get(key, UNSEEN).at_s


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _reason(error: requests.RequestException) -> str:
    cause = error.args[0] if error.args else error
    return str(getattr(cause, "reason", None) or error).split("): ", 1)[-1]  # without the connection's repr
