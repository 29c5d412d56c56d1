"""A real Prometheus as source: what it shows of pods, what it does not know, and a recording of its history."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import generate_latest

from fixtures.log_text import log_text
from fixtures.prometheus_server import PrometheusServer, running_prometheus
from integration.planner.live_loads import LONG, health, healthy
from pointsman.api.protocol import metrics as named
from pointsman.api.v1alpha1.conditions import ConditionStatus
from pointsman.planner.core.metrics import scrape_pair
from pointsman.planner.core.state import State
from pointsman.planner.core.workload.arrival_forecast import RateForecaster
from pointsman.planner.core.workload.seasonality import BIN_S, DAY_S
from pointsman.planner.prometheus import Prometheus, PrometheusReadings
from pointsman.planner.replay import command, record_command
from pointsman.planner.replay.prometheus_history import by_pod
from pointsman.planner.replay.trace_files import load_trace
from pointsman.planner.season_history import with_history
from waiting import eventually

from .conftest import CONTENT_TYPE, ONLY_SWITCHES, Page, World

DEADLINE_S = 120.0
POLICY = Path(__file__).parents[3] / "examples" / "policies" / "chat.yaml"


@pytest.fixture(scope="module")
def prometheus() -> Iterator[PrometheusServer]:
    with running_prometheus() as server:
        yield server


class Pod:
    """A page on a port of its own. ``address`` is known once it is started."""

    def __init__(self) -> None:
        self.page = Page()
        self.address = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        async def metrics(_: web.Request) -> web.Response:
            return web.Response(body=generate_latest(self.page.registry), headers=CONTENT_TYPE)

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0]
        self.address = f"{host}:{port}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    made = Pod()
    await made.start()
    yield made
    await made.stop()


async def until(readings: PrometheusReadings, pods: dict[str, str], holds: Callable[[], bool], what: str) -> None:
    """Look again until something holds."""
    end_s = asyncio.get_running_loop().time() + DEADLINE_S
    while True:
        await readings.read("here", pods)
        if holds():
            return
        assert asyncio.get_running_loop().time() < end_s, f"not within {DEADLINE_S:g} s: {what}; {readings.problem}"
        await asyncio.sleep(0.1)


async def test_a_pod_is_read_as_it_is_and_its_end_is_a_failure_not_a_zero(
    prometheus: PrometheusServer, pod: Pod
) -> None:
    prometheus.scrape({"one": pod.address}, "here")
    readings = PrometheusReadings(Prometheus(prometheus.url, 5.0))
    pods = {"key": "one", "other": "no-such-pod"}
    pod.page.depth.set(3)
    await until(readings, pods, lambda: readings.reading("key") is not None, "two scrapes of the pod")
    pod.page.requests(7, prompt=300, output=20, ttft_s=0.2, tpot_s=0.008)

    def arrived() -> float | None:
        reading = readings.reading("key")
        return scrape_pair.gauge(reading.page, named.GATEWAY_ARRIVALS.name) if reading and reading.page else None

    await until(readings, pods, lambda: arrived() == 7, "seven requests")
    reading = readings.reading("key")
    assert reading is not None
    assert reading.page is not None
    assert 0 < reading.seconds < DEADLINE_S
    assert scrape_pair.gauge(reading.page, named.WORKER_QUEUE_DEPTH.name) == 3
    assert readings.age_s("key") < DEADLINE_S
    history = await readings.server.samples('{namespace="here",pod="one"}[2m]', time.time())
    pages = by_pod(history)["one"].pages.values()
    prompts = [scrape_pair.observed(a, b, named.GATEWAY_PROMPT_TOKENS.name) for a, b in itertools.pairwise(pages)]
    assert sum(histogram.count for histogram in prompts) == 7
    assert sum(histogram.total for histogram in prompts) == 7 * 300
    assert (readings.reading("other"), readings.failed("other"), readings.age_s("other")) == (None, True, float("inf"))

    pod.page.depth.set(float("nan"))

    def queue() -> float | None:
        reading = readings.reading("key")
        return scrape_pair.gauge(reading.page, named.WORKER_QUEUE_DEPTH.name) if reading and reading.page else 0.0

    await until(readings, pods, lambda: queue() is None, "a gauge that is not a number is unknown")

    await pod.stop()
    await until(readings, pods, lambda: readings.failed("key"), "the pod cannot be read")
    reading = readings.reading("key")
    assert reading is not None
    assert reading.is_old


async def test_a_page_is_transferred_once_however_often_it_is_looked_at(
    prometheus: PrometheusServer, pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    prometheus.scrape({"one": pod.address}, "here")
    server = Prometheus(prometheus.url, 5.0)
    readings, asked = PrometheusReadings(server), []
    answer = server.samples

    async def samples(query: str, at_s: float) -> list[Mapping[str, Any]]:
        asked.append("label_replace" in query)
        return await answer(query, at_s)

    monkeypatch.setattr(server, "samples", samples)
    pods, pages_s = {"key": "one"}, set[float]()
    end_s = asyncio.get_running_loop().time() + DEADLINE_S
    while len(pages_s) < 4:
        await readings.read("here", pods)
        if (page_s := readings.page_s("key")) is not None:
            pages_s.add(page_s)
        assert asyncio.get_running_loop().time() < end_s, readings.problem
    assert sum(asked) == len(pages_s), "one for each scrape"
    assert len(asked) > 2 * sum(asked), "most looks only asked when the pod was scraped"


async def test_without_prometheus_what_was_seen_grows_old_and_the_problem_is_named(pod: Pod) -> None:
    with running_prometheus() as server:
        server.scrape({"one": pod.address}, "here")
        readings = PrometheusReadings(Prometheus(server.url, 2.0))
        pods = {"key": "one"}
        await until(readings, pods, lambda: readings.reading("key") is not None, "two scrapes of the pod")
        server.kill()
        await readings.read("here", pods)
        assert readings.problem is not None
        assert server.url in readings.problem
        assert "cannot be reached" in readings.problem
        age_s, seen = readings.age_s("key"), readings.page_s("key")
        await readings.read("here", pods)
        assert readings.age_s("key") > age_s
        assert readings.page_s("key") == seen
        server.start()
        await until(readings, pods, lambda: readings.problem is None, "Prometheus is back")


async def test_an_address_that_is_no_prometheus_is_said(pod: Pod) -> None:
    readings = PrometheusReadings(Prometheus(f"http://{pod.address}", 2.0))
    await readings.read("here", {"key": "one"})
    assert readings.problem is not None
    assert pod.address in readings.problem
    assert "HTTP Status Code 404" in readings.problem
    assert "Not Found" not in readings.problem  # what a stranger answers is not repeated
    assert readings.age_s("key") == float("inf")


async def test_a_policy_with_prometheus_as_source_is_planned_and_its_silence_freezes(
    world: World, prometheus: PrometheusServer
) -> None:
    url = prometheus.url.replace("://", "://planner:s3cr3t@")
    metrics = {"prometheusUrl": url, "intervalSeconds": 0.3, "staleAfterSeconds": 5}
    denied = {**ONLY_SWITCHES, "roleSwitch": {"enabled": False}}
    await world.policy(metrics=metrics, actions=denied)
    await world.service()
    prometheus.scrape({name: world.address(name) for name in world.pages}, world.namespace)
    world.planner.start()
    load = asyncio.create_task(world.load(**LONG))

    async def wanted() -> bool:
        inputs = await world.exported("pointsman_planner_input")
        return any(sample.labels["name"] == "prefillNeeded" and sample.value > 2 for sample in inputs)

    try:
        await healthy(world, ConditionStatus.TRUE)
        await eventually(wanted, "the load needs more prefill workers than there are")
        assert not world.layouts()

        prometheus.kill()
        await healthy(world, ConditionStatus.FALSE)
        assert health(world).reason == "PrometheusUnreachable"
        assert prometheus.url.replace("://", "://***@") in health(world).message
        before = {plan.metadata.name for plan in world.plans.objects()}
        await world.policy(metrics=metrics)  # by what was seen last, the switch would be made now
        decided = await world.looked_again(10)
        assert {plan.metadata.name for plan in world.plans.objects()} == before
        assert decided.keys() == {"StaleMetrics"}
        assert health(world).reason == "PrometheusUnreachable"

        prometheus.start()
        await world.until(lambda: bool(world.layouts()), "a plan that changes the layout")
        await healthy(world, ConditionStatus.TRUE)
        assert not load.done()
    finally:
        load.cancel()
    assert world.layouts()[0].spec.reason == "PrefillShort"


async def test_the_history_of_a_service_becomes_a_trace_with_every_request_that_can_be_replayed(
    prometheus: PrometheusServer, pod: Pod, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prometheus.scrape({"gateway": pod.address}, "recorded")
    readings = PrometheusReadings(Prometheus(prometheus.url, 5.0))
    pods = {"key": "gateway"}

    async def looked(holds: Callable[[], bool], what: str) -> None:
        end_s = asyncio.get_running_loop().time() + DEADLINE_S
        while not holds():
            await readings.read("recorded", pods)
            assert asyncio.get_running_loop().time() < end_s, what
            await asyncio.sleep(0.1)

    def arrivals() -> float:
        reading = readings.reading("key")
        page = reading.page if reading else None
        return scrape_pair.gauge(page, named.GATEWAY_ARRIVALS.name) or 0.0 if page else -1.0

    await looked(lambda: arrivals() == 0, "a first page without requests")
    pod.page.requests(30, prompt=300, output=20, ttft_s=0.2, tpot_s=0.008)
    await looked(lambda: arrivals() == 30, "thirty requests")
    pod.page.requests(20, prompt=3000, output=100, ttft_s=0.2, tpot_s=0.008)
    await looked(lambda: arrivals() == 50, "fifty requests")

    out = str(tmp_path / "chat.jsonl")
    arguments = ["--prometheus", prometheus.url, "--namespace", "recorded", "--service", "chat"]
    assert await asyncio.to_thread(record_command.main, [*arguments, "--last", "10m", "--out", out]) == 0
    assert "50 requests" in capsys.readouterr().out
    trace = load_trace(Path(out)).trace
    assert len(trace) == 50
    assert int((trace.prompt_tokens > 2048).sum()) == 20
    assert trace.prompt_tokens.sum() == pytest.approx(30 * 300 + 20 * 3000, rel=0.05)
    assert await asyncio.to_thread(command.main, ["--trace", out, "--policy", str(POLICY)]) == 0
    said = capsys.readouterr().out
    assert "chat on chat: 50 requests" in said
    assert "attainment" in said
    missing = ["--prometheus", prometheus.url, "--service", "nobody", "--last", "10m", "--out", out]
    assert await asyncio.to_thread(record_command.main, missing) == 2
    assert "no request arrived" in capsys.readouterr().err


LOW, HIGH = 3.0, 11.0
GAP_H = range(60, 62)  # hours of which nobody scraped anything


def rate_of(at_s: float, now_s: float) -> float:
    """A burst of an hour at the same time of each day, ten minutes from now."""
    return HIGH if (at_s - now_s - 600) % DAY_S < 3600 else LOW


def history(now_s: float) -> str:
    """Nine days of a gateway's counter, replaced by another pod on the fifth, in the words of OpenMetrics."""
    name = named.GATEWAY_ACCEPTED.name.removesuffix("_total")
    lines, count, of = [f"# TYPE {name} counter"], 0.0, ""
    samples: dict[str, list[str]] = {}
    begin_s = now_s - 9 * DAY_S
    for step in range(int(9 * DAY_S // 100)):
        at_s = begin_s + 100 * step
        pod = "gateway-a" if step < 4 * 864 else "gateway-b"
        count, of = (count + 100 * rate_of(at_s - 50, now_s) if pod == of else 0.0), pod
        if step // 36 not in GAP_H:
            labels = f'namespace="here",service="chat",pod="{pod}",job="x",instance="{pod}"'
            samples.setdefault(pod, []).append(f"{name}_total{{{labels}}} {count:.1f} {at_s:.0f}")
    other = f'{name}_total{{namespace="here",service="other",pod="c"}} 7'
    return "\n".join([*lines, *itertools.chain(*samples.values()), f"{other} {begin_s:.0f}", "# EOF", ""])


async def test_a_planner_that_is_new_to_a_service_knows_its_days_from_the_history_of_prometheus(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = time.time() // BIN_S * BIN_S
    with running_prometheus(openmetrics=history(now_s)) as server:
        readings = PrometheusReadings(Prometheus(server.url, 30.0))
        caplog.set_level("INFO")
        state = await with_history(State(), readings, "here", "chat", now_s)
        assert "rate read from the history of Prometheus service=here/chat hours=" in log_text(caplog)
        rates = state.season.rates
        assert len(rates) == 7 * 288 + 2
        unknown = [place for place, rate in enumerate(rates) if rate is None]
        assert 22 <= len(unknown) <= 27, "the two hours that nobody scraped, and at most where the pod changed"
        assert max(rate for rate in rates if rate is not None) == pytest.approx(HIGH, rel=0.02)
        assert sorted(rate for rate in rates if rate is not None)[1000] == pytest.approx(LOW, rel=0.02)
        forecaster = RateForecaster().observe(LOW * 2.5, 2.5, now_s)
        foreseen = state.season.forecast(now_s + 600 - 45, forecaster, 90.0)
        assert foreseen is not None
        assert foreseen.days == 7
        assert foreseen.rise_per_s == pytest.approx(HIGH - LOW, rel=0.15)

        assert await with_history(state, readings, "here", "chat", now_s) == state, "it knows as much already"
        assert (await with_history(State(), readings, "here", "nobody", now_s)) == State()
        server.kill()
        assert await with_history(State(), readings, "here", "chat", now_s) == State()
        assert "history of the rate not read" in caplog.text
