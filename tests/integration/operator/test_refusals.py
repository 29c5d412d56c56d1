"""What cannot be served says so in a condition: which field or object, and why."""

import json
from typing import Any

import pytest

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.kube import resources
from pointsman.local.control_plane import ControlPlane

from .conftest import Cluster

STRANGER = {"app": "somebody-else"}


async def test_an_object_of_a_name_we_need_is_never_adopted(cluster: Cluster) -> None:
    stranger = {
        "metadata": {"name": "chat-gateway", "labels": STRANGER},
        "spec": {"selector": STRANGER, "ports": [{"port": 80}]},
    }
    await cluster.kube.create(resources.SERVICES, stranger, cluster.namespace)
    await cluster.create()
    said = await cluster.until_condition(ConditionType.READY, "False", "NameConflict")
    assert "Service chat-gateway exists and belongs to somebody else" in said
    live = await cluster.kube.get(resources.SERVICES, "chat-gateway", cluster.namespace)
    assert live["metadata"]["labels"] == STRANGER
    assert "ownerReferences" not in live["metadata"]


async def test_a_policy_says_who_follows_it_and_both_say_what_contradicts(cluster: Cluster) -> None:
    budget = {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 2}}
    policy = {"metadata": {"name": "thrifty"}, "spec": budget}
    await cluster.kube.create(resources.PLANNER_POLICIES, policy, cluster.namespace)
    await cluster.until_policy("thrifty", "InUse", "NotInUse")
    pools = {"prefill": {"replicas": 1}, "decode": {"replicas": 2, "minReplicas": 2}}
    await cluster.create(pools=pools, policyRef={"name": "thrifty"})
    said = await cluster.until_policy("thrifty", "Accepted", "BudgetBelowMinimum")
    assert "write maxGpus >= 3" in said
    assert "write maxGpus >= 3" in await cluster.until_condition(ConditionType.DEGRADED, "True", "BudgetBelowMinimum")
    await cluster.kube.patch(
        resources.PLANNER_POLICIES, "thrifty", cluster.namespace, {"spec": {"budget": {"maxGpus": 3}}}
    )
    await cluster.until_policy("thrifty", "Accepted", "Accepted")
    assert await cluster.until_policy("thrifty", "InUse", "InUse") == "followed by chat"
    await cluster.until_summary("1P2D")
    await cluster.kube.delete(resources.LLM_SERVICES, "chat", cluster.namespace)
    await cluster.until_policy("thrifty", "InUse", "NotInUse")


