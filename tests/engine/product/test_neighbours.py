"""Services of one name in two namespaces share nothing, and one that is deleted finishes what it has."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.product.served import PREFILL_HEAVY, Served, errors, served, some, stream_of
from pointsman.local.cluster import LocalCluster
from pointsman.local.traffic import closed_loop, summarise


@pytest.fixture
async def namesake(cluster: LocalCluster, model: Path) -> AsyncIterator[Served]:
    """Another service called chat, in a namespace of its own, with one worker of each role."""
    cluster.kubectl("create", "namespace", "neighbour")
    async with served(cluster, model, namespace="neighbour") as service:
        service.apply(decode=1)
        await service.ready(prefill=1, decode=1)
        yield service


async def test_a_namesake_never_sees_our_prefills_and_is_deleted_only_when_its_streams_have_ended(
    chat: Served, namesake: Served
) -> None:
    async with asyncio.TaskGroup() as group:
        ours = group.create_task(closed_loop(chat.endpoint, some(PREFILL_HEAVY, 12, seed=71), clients=3))
        theirs = group.create_task(closed_loop(namesake.endpoint, some(PREFILL_HEAVY, 12, seed=72), clients=3))
    for service, answers in ((chat, ours.result()), (namesake, theirs.result())):
        assert errors(answers) == []
        summary = summarise(answers)
        own = {worker.name for worker in (await service.look()).workers}
        assert summary.remote_prefills >= 6
        assert set(summary.prefill_workers) <= own
        assert set(summary.workers) <= own

    begun = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        stream = group.create_task(namesake.endpoint.send(stream_of(1_200, 0), on_token=begun.set))
        async with asyncio.timeout(120):
            await begun.wait()
        namesake.kubectl("delete", "llms", "chat", "--wait=false")
    assert errors([stream.result()]) == []
    assert len(stream.result().token_ids or ()) == 1_200
    await namesake.until("the end of the service", lambda view: view.service is None and not view.workers)
    namesake.kubectl("delete", "namespace", "neighbour", "--wait=false")
    assert (await chat.look()).ready, "the other service of that name lives on"
