"""What is taken away from outside: a worker evicted, the chart uninstalled, a namespace deleted."""

import asyncio

import pytest

from engine.product.served import (
    MODEL_NAME,
    PREFILL_HEAVY,
    WAIT_SECONDS,
    Served,
    errors,
    evict,
    gateways,
    served,
    stream_of,
)
from pointsman.api.protocol.names import Role
from pointsman.local.cluster import RELEASE, LocalCluster
from pointsman.local.errors import ControlPlaneError
from pointsman.local.traffic import Endpoint, PrefillPath, Record, prompts, running_load
from waiting import eventually, until

LONG_ANSWER_TOKENS = 1_200


async def begun_streams(endpoint: Endpoint, count: int) -> list[asyncio.Task[Record]]:
    """Long streams, each of which has had its first token."""
    begun = [asyncio.Event() for _ in range(count)]
    streams = [
        asyncio.create_task(endpoint.send(stream_of(LONG_ANSWER_TOKENS, number), on_token=event.set))
        for number, event in enumerate(begun)
    ]
    async with asyncio.timeout(120):
        await asyncio.gather(*(event.wait() for event in begun))
    return streams


def whole(streams: list[Record]) -> bool:
    return errors(streams) == [] and {len(stream.token_ids or ()) for stream in streams} == {LONG_ANSWER_TOKENS}


async def test_an_evicted_worker_finishes_its_streams_first_and_the_others_are_kept_until_it_is_replaced(
    chat: Served,
) -> None:
    streams = await begun_streams(chat.endpoint, 4)
    before = await chat.look()
    busy = [worker for worker in before.routable(Role.DECODE) if worker.state is not None and worker.state.in_flight]
    assert busy, "no stream runs anywhere"
    victim = busy[0].name
    (other,) = (worker.name for worker in before.routable(Role.DECODE) if worker.name != victim)
    moved = await chat.mid_stream_moves()
    evict(chat, victim)
    for kept in (other, before.routable(Role.PREFILL)[0].name):
        with pytest.raises(ControlPlaneError, match="disruption budget"):
            evict(chat, kept)
    answers = [await stream for stream in streams]
    assert whole(answers), errors(answers)
    assert await chat.mid_stream_moves() == moved, "every stream ended where it had begun"
    assert victim in {answer.worker for answer in answers}, "the evicted worker had none: nothing was shown"
    after = await chat.ready(prefill=1, decode=2)
    assert victim not in {worker.name for worker in after.workers}
    await chat.at_rest()


async def test_a_chart_that_goes_first_leaves_gateways_and_workers_that_serve_and_restart(chat: Served) -> None:
    """And that find it again when it is back."""
    before = await chat.look()
    url = chat.cluster.service_url(chat.name)
    async with (
        Endpoint(url, MODEL_NAME, timeout_seconds=WAIT_SECONDS) as endpoint,
        running_load(endpoint, prompts(PREFILL_HEAVY, seed=111), clients=3) as traffic,
    ):
        await traffic.until(lambda records: any(r.path is PrefillPath.REMOTE for r in records), timeout_seconds=120)
        await asyncio.to_thread(chat.cluster.helm, "uninstall", RELEASE)
        gone_at = len(traffic.records)
        await traffic.until(
            lambda records: any(r.path is PrefillPath.LOCAL for r in records[gone_at:]), timeout_seconds=120
        )
        # a worker and the gateway start anew with what is the service's own
        victim = before.routable(Role.DECODE)[0].name
        chat.kill(victim)
        (gateway,) = gateways(chat)
        chat.kubectl("delete", "pod", gateway, "--wait=false")
        await eventually(lambda: list(gateways(chat).values()) == [True], "another gateway has taken its place")
        restarted_at = len(traffic.records)
        await traffic.until(
            lambda records: any(r.worker == victim and r.served for r in records[restarted_at:]), timeout_seconds=120
        )
        await asyncio.to_thread(chat.cluster.install)
        back_at = len(traffic.records)
        await traffic.until(
            lambda records: any(r.path is PrefillPath.REMOTE for r in records[back_at:]), timeout_seconds=120
        )
    assert errors(traffic.records) == []
    after = await chat.ready(prefill=1, decode=2)
    assert {worker.pod.metadata.uid for worker in after.workers} == {
        worker.pod.metadata.uid for worker in before.workers
    }, "no worker was made anew"
    await chat.at_rest()


@pytest.mark.verify  # Kubernetes looks at a namespace again only after half the grace period of its pods
async def test_a_namespace_is_deleted_with_its_service_and_a_stream_that_runs_ends_as_it_should(
    chat: Served, cluster: LocalCluster
) -> None:
    cluster.kubectl("create", "namespace", "doomed")
    async with served(cluster, chat.model, namespace="doomed") as doomed:
        doomed.apply(decode=1)
        await doomed.ready(prefill=1, decode=1)
        streams = await begun_streams(doomed.endpoint, 1)
        cluster.kubectl("delete", "namespace", "doomed", "--wait=false")
        answers = [await stream for stream in streams]
        assert whole(answers), errors(answers)
    find = ("get", "namespace", "doomed", "--ignore-not-found", "-o", "name")
    await asyncio.to_thread(until, lambda: not cluster.kubectl(*find), "the namespace is gone, with all in it", 120)
    assert (await chat.look()).ready