async def test_a_gateway_deleted_by_hand_is_made_again_soon(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    before = await cluster.kube.get(resources.DEPLOYMENTS, "chat-gateway", cluster.namespace)
    await cluster.kube.delete(resources.DEPLOYMENTS, "chat-gateway", cluster.namespace)
    await cluster.until_condition(ConditionType.GATEWAY_READY, "False")
    await cluster.until_summary("1P1D")
    after = await cluster.kube.get(resources.DEPLOYMENTS, "chat-gateway", cluster.namespace)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


async def test_a_strangers_pod_of_a_workers_name_costs_one_ordinal(cluster: Cluster) -> None:
    await cluster.create(paused=True)
    await cluster.until_condition(ConditionType.PROGRESSING, "False", "Paused")
    found = cluster.service()
    assert found is not None
    taken = f"chat-{found.status.revision}-0"
    pod = {"metadata": {"name": taken, "labels": STRANGER}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await cluster.kube.create(resources.PODS, pod, cluster.namespace)
    await cluster.edit({"paused": False})
    await cluster.until_summary("1P1D")
    assert taken not in cluster.kubelet.created
    assert "is not adopted" in await cluster.until_event("NameConflict", taken)


async def test_a_paused_service_is_reported_and_not_touched(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    await cluster.edit({"paused": True, "pools": {"decode": {"replicas": 3}}})
    await cluster.until_condition(ConditionType.PROGRESSING, "False", "Paused")
    name = cluster.kubelet.worker_pods(Role.DECODE)[0].metadata.name
    await cluster.kube.delete(resources.PODS, name, cluster.namespace)
    await cluster.until_condition(ConditionType.AVAILABLE, "False", "NoDecodeWorker")
    assert len(cluster.kubelet.created) == 2
    await cluster.edit({"paused": False})
    await cluster.until_summary("1P3D")


async def test_a_host_path_where_it_is_forbidden_is_said_as_such(cluster: Cluster, control_plane: ControlPlane) -> None:
    control_plane.kubectl(
        "label", "namespace", cluster.namespace, "pod-security.kubernetes.io/enforce=restricted", "--overwrite"
    )
    await cluster.create(model={"source": "file:///models/tiny"})
    said = await cluster.until_condition(ConditionType.READY, "False", "ModelVolumeForbidden")
    assert "hostPath" in said
    assert cluster.condition(ConditionType.DEGRADED)[:2] == ("True", "ModelVolumeForbidden")
    assert cluster.kubelet.created == []


async def test_workers_and_gateway_run_where_pod_security_is_restricted(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    control_plane.kubectl(
        "label", "namespace", cluster.namespace, "pod-security.kubernetes.io/enforce=restricted", "--overwrite"
    )
    await cluster.create()
    await cluster.until_summary("1P1D")


@pytest.mark.parametrize(
    ("template", "quoted"),
    [
        (
            {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"memory": "four apples"}}}]}},
            "quantities must match",
        ),
        ({"spec": {"nodeSelecter": {"disk": "fast"}}}, 'unknown field "spec.nodeSelecter"'),
    ],
    ids=["a value that is none", "a misspelt field"],
)
async def test_a_template_the_api_server_refuses_is_quoted(
    cluster: Cluster, template: dict[str, Any], quoted: str
) -> None:
    await cluster.create(worker={"gpus": 0, "template": template})
    said = await cluster.until_condition(ConditionType.READY, "False", "PodRefused")
    assert quoted in said
    assert cluster.kubelet.created == []


async def test_a_field_that_the_api_server_dropped_is_named_and_what_was_kept_is_served(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    manifest: dict[str, Any] = {
        "apiVersion": names.API_VERSION,
        "kind": "LLMService",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"source": "hf://test/tiny"},
            "worker": {"gpus": 0},
            "drain": {"timeoutSecond": 5},
            "policyRef": {"name": "nobodys"},
        },
    }
    applied = ("-n", cluster.namespace, "apply", "--validate=ignore", "-f", "-")
    control_plane.kubectl(*applied, stdin=json.dumps(manifest))
    said = await cluster.until_condition(ConditionType.DEGRADED, "True", "UnknownField")
    assert "spec.drain.timeoutSecond: there is no such field; did you mean timeoutSeconds?" in said
    assert "there is no such PlannerPolicy" in await cluster.until_condition(
        ConditionType.READY, "False", "PolicyNotFound"
    )
    del manifest["spec"]["policyRef"]
    control_plane.kubectl(*applied, stdin=json.dumps(manifest))
    await cluster.until_summary("1P1D")
    assert cluster.condition(ConditionType.DEGRADED)[1] == "UnknownField"
    del manifest["spec"]["drain"]
    control_plane.kubectl(*applied, stdin=json.dumps(manifest))
    await cluster.until_condition(ConditionType.DEGRADED, "False", "Healthy")


async def test_a_changed_template_reaches_new_workers_only_and_the_service_says_so(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    before = {pod.metadata.uid for pod in cluster.kubelet.worker_pods()}
    await cluster.edit({"worker": {"template": {"spec": {"priorityClassName": "system-cluster-critical"}}}})
    said = await cluster.until_condition(ConditionType.PROGRESSING, "False", "ChangeNeedsRollout")
    assert "older revision" in said
    # So that kubectl wait, Argo CD and Flux do not report a change that has reached no worker.
    await cluster.until_condition(ConditionType.READY, "False", "ChangeNeedsRollout")
    assert cluster.condition(ConditionType.AVAILABLE)[0] == "True"
    assert {pod.metadata.uid for pod in cluster.kubelet.worker_pods()} == before, "a change restarts nothing"
    for pod in cluster.kubelet.worker_pods():
        await cluster.kube.delete(resources.PODS, pod.metadata.name, cluster.namespace)
    await cluster.until_summary("1P1D")
    assert not before & {pod.metadata.uid for pod in cluster.kubelet.worker_pods()}
