"""Who reads the metrics of a real gateway process: Prometheus and the planner at the pod, no client of the Service."""

import socket
from pathlib import Path

import aiohttp
import pytest

from fixtures.gateways import GatewayProcess, connected, gateway_process
from fixtures.prometheus_server import running_prometheus
from integration.gateway.stand_in_worker import TOKEN
from pointsman.planner.scraper import Scraper
from waiting import eventually


@pytest.mark.parametrize("is_earlier", [False, True], ids=["of this version", "as of an earlier version"])
async def test_prometheus_and_the_planner_read_a_gateway_where_earlier_versions_had_its_metrics(
    tmp_path: Path, is_earlier: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if is_earlier else 0
        with gateway_process(tmp_path / "gateway", token=TOKEN, metrics_port=port) as process:
            await read_by_both(process, is_earlier=is_earlier)


async def read_by_both(process: GatewayProcess, *, is_earlier: bool) -> None:
    """At the address of the port of clients, as PodMonitors and planners have it."""
    (listening,) = process.logged("listening")
    assert ("metrics_port" not in listening) is is_earlier
    with running_prometheus() as prometheus:
        prometheus.scrape({"gateway": process.url.removeprefix("http://")}, "models")
        query = 'pointsman_gateway_in_flight{pod="gateway",service="chat"}'
        await eventually(lambda: bool(prometheus.query(query)), "Prometheus has the gateway's samples")
    async with Scraper(60.0) as scraper:
        for _ in range(2):
            await scraper.scrape({"gateway": f"{process.url}/metrics"})
        assert scraper.reading("gateway") is not None


async def test_a_client_of_the_service_reads_no_metrics(tmp_path: Path) -> None:
    with gateway_process(tmp_path, token=TOKEN) as process:
        async with connected(process) as gateway:
            assert await gateway.metrics(), "at the pod they are read"
        host = {"Host": "chat-gateway.models.svc:8000"}
        async with aiohttp.ClientSession() as client, client.get(f"{process.url}/metrics", headers=host) as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["code"] == "not_served"
