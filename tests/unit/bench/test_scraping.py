"""The benchmark of the planner's readings: its stand-in for Prometheus has the captured pages, and stalls are seen."""

import asyncio
import time

import pytest
from aiohttp import web
from bench.planner.prometheus_stand_in import NAMESPACE, StandIn, capture, pod_names
from bench.planner.scraping import rounds

from pointsman.planner.core.metrics.observe import FAMILIES
from pointsman.planner.exposition import PageParser
from pointsman.planner.prometheus import Prometheus, PrometheusReadings


async def test_pods_of_the_stand_in_have_the_captured_pages_and_a_new_one_at_each_look() -> None:
    runner = web.AppRunner(StandIn().app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server = Prometheus(site.name, 5.0)
    readings, pods = PrometheusReadings(server), pod_names(5)
    for _ in range(2):
        await readings.read(NAMESPACE, pods)
        assert readings.problem is None
        await asyncio.sleep(0.01)
    server.close()
    await runner.cleanup()
    for key, name in pods.items():
        reading = readings.reading(key)
        assert reading is not None
        assert reading.page == PageParser(FAMILIES).parse(capture("prefill" if "prefill" in name else "decode"))


async def test_a_stall_at_the_end_of_a_look_counts_and_so_do_pages_that_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.planner.scraping.INTERVAL_S", 0.0)

    async def look() -> int:
        await asyncio.sleep(0.02)
        time.sleep(0.05)  # noqa: ASYNC251  a stall is what is measured
        return 3

    (found,) = await rounds(look, 1)
    assert found["seconds"] > 0.06
    assert found["stall_ms"] > 45
    assert found["lost"] == 3.0
