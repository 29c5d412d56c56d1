"""Encode workers of a service: a pool of its own that serves, drains, scales, follows plans, and comes and goes."""

import asyncio
from typing import Any

import pytest

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType, Reason
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.kube import resources
from pointsman.kube.errors import Invalid, NotFound
from waiting import eventually

from .conftest import DEADLINE_S, Cluster
from .plan_objects import plan, policy

ENCODE = {
    "args": ["--max-num-batched-tokens=16384"],
    "template": {
        "metadata": {"labels": {"team": "vision"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "containers": [
                {"name": "engine", "env": [{"name": "POINTSMAN_EMBEDDING_TRANSFER_TRANSPORTS", "value": "nixl,tcp"}]}
            ],
        },
    },
}
ONE_OF_EACH = {
    "prefill": {"replicas": 1, "maxReplicas": 4},
    "decode": {"replicas": 1, "maxReplicas": 4},
    "encode": {"replicas": 1, "maxReplicas": 4},
}


async def _scale(cluster: Cluster, replicas: int) -> None:
    """``kubectl scale wpool chat-encode``."""
    body = {"spec": {"replicas": replicas}}
    await cluster.kube.patch(resources.WORKER_POOLS, "chat-encode", cluster.namespace, body, subresource="scale")


async def _pod(cluster: Cluster, role: Role) -> dict[str, Any]:
    """The first pod of a role, as the API server has it."""
    found = cluster.kubelet.worker_pods(role)[0]
    return dict(await cluster.kube.get(resources.PODS, found.metadata.name, cluster.namespace))


def _environment(pod: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}


def _language_workers(cluster: Cluster) -> set[str]:
    return {pod.metadata.uid for role in names.LANGUAGE_ROLES for pod in cluster.kubelet.worker_pods(role)}


def _routable(cluster: Cluster) -> set[str]:
    """Uids of the prefill and decode workers that serve."""
    return {
        pod.metadata.uid for role in names.LANGUAGE_ROLES for pod in cluster.kubelet.worker_pods(role, routable=True)
    }


async def test_encode_workers_serve_drain_and_scale_to_none(cluster: Cluster) -> None:
    await cluster.create(encode=ENCODE, pools=ONE_OF_EACH, multimodal={"cacheMiB": 64, "maxImages": 4})
    await cluster.until_summary("1E1P1D")
    assert cluster.condition(ConditionType.ENCODE_READY)[:2] == ("True", Reason.AS_DESIRED)
    encode, decode = await _pod(cluster, Role.ENCODE), await _pod(cluster, Role.DECODE)
    assert encode["spec"]["containers"][0]["args"] == ENCODE["args"]
    assert encode["metadata"]["labels"]["team"] == "vision"
    said = _environment(encode)
    assert said[names.ENV_EMBEDDING_ROLE] == names.EmbeddingRole.PRODUCER
    assert said[names.ENV_EMBEDDING_CACHE_MIB] == "64"
    assert said["POINTSMAN_EMBEDDING_TRANSFER_TRANSPORTS"] == "nixl,tcp"
    assert _environment(decode)[names.ENV_EMBEDDING_ROLE] == names.EmbeddingRole.CONSUMER
    revisions = {pod["metadata"]["labels"][names.REVISION_LABEL] for pod in (encode, decode)}
    assert len(revisions) == 2, "encode workers have a revision of their own"
    gateway_pods = await cluster.kube.get(resources.DEPLOYMENTS, "chat-gateway", cluster.namespace)
    assert _environment(gateway_pods["spec"]["template"])["POINTSMAN_MAX_IMAGES"] == "4"

    # scaled by hand, as an autoscaler does; a busy one is waited for
    before = _language_workers(cluster)
    await _scale(cluster, 2)
    await cluster.until_summary("2E1P1D")
    for pod in cluster.kubelet.worker_pods(Role.ENCODE):
        cluster.kubelet.workers[pod.metadata.name].leases = 1  # an embedding that is not fetched yet
    await _scale(cluster, 0)
    leaving = [cluster.kubelet.workers[pod.metadata.name] for pod in cluster.kubelet.worker_pods(Role.ENCODE)]
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(worker.drained.wait() for worker in leaving))
    assert len(cluster.kubelet.worker_pods(Role.ENCODE)) == 2, "what waits to be fetched keeps a worker"
    for worker in leaving:
        worker.leases = 0
    await cluster.until_summary("0E1P1D")
    assert cluster.kubelet.lost_work == []
    assert cluster.condition(ConditionType.AVAILABLE)[0] == "True", "the worker that prefills encodes"
    assert _language_workers(cluster) == before

    # deleted with all that it has
    await _scale(cluster, 1)
    await cluster.until_summary("1E1P1D")
    await cluster.kube.delete(resources.LLM_SERVICES, "chat", cluster.namespace)
    await cluster.until(cluster.services, lambda: cluster.service() is None, "the service is gone")
    for resource in (resources.WORKER_POOLS, resources.POD_DISRUPTION_BUDGETS):
        with pytest.raises(NotFound):
            await cluster.kube.get(resource, "chat-encode", cluster.namespace)


