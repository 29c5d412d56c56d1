"""Pools grow at once and shrink by draining."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fixtures.seeds import drawn_seed
from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.kube import resources
from pointsman.kube.errors import NotFound, Throttled
from waiting import eventually

from .conftest import DEADLINE_S, Cluster


async def _scale(cluster: Cluster, pool: str, replicas: int) -> None:
    """``kubectl scale wpool``."""
    await cluster.kube.patch(
        resources.WORKER_POOLS, pool, cluster.namespace, {"spec": {"replicas": replicas}}, subresource="scale"
    )


async def test_a_pool_grows_and_shrinks_with_the_spec_and_with_kubectl_scale(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    await cluster.edit({"pools": {"decode": {"replicas": 3}}})
    await cluster.until_summary("1P3D")
    await _scale(cluster, "chat-decode", 2)
    await cluster.until_summary("1P2D")
    # An edit of something else leaves what kubectl scale wrote; an edit of the number itself takes over.
    await cluster.edit({"pools": {"prefill": {"replicas": 2}}})
    await cluster.until_summary("2P2D")
    await cluster.edit({"pools": {"decode": {"replicas": 1}}})
    await cluster.until_summary("2P1D")
    assert len(cluster.kubelet.created) == 5, "no worker was made twice"
    assert cluster.kubelet.lost_work == []


async def test_a_pool_scaled_beyond_the_services_bounds_is_held_and_says_so(cluster: Cluster) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 1, "maxReplicas": 2}})
    await cluster.until_summary("1P1D")
    await _scale(cluster, "chat-decode", 5)
    await cluster.until_summary("1P2D")

    def says_so() -> bool:
        pool = cluster.pools.get("chat-decode", cluster.namespace)
        return any(item.reason == "OutOfBounds" for item in (pool.status.conditions if pool else ()))

    await cluster.until(cluster.pools, says_so, "OutOfBounds on the pool")
    assert "has spec.replicas 5" in cluster.condition(ConditionType.DECODE_READY)[2]
    assert len(cluster.kubelet.created) == 3


async def test_a_worker_leaves_only_after_gateways_let_go_and_its_work_is_done(cluster: Cluster) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")
    gateway = next(iter(cluster.kubelet.gateways.values()))
    first, second = cluster.kubelet.worker_pods(Role.DECODE)
    busy, idle = cluster.kubelet.workers[first.metadata.name], cluster.kubelet.workers[second.metadata.name]
    busy.in_flight, idle.in_flight = 4, 1  # the idler goes
    gateway.frozen = gateway.uses()
    await cluster.edit({"pools": {"decode": {"replicas": 1}}})

    await cluster.until(
        cluster.kubelet.pods,
        lambda: (
            [p.metadata.name for p in cluster.kubelet.worker_pods(Role.DECODE, routable=False)]
            == [second.metadata.name]
        ),
        "the one with fewer tokens in flight is marked",
    )
    asked_before = gateway.reports
    async with asyncio.timeout(DEADLINE_S):
        while gateway.reports < asked_before + 3:  # the operator asks; the gateway still uses it
            await gateway.reported.wait()
    assert "drain" not in idle.asked, "a decode worker keeps serving while a gateway may send to it"
    gateway.frozen = None
    async with asyncio.timeout(DEADLINE_S):
        await idle.drained.wait()
    assert idle.in_flight == 1
    await cluster.until_condition(ConditionType.PROGRESSING, "True", "WorkersDraining")
    assert second.metadata.name in cluster.kubelet.workers, "its stream still runs"
    idle.in_flight = 0
    await cluster.until_summary("1P1D")
    assert cluster.kubelet.lost_work == []
    assert "drain" not in busy.asked
    assert "no request is in flight" in await cluster.until_event("WorkerDeleted", second.metadata.name)


async def test_a_prefill_worker_with_a_lease_nobody_pulled_is_kept_until_it_is_gone(cluster: Cluster) -> None:
    await cluster.create(pools={"prefill": {"replicas": 2}, "decode": {"replicas": 1}})
    await cluster.until_summary("2P1D")
    for worker in cluster.kubelet.workers.values():
        worker.leases = 1
    await cluster.edit({"pools": {"prefill": {"replicas": 1}}})
    await cluster.until(
        cluster.kubelet.pods,
        lambda: len(cluster.kubelet.worker_pods(Role.PREFILL, routable=False)) == 1,
        "one prefill worker drains",
    )
    leaving = cluster.kubelet.workers[cluster.kubelet.worker_pods(Role.PREFILL, routable=False)[0].metadata.name]
    async with asyncio.timeout(DEADLINE_S):
        await leaving.drained.wait()
        answers = leaving.answers
        while leaving.answers < answers + 3:
            await leaving.answered.wait()
    assert cluster.kubelet.ended == []
    leaving.leases = 0
    await cluster.until_summary("1P1D")
    assert cluster.kubelet.lost_work == []


async def test_a_silent_gateway_is_passed_over_and_a_drain_ends_at_its_deadline(cluster: Cluster) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}}, drain={"timeoutSeconds": 4})
    await cluster.until_summary("1P2D")
    next(iter(cluster.kubelet.gateways.values())).silent = True
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 1
    await cluster.edit({"pools": {"decode": {"replicas": 1}}})
    assert "drains do not wait" in await cluster.until_event("GatewaySkipped")
    await cluster.until_summary("1P1D")
    assert len(cluster.kubelet.lost_work) == 1, "the gateway retries it elsewhere"
    assert "drain.timeoutSeconds 4 has passed" in await cluster.until_event("WorkerDeleted")


async def test_a_leaving_worker_is_taken_back_when_it_is_needed_again(cluster: Cluster) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2, "maxReplicas": 2}})
    await cluster.until_summary("1P2D")
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 1
    await cluster.edit({"pools": {"decode": {"replicas": 1}}})
    await cluster.until_condition(ConditionType.PROGRESSING, "True", "WorkersDraining")
    await cluster.edit({"pools": {"decode": {"replicas": 2}}})
    await cluster.until_summary("1P2D")
    assert len(cluster.kubelet.created) == 3, "nobody was made beyond maxReplicas"
    assert cluster.kubelet.ended == []


async def test_unready_workers_go_first(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    serving = cluster.kubelet.worker_pods(Role.DECODE)[0].metadata.name
    cluster.kubelet.workers[serving].in_flight = 3
    cluster.kubelet.starts_workers = False
    await cluster.edit({"pools": {"decode": {"replicas": 3}}})
    await cluster.until(
        cluster.kubelet.pods, lambda: len(cluster.kubelet.worker_pods(Role.DECODE)) == 3, "two more that do not start"
    )
    await cluster.edit({"pools": {"decode": {"replicas": 1}}})
    await cluster.until_summary("1P1D")
    assert [pod.metadata.name for pod in cluster.kubelet.worker_pods(Role.DECODE)] == [serving]
    assert cluster.kubelet.workers[serving].asked == ["role Decode", "verify Decode"]


async def test_an_operator_killed_at_any_point_repeats_nothing_and_loses_nothing(cluster: Cluster) -> None:
    """Six kills, each after a seeded number of changes of pods, while the pools go up and down."""
    dice = random.Random(drawn_seed())
    operator, kubelet = cluster.operator, cluster.kubelet
    await cluster.create(drain={"timeoutSeconds": 300})
    for decode in (1, 3, 1, 4, 2, 3):
        await cluster.edit({"pools": {"decode": {"replicas": decode}}})
        changes = kubelet.pods.changes + dice.randrange(1, 25)

        def far_enough(changes: int = changes, decode: int = decode) -> bool:
            settled = len(kubelet.worker_pods(Role.DECODE, routable=True)) == len(kubelet.worker_pods(Role.DECODE))
            done = settled and len(kubelet.worker_pods(Role.DECODE)) == decode
            return done or kubelet.pods.changes >= changes

        await cluster.until(kubelet.pods, far_enough, "the point to kill at")
        operator.kill()
        # The killed one surely leads no more; how long another waits for its Lease to run out is the kube room's test.
        with suppress(NotFound):  # killed before it led
            await cluster.kube.delete(resources.LEASES, "pointsman-operator", cluster.namespace)
        # Only who is routable gets new work: a delete of one that had drained may be on its way already.
        for pod in kubelet.worker_pods(routable=True):
            kubelet.workers[pod.metadata.name].in_flight = dice.randrange(2)
        operator.start()
        for worker in kubelet.workers.values():
            worker.finishes_when_drained = True
    await cluster.until_layout(1, 3)
    assert kubelet.lost_work == []
    roles = [pod.metadata.labels[names.ROLE_LABEL] for pod in kubelet.worker_pods()]
    assert sorted(roles) == ["decode", "decode", "decode", "prefill"]
    assert len(kubelet.created) - len(kubelet.ended) == 4, "no worker more than was asked for"
    ups_and_downs = 1 + 1 + 2 + 3 + 1  # prefill, and the decode workers that were missing at each step at most
    assert len(kubelet.created) <= ups_and_downs, kubelet.created


async def test_the_only_worker_of_a_pool_is_evicted_once_there_is_a_second_one(cluster: Cluster) -> None:
    """``kubectl drain`` waits for that: nothing else says that a node is to be drained, so a person scales the pool."""
    await cluster.create()
    await cluster.until_summary("1P1D")
    only = cluster.kubelet.worker_pods(Role.DECODE)[0].metadata.name

    async def evict() -> bool:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": only}}
        try:
            await cluster.kube.create(resources.PODS, body, cluster.namespace, name=only, subresource="eviction")
        except Throttled:
            return False
        return True

    def counted(healthy: int) -> Callable[[], Awaitable[bool]]:
        async def is_so() -> bool:
            budget = await cluster.kube.get(resources.POD_DISRUPTION_BUDGETS, "chat-decode", cluster.namespace)
            return bool(budget.get("status", {}).get("currentHealthy") == healthy)

        return is_so

    await eventually(counted(1), "the worker counts in the budget")
    assert not await evict()
    await _scale(cluster, "chat-decode", 2)
    await cluster.until_summary("1P2D")
    await eventually(evict, "the worker may go")
    await cluster.until(cluster.kubelet.pods, lambda: only in cluster.kubelet.ended, "the worker is gone")
    await cluster.until_summary("1P2D")
