"""One cluster for all product tests: real control plane, chart, NATS, operator, gateway, and real engines as pods."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.product.served import ASKED, Served, reference, served
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.traffic import Endpoint, Record, closed_loop


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """A cluster with Pointsman installed."""
    with LocalCluster() as running:
        running.install()
        yield running


@pytest.fixture(scope="session")
def model(cluster: LocalCluster) -> Path:
    """The tiny float32 model whose answers depend on the whole prompt."""
    return ensure_model(cluster.environment, ModelSize.TINY)


@pytest.fixture
async def chat(cluster: LocalCluster, model: Path) -> AsyncIterator[Served]:
    """The service of examples/quickstart.yaml in the namespace default, Ready at 1P2D whatever the last test did."""
    async with served(cluster, model) as service:
        await service.restore()
        yield service


@pytest.fixture
async def plain(cluster: LocalCluster, model: Path, tmp_path: Path) -> AsyncIterator[Endpoint]:
    """One plain vLLM server with the same model."""
    async with reference(cluster, model, tmp_path) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def answers(cluster: LocalCluster, model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """What one plain vLLM server answers to ``ASKED``."""

    async def ask() -> list[Record]:
        async with reference(cluster, model, tmp_path_factory.mktemp("answers")) as endpoint:
            return await closed_loop(endpoint, ASKED, clients=4)

    return asyncio.run(ask())
