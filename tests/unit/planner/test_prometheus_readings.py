"""Reading pods through a Prometheus on loopback: its answers are decoded and parsed beside the event loop."""

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import requests
from aiohttp import web

from pointsman.planner import prometheus as module
from pointsman.planner.prometheus import Prometheus, PrometheusReadings

TARGET = {"namespace": "here", "pod": "one", "job": "pods", "instance": "one:8000"}
POD = {"key": "one"}


def series(value: str, **labels: str) -> dict[str, Any]:
    return {"metric": {**TARGET, **labels}, "value": [0.0, value]}


class Answers:
    """What the server answers to a query for times, and to one for pages."""

    def __init__(self) -> None:
        self.times: list[Any] = []
        self.pages: list[Any] = []

    def scraped(self, at_s: float, requests: int) -> None:
        self.times = [series(str(at_s))]
        self.pages = [series(str(requests), __name__="hits_total"), series(str(at_s), pointsman="scraped")]

    async def query(self, request: web.Request) -> web.Response:
        result = self.pages if "label_replace" in request.query["query"] else self.times
        return web.json_response({"status": "success", "data": {"resultType": "vector", "result": result}})


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def readings(answers: Answers) -> AsyncIterator[PrometheusReadings]:
    app = web.Application()
    app.router.add_get("/api/v1/query", answers.query)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server = Prometheus(site.name, 5.0)
    yield PrometheusReadings(server)
    server.close()
    await runner.cleanup()


async def test_answers_are_decoded_and_parsed_outside_the_thread_of_the_event_loop(
    answers: Answers, readings: PrometheusReadings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of a thousand pods take two seconds, in which nothing else of the planner would run."""
    threads: dict[str, list[int]] = {}

    def record(owner: object, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def recorded(*arguments: Any, **options: Any) -> Any:
            threads.setdefault(name, []).append(threading.get_ident())
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, recorded)

    record(requests.Response, "json")
    record(module, "scrape_times")
    record(module, "pages_of")
    for at_s, count in ((100.0, 5), (115.0, 9)):
        answers.scraped(at_s, count)
        await readings.read("here", POD)
        assert readings.problem is None
    reading = readings.reading("key")
    assert reading is not None
    assert (reading.page, reading.seconds) == ({"hits_total": {(): 9.0}}, 15.0)
    assert {name: len(calls) for name, calls in threads.items()} == {"json": 4, "scrape_times": 2, "pages_of": 2}
    for name, calls in threads.items():
        assert threading.get_ident() not in calls, name


@pytest.mark.parametrize("part", ["times", "pages"])
@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"metric": "pods", "value": [0.0, "1"]}, {"metric": TARGET}, {"metric": TARGET, "value": []},
        {"metric": TARGET, "value": [0.0, "x"]}, "pods", None,
    ],
    ids=["no labels", "labels that are text", "no value", "an empty value", "no number", "text", "null"],
)  # fmt: skip
async def test_an_answer_that_cannot_be_parsed_is_a_problem_and_no_exception(
    answers: Answers, readings: PrometheusReadings, part: str, wrong: object
) -> None:
    answers.scraped(100.0, 5)
    getattr(answers, part).append(wrong)
    await readings.read("here", POD)
    assert readings.problem == f"{readings.server.shown_url} did not answer as a Prometheus does"
    assert readings.page_s("key") is None
