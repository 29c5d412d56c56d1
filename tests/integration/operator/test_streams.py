"""The prefill queue of a deleted service goes with it, and a NATS server that is down keeps no service."""

from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.js.api import StreamConfig

from fixtures.nats_server import PASSWORD, USER, NatsServer, running_nats
from fixtures.operators import ForkedOperator, OperatorProcess
from pointsman.api.protocol.names import prefill_stream, prefill_subjects
from pointsman.kube import resources

from .conftest import Cluster


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with running_nats() as running:
        yield running


@pytest.fixture
def operator(operator_kubeconfig: Path, namespace: str, server: NatsServer) -> Iterator[OperatorProcess]:
    """One that knows a real NATS server and looks after it twice a second."""
    told = {"nats_url": server.url, "nats_user": USER, "nats_password": PASSWORD, "survey_seconds": "0.5"}
    process = ForkedOperator(operator_kubeconfig, namespace, **told)
    process.start()
    yield process
    process.kill()


async def streams(server: NatsServer, *, make: tuple[str, str] | None = None) -> set[str]:
    """Names of the streams there are; ``make`` is the namespace and service uid of one to make as workers do."""
    client = await nats.connect(server.url, user=USER, password=PASSWORD)
    try:
        jetstream = client.jetstream()
        if make is not None:
            await jetstream.add_stream(StreamConfig(name=prefill_stream(*make), subjects=[prefill_subjects(*make)]))
        return {str(stream.config.name) for stream in await jetstream.streams_info()}
    finally:
        await client.close()


async def delete(cluster: Cluster) -> None:
    await cluster.kube.delete(resources.LLM_SERVICES, "chat", cluster.namespace)
    await cluster.until(cluster.services, lambda: cluster.service() is None, "the service is gone")


async def test_the_stream_of_a_deleted_service_is_deleted_and_no_other(cluster: Cluster, server: NatsServer) -> None:
    mine, another = await cluster.create(), "another-uid"
    await cluster.until_summary("1P1D")
    await streams(server, make=(cluster.namespace, mine.metadata.uid))
    await streams(server, make=(cluster.namespace, another))
    await delete(cluster)
    assert await streams(server) == {prefill_stream(cluster.namespace, another)}


async def test_a_nats_that_is_down_keeps_no_service_and_loses_the_stream_when_it_is_back(
    cluster: Cluster, server: NatsServer
) -> None:
    made = await cluster.create()
    await cluster.until_summary("1P1D")
    await streams(server, make=(cluster.namespace, made.metadata.uid))
    server.kill()
    await delete(cluster)
    assert made.metadata.uid in await cluster.until_event("StreamNotDeleted")
    server.start()
    name = prefill_stream(cluster.namespace, made.metadata.uid)
    # The operator says so when it has done it; the server itself is asked once.
    await cluster.until_said(f"stream of a deleted service is deleted stream={name}")
    assert await streams(server) == set()
