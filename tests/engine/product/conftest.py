"""One cluster for all product tests: real control plane, chart, NATS, operator, gateway, and real engines as pods."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.product.served import ASKED, Served, served
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.engine.plain_server import plain_server
from pointsman.local.traffic import Endpoint, Record, closed_loop

REFERENCE_NAME = "plain"


@pytest.fixture(scope="package")
def cluster() -> Iterator[LocalCluster]:
    """A cluster with Pointsman installed; it ends with these tests, for other engines need the computer.

    Containers are killed so often here that a kubelet's back-off, which doubles, would take minutes.
    """
    with LocalCluster(restart_seconds=0.1, images=True) as running:
        running.install()
        yield running


@pytest.fixture(scope="package")
def model(cluster: LocalCluster) -> Path:
    """The tiny float32 model whose answers depend on the whole prompt."""
    return ensure_model(cluster.environment, ModelSize.TINY)


@pytest.fixture
async def chat(cluster: LocalCluster, model: Path) -> AsyncIterator[Served]:
    """The service of examples/quickstart.yaml in the namespace default, Ready at 1P2D whatever the last test did."""
    async with served(cluster, model) as service:
        await service.restore()
        yield service


@pytest.fixture(scope="package")
def reference_url(cluster: LocalCluster, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One plain vLLM server with the same model in float32, without anything of Pointsman; only to be asked."""
    log = tmp_path_factory.mktemp("plain") / "plain.log"
    server = plain_server(
        cluster.environment, cluster.fork_socket, model, served_name=REFERENCE_NAME, dtype="float32", log=log
    )
    with asyncio.Runner() as runner:
        running = runner.run(server.__aenter__())
        yield running.base_url
        runner.run(server.__aexit__(None, None, None))


@pytest.fixture
async def plain(reference_url: str) -> AsyncIterator[Endpoint]:
    """The plain server."""
    async with Endpoint(reference_url, REFERENCE_NAME) as endpoint:
        yield endpoint


@pytest.fixture(scope="package")
def answers(reference_url: str) -> list[Record]:
    """What it answers to ``ASKED``."""

    async def ask() -> list[Record]:
        async with Endpoint(reference_url, REFERENCE_NAME) as endpoint:
            return await closed_loop(endpoint, ASKED, clients=4)

    return asyncio.run(ask())
