"""Changes from outside: a worker evicted, the chart upgraded and uninstalled, a namespace deleted."""

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
    may_evict,
    served,
    stream_of,
)
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionStatus, ConditionType
from pointsman.local.cluster import RELEASE, SYSTEM_NAMESPACE, LocalCluster
from pointsman.local.errors import ControlPlaneFailed
from pointsman.local.observation import ServiceView, WorkerView
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
    # A busy worker may leave a look without an answer.
    before = await chat.until("a decode worker has a stream", lambda view: bool(_busy(view)))
    victim = _busy(before)[0]
    (other,) = (worker.name for worker in before.routable(Role.DECODE) if worker.name != victim.name)
    moved = await chat.mid_stream_moves()
    await eventually(lambda: may_evict(chat, victim.name), "the worker is evicted")
    for kept in (other, before.routable(Role.PREFILL)[0].name):
        with pytest.raises(ControlPlaneFailed, match="disruption budget"):
            evict(chat, kept)
    answers = [await stream for stream in streams]
    assert whole(answers), errors(answers)
    assert await chat.mid_stream_moves() == moved, "every stream ended where it had begun"
    assert victim.name in {answer.worker for answer in answers}, "the evicted worker had none: nothing was shown"
    uid = victim.pod.metadata.uid  # its name may be taken again
    await chat.until("the evicted worker is gone", lambda view: uid not in _uids(view))
    await chat.ready(prefill=1, decode=2)
    await chat.at_rest()


def _busy(view: ServiceView) -> list[WorkerView]:
    """Decode workers with requests."""
    return [worker for worker in view.routable(Role.DECODE) if worker.state is not None and worker.state.in_flight]


def _uids(view: ServiceView) -> set[str]:
    return {worker.pod.metadata.uid for worker in view.workers}


def _images(view: ServiceView) -> set[str | None]:
    return {worker.pod.image("engine") for worker in view.workers}


async def healthy(chat: Served) -> ServiceView:
    """Ready at 1P2D and not Degraded, by an operator of the release as it is now."""
    operator = ("deployment/pointsman-operator", "-n", SYSTEM_NAMESPACE, "--timeout=120s")
    await asyncio.to_thread(chat.cluster.kubectl, "rollout", "status", *operator, timeout_s=130)
    view = await chat.ready(prefill=1, decode=2)
    degraded = view.condition(ConditionType.DEGRADED)
    assert degraded is not None
    assert degraded.status is ConditionStatus.FALSE, degraded.message
    return view


async def test_another_default_worker_image_and_its_rollback_fail_no_request_and_change_no_worker(chat: Served) -> None:
    """A worker that is replaced meanwhile has the image of the service, so the others exchange KV with it."""
    before = await healthy(chat)
    (image,) = _images(before)
    assert image is not None
    another = image.rpartition(":")[0] + ":another"  # the name decides who may exchange KV
    url = chat.cluster.service_url(chat.name)
    async with (
        Endpoint(url, MODEL_NAME, timeout_seconds=WAIT_SECONDS) as endpoint,
        running_load(endpoint, prompts(PREFILL_HEAVY, seed=113), clients=3) as traffic,
    ):

        async def remote_prefill_from_now_on() -> None:
            now = len(traffic.records)
            await traffic.until(
                lambda records: any(r.path is PrefillPath.REMOTE for r in records[now:]), timeout_seconds=120
            )

        await remote_prefill_from_now_on()
        await asyncio.to_thread(chat.cluster.install, {"images": {"worker": another}})
        try:
            upgraded = await healthy(chat)
            assert _uids(upgraded) == _uids(before)
            assert upgraded.service is not None
            assert upgraded.service.status.worker_image == image
            victim = upgraded.routable(Role.PREFILL)[0]
            uid = victim.pod.metadata.uid  # the worker that replaces it may have its name before anybody looks
            chat.kubectl("delete", "pod", victim.name, "--wait=false")
            await chat.until("the worker is gone", lambda view: uid not in _uids(view))
            replaced = await healthy(chat)
            assert _images(replaced) == {image}
            await remote_prefill_from_now_on()
        finally:
            await asyncio.to_thread(chat.cluster.helm, "rollback", RELEASE)
        rolled_back = await healthy(chat)
        assert _uids(rolled_back) == _uids(replaced)
        await remote_prefill_from_now_on()
    assert errors(traffic.records) == []
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
        uninstalled = await chat.look()
        assert uninstalled.ready, "the last status is still true"
        assert _uids(uninstalled) == _uids(before)
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
    assert _uids(await healthy(chat)) == _uids(before), "no worker was made anew"
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