async def test_an_encode_pool_comes_and_goes_with_the_spec_and_the_other_workers_stay(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    before, revision = _language_workers(cluster), cluster.service().status.revision  # type: ignore[union-attr]
    await cluster.edit({"encode": {}})
    message = await cluster.until_condition(ConditionType.PROGRESSING, "False", Reason.CHANGE_NEEDS_ROLLOUT)
    assert "2 workers run an older revision and do not use the encode workers" in message
    assert "delete them one by one to replace them: chat-" in message
    await cluster.until_condition(ConditionType.ENCODE_READY, "True")
    await cluster.until_condition(ConditionType.READY, "False", Reason.CHANGE_NEEDS_ROLLOUT)
    found = cluster.service()
    assert found is not None
    assert found.status.summary == "1E1P1D"
    assert _language_workers(cluster) == before

    # what the condition says to do: each is replaced, and then all use the encode workers
    for pod in [pod for role in names.LANGUAGE_ROLES for pod in cluster.kubelet.worker_pods(role)]:
        await cluster.kube.delete(resources.PODS, pod.metadata.name, cluster.namespace)

        def replaced(uid: str = pod.metadata.uid) -> bool:
            serving = _routable(cluster)
            return uid not in serving and len(serving) == 2

        await eventually(replaced, "another one serves in its place")
    await cluster.until_condition(ConditionType.PROGRESSING, "False", Reason.IDLE)
    for role in names.LANGUAGE_ROLES:
        assert _environment(await _pod(cluster, role))[names.ENV_EMBEDDING_ROLE] == names.EmbeddingRole.CONSUMER

    before = _language_workers(cluster)
    await cluster.edit({"encode": None})
    await cluster.until_event("PoolDeleted")
    await cluster.until(
        cluster.services,
        lambda: cluster.condition(ConditionType.ENCODE_READY) == ("", "", ""),
        "no encode pool is shown",
    )
    message = await cluster.until_condition(ConditionType.PROGRESSING, "False", Reason.CHANGE_NEEDS_ROLLOUT)
    assert "encode" not in message, "they have a connector that nothing uses"
    with pytest.raises(NotFound):
        await cluster.kube.get(resources.WORKER_POOLS, "chat-encode", cluster.namespace)
    with pytest.raises(NotFound):
        await cluster.kube.get(resources.POD_DISRUPTION_BUDGETS, "chat-encode", cluster.namespace)
    after = cluster.service()
    assert after is not None
    assert after.status.summary == "1P1D"
    assert after.status.pools is not None
    assert after.status.pools.encode is None
    assert after.status.revision == revision
    assert _language_workers(cluster) == before
    assert cluster.kubelet.lost_work == []


async def test_an_operator_that_was_replaced_goes_on_with_encode_workers_and_repeats_nothing(cluster: Cluster) -> None:
    await cluster.create(encode={}, pools=ONE_OF_EACH)
    await cluster.until_summary("1E1P1D")
    cluster.operator.kill()
    cluster.operator.start()
    await cluster.edit({"pools": {"encode": {"replicas": 2}}})
    await cluster.until_summary("2E1P1D")
    assert len(cluster.kubelet.created) == 4


async def test_an_encode_worker_that_cannot_encode_is_never_routable_and_requests_are_answered(
    cluster: Cluster,
) -> None:
    await cluster.create(encode={}, pools=ONE_OF_EACH)
    await cluster.until_summary("1E1P1D")
    cluster.kubelet.fails_verify = "the embedding cannot be fetched"
    await _scale(cluster, 2)
    message = await cluster.until_condition(ConditionType.ENCODE_READY, "False", Reason.VERIFICATION_FAILED)
    assert "the embedding cannot be fetched" in message
    assert cluster.condition(ConditionType.AVAILABLE)[0] == "True"
    assert cluster.condition(ConditionType.DECODE_READY)[0] == "True"
    assert len(cluster.kubelet.worker_pods(Role.ENCODE, routable=True)) == 1


async def test_a_switch_into_encode_is_refused_with_a_sentence(cluster: Cluster) -> None:
    body = {"metadata": {"name": "into"}, "spec": {"serviceRef": {"name": "chat"}, "from": "Decode", "to": "Encode"}}
    with pytest.raises(Invalid, match="a worker cannot switch to or from the role Encode"):
        await cluster.kube.create(resources.ROLE_SWITCHES, body, cluster.namespace)


async def test_a_plan_scales_encode_workers_and_one_without_them_leaves_them(cluster: Cluster) -> None:
    await policy(cluster, Mode.ACTIVE, budget={"maxGpus": 6})
    await cluster.create(encode={}, pools=ONE_OF_EACH, policyRef={"name": "chat"})
    await cluster.until_summary("1E1P1D")

    def pools(prefill: int, decode: int, encode: int) -> dict[str, Any]:
        counts = {"prefill": prefill, "decode": decode, "encode": encode}
        return {name: {"replicas": replicas} for name, replicas in counts.items()}

    first = await plan(cluster, 1, 1, 1, pools=pools(1, 1, 3))
    await cluster.until_plan(PlanPhase.COMPLETED, first)
    await cluster.until_summary("3E1P1D")
    second = await plan(cluster, 2, 1, 2)
    await cluster.until_plan(PlanPhase.COMPLETED, second)
    await cluster.until_summary("3E1P2D")
    too_many = await plan(cluster, 3, 2, 2, pools=pools(2, 2, 3))
    refused = await cluster.until_plan(PlanPhase.FAILED, too_many)
    assert refused.status.message is not None
    assert "the plan needs 7 GPUs, more than budget.maxGpus of the policy (6)" in refused.status.message
    none = await plan(cluster, 4, 1, 2, pools=pools(1, 2, 0))
    await cluster.until_plan(PlanPhase.COMPLETED, none)
    await cluster.until_summary("0E1P2D")
    await eventually(lambda: not cluster.kubelet.worker_pods(Role.ENCODE), "no encode worker is left")
