"""A stand-in for Prometheus that answers the planner's queries about many pods: ``make bench-scraping``.

The series are those that the planner needs of captured pages of vLLM, with the labels that a PodMonitor adds. Each pod
was scraped when the query asks, so every look transfers every page: no real scrape interval is worse.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

from pointsman.planner.core.metrics.observe import FAMILIES
from pointsman.planner.exposition import PageParser

CAPTURES: Final = Path(__file__).parents[2] / "tests" / "unit" / "planner" / "captures"
NAMESPACE: Final = "bench"
_POD: Final = "<pod>"
_TIME: Final = "<time>"
_TARGET: Final = {
    "namespace": NAMESPACE, "pod": _POD, "job": f"{NAMESPACE}/workers", "instance": f"{_POD}:8000",
    "container": "worker", "endpoint": "metrics",
}  # fmt: skip


def capture(role: str) -> str:
    """A page that was captured of a vLLM worker."""
    return (CAPTURES / f"vllm_metrics_{role}.txt").read_text()


def pod_names(count: int) -> dict[str, str]:
    """So many pods, key to name, with names as long as those of a real Deployment."""
    return {f"uid-{n}": f"chat-{('prefill', 'decode')[n % 2]}-7d9c5b6f4d-{n:05}" for n in range(count)}


class StandIn:
    """Answers ``/api/v1/query`` about any pods whose names say their role."""

    def __init__(self) -> None:
        self._pages = {role: ",".join(_series(role)) for role in ("prefill", "decode")}

    def app(self) -> web.Application:
        """Serves the one path."""
        app = web.Application()
        app.router.add_get("/api/v1/query", self.query)
        return app

    async def query(self, request: web.Request) -> web.Response:
        """An instant query, for times or for pages. As Prometheus does, it compresses what it answers."""
        query, at_s = request.query["query"], request.query["time"]
        chosen = re.search(r'pod=~"([^"]*)"', query)
        if chosen is None:
            raise web.HTTPBadRequest(text="no pods")
        is_pages = "label_replace" in query
        found = ",".join(self._of(pod.replace("[.]", "."), at_s, is_pages) for pod in chosen[1].split("|"))
        body = f'{{"status":"success","data":{{"resultType":"vector","result":[{found}]}}}}'.encode()
        headers = {"Content-Encoding": "gzip"}
        return web.Response(body=gzip.compress(body, 1), content_type="application/json", headers=headers)

    def _of(self, pod: str, at_s: str, is_pages: bool) -> str:
        """The series of one pod."""
        scraped = _one(_TARGET | ({"pointsman": "scraped"} if is_pages else {}), _TIME)
        series = f"{self._pages['prefill' if 'prefill' in pod else 'decode']},{scraped}" if is_pages else scraped
        return series.replace(_POD, pod).replace(_TIME, at_s)


def _series(role: str) -> Iterator[str]:
    for name, values in PageParser(FAMILIES).parse(capture(role)).items():
        for labels, value in values.items():
            yield _one({"__name__": name, **_TARGET, **dict(labels)}, repr(value))


def _one(labels: Mapping[str, str], value: str) -> str:
    """One sample. The time of a sample of an instant query is that of the query."""
    return f'{{"metric":{json.dumps(labels, separators=(",", ":"))},"value":[{_TIME},{json.dumps(value)}]}}'
