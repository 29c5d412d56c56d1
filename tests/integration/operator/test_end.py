"""A service ends: the gateway first, then the workers, then the object."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from pointsman.api.protocol import names
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.operator.apply import Writer
from pointsman.operator.core.nats_credentials import NatsCredentials
from pointsman.operator.errors import NameConflict
from pointsman.operator.expectations import Expectations
from pointsman.operator.observe import service_of

from .conftest import DEADLINE_S, Cluster


async def left(cluster: Cluster) -> list[str]:
    """What there is of a service ``chat`` beside its pods, and is not being deleted."""
    of_the_gateway = (
        resources.DEPLOYMENTS,
        resources.SERVICES,
        resources.SERVICE_ACCOUNTS,
        resources.ROLES,
    )
    names_by_kind = {
        **dict.fromkeys(of_the_gateway, ("chat-gateway",)),
        resources.ROLE_BINDINGS: ("chat-gateway-role",),
        resources.POD_DISRUPTION_BUDGETS: ("chat-gateway", "chat-prefill", "chat-decode"),
        resources.WORKER_POOLS: ("chat-prefill", "chat-decode"),
        resources.SECRETS: ("chat-pointsman",),
    }
    found = []
    for kind, wanted in names_by_kind.items():
        for name in wanted:
            live = await cluster.kube.find(kind, name, cluster.namespace)
            if live is not None and not live["metadata"].get("deletionTimestamp"):
                found.append(f"{kind.kind} {name}")
    return found


async def test_a_deleted_service_lets_its_streams_finish_before_its_workers_go(cluster: Cluster) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")
    workers = dict(cluster.kubelet.workers)
    for worker in workers.values():
        worker.in_flight = 1
    await cluster.kube.delete(resources.LLM_SERVICES, "chat", cluster.namespace)
    await cluster.until_condition(ConditionType.PROGRESSING, "True", "Deleting")
    await cluster.until(cluster.kubelet.pods, lambda: not cluster.kubelet.gateways, "the gateway stopped")
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(worker.drained.wait() for worker in workers.values()))
    assert cluster.kubelet.ended == [], "streams still run"
    for worker in workers.values():
        worker.in_flight = 0
    await cluster.until(cluster.services, lambda: cluster.service() is None, "the service is gone")
    assert await left(cluster) == [], "what it had went before it, though nobody collects garbage that quickly"
    await cluster.until(cluster.kubelet.pods, lambda: not cluster.kubelet.worker_pods(), "its workers are gone")
    assert cluster.kubelet.lost_work == []
    assert len(cluster.kubelet.created) == 3, "none was made on the way out"


async def test_the_skip_drain_annotation_ends_a_service_at_once(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 1
    annotation = {"metadata": {"annotations": {names.SKIP_DRAIN_ANNOTATION: "true"}}}
    await cluster.kube.patch(resources.LLM_SERVICES, "chat", cluster.namespace, annotation)
    await cluster.kube.delete(resources.LLM_SERVICES, "chat", cluster.namespace)
    await cluster.until(cluster.services, lambda: cluster.service() is None, "the service is gone")
    assert await left(cluster) == []
    pods = (await cluster.kube.list(resources.PODS, cluster.namespace)).items
    assert [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]] == []
    assert all("drain" not in worker.asked for worker in cluster.kubelet.workers.values())


async def test_a_service_made_anew_under_its_old_name_takes_nothing_of_its_predecessor(cluster: Cluster) -> None:
    first = await cluster.create()
    await cluster.until_summary("1P1D")
    left = (resources.SECRETS, "chat-pointsman", cluster.namespace)
    before = await cluster.kube.get(*left)
    await cluster.kube.delete(resources.LLM_SERVICES, "chat", cluster.namespace)
    await cluster.until(cluster.services, lambda: cluster.service() is None, "the service is gone")
    second = await cluster.create()
    assert second.metadata.uid != first.metadata.uid
    await cluster.until_summary("1P1D")
    for pod in cluster.kubelet.worker_pods():
        owner = pod.metadata.controller
        assert owner is not None
        assert owner.uid == second.metadata.uid
    after = await cluster.kube.get(*left)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["data"]["control-token"] != before["data"]["control-token"], "workers of the first are strangers now"


async def test_what_a_predecessor_left_behind_makes_way_at_once_and_what_a_stranger_has_does_not(
    kube: Kube, namespace: str, operator_kubeconfig: Path
) -> None:
    """Garbage collection would take it too, but in its own time: here its owner lives, so that it does not."""
    spec = {"model": {"source": "hf://test/tiny"}, "paused": True, "pools": {"prefill": {}, "decode": {}}}
    raw = await kube.create(resources.LLM_SERVICES, {"metadata": {"name": "chat"}, "spec": spec}, namespace)
    first = service_of(LLMService.model_validate(raw))
    second = replace(first, uid="of-the-service-made-anew")
    writer = Writer(kube, Expectations(), NatsCredentials("user", "password"), lambda: True)
    secret = (resources.SECRETS, "chat-pointsman")
    await writer.ensure_secret(first)
    before = await kube.get(*secret, namespace)

    with pytest.raises(NameConflict):
        await writer.find_own(*secret, second, make_way=False)  # of a paused service nothing is touched
    stranger = replace(second, name="code")
    with pytest.raises(NameConflict):
        await writer.find_own(*secret, stranger)
    assert await kube.get(*secret, namespace) == before
    assert await writer.find_own(*secret, second) is None
    assert await kube.find(*secret, namespace) is None
