"""What cannot be served says so in a condition: which field or object, and why."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from fixtures.kube_calls import DRY_RUN, patch_with
from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.api.v1alpha1.counts import PoolCounts
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.kube import resources
from pointsman.kube.client import Kube, Object
from pointsman.kube.errors import Forbidden
from pointsman.kube.resources import Resource
from pointsman.local.control_plane import ControlPlane
from waiting import eventually

from .conftest import USER, Cluster
from .plan_objects import layout, plan
from .quotas import QUOTAS, enforce_quota

LIMIT_RANGES: Final = Resource("", "v1", "limitranges", "LimitRange")

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
    assert "set maxGpus >= 3" in said
    assert "set maxGpus >= 3" in await cluster.until_condition(ConditionType.DEGRADED, "True", "BudgetBelowMinimum")
    await cluster.kube.patch(
        resources.PLANNER_POLICIES, "thrifty", cluster.namespace, {"spec": {"budget": {"maxGpus": 3}}}
    )
    await cluster.until_policy("thrifty", "Accepted", "Accepted")
    assert await cluster.until_policy("thrifty", "InUse", "InUse") == "used by chat"
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


async def add_tainted_node(cluster: Cluster, name: str) -> None:
    """A node that only pods go to which select ``host`` and tolerate the taint ``only`` of this value."""
    room = {"cpu": "64", "memory": "512Gi", "pods": "20"}
    conditions = [{"type": "Ready", "status": "True", "reason": "StandIn"}]
    await cluster.kube.create(
        resources.NODES,
        {
            "metadata": {"name": name, "labels": {"host": name}},
            "spec": {"taints": [{"key": "only", "value": name, "effect": "NoSchedule"}]},
            "status": {"capacity": room, "allocatable": room, "conditions": conditions},
        },
    )


async def test_services_run_on_tainted_nodes_where_pod_security_is_restricted_and_a_quota_asks_for_limits(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    """Admitted by the API server, placed by the scheduler."""
    labels = ("pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    control_plane.kubectl("label", "namespace", cluster.namespace, *labels)
    cpu, memory = ("requests.cpu", "limits.cpu"), ("requests.memory", "limits.memory")
    await enforce_quota(cluster, **dict.fromkeys(cpu, "100"), **dict.fromkeys(memory, "200Gi"))
    node = f"tainted-{cluster.namespace}"
    cluster.kubelet.places_workers, cluster.kubelet.most_gateways = False, 0
    await add_tainted_node(cluster, node)
    placed = {
        "nodeSelector": {"host": node},
        "tolerations": [{"key": "only", "operator": "Equal", "value": node, "effect": "NoSchedule"}],
    }

    def template(*containers: dict[str, Any]) -> dict[str, Any]:
        return {"spec": {**placed, "containers": list(containers)}} if containers else {"spec": placed}

    limits = {"resources": {"limits": {"cpu": "4", "memory": "8Gi"}}}
    try:
        await cluster.create(
            worker={"gpus": 0, "template": template({"name": "engine", **limits})},
            gateway={"replicas": 1, "template": template({"name": "gateway", **limits})},
        )
        await cluster.until_summary("1P1D")
        # limits that the namespace gives to whoever has none
        await cluster.kube.create(
            LIMIT_RANGES,
            {
                "metadata": {"name": "defaults"},
                "spec": {"limits": [{"type": "Container", "default": {"cpu": "8", "memory": "16Gi"}}]},
            },
            cluster.namespace,
        )
        await cluster.create(
            "plain", worker={"gpus": 0, "template": template()}, gateway={"replicas": 1, "template": template()}
        )
        await cluster.until_summary("1P1D", "plain")
        pods = cluster.kubelet.pods.objects()
        assert {pod.spec.node_name for pod in pods} == {node}
        assert len(pods) == 6
    finally:
        control_plane.kubectl("delete", "node", node, "--wait=false")


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
    assert "this namespace has no such PlannerPolicy" in await cluster.until_condition(
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


async def test_a_secret_that_is_refused_is_said_and_made_once_it_may_be(cluster: Cluster) -> None:
    await enforce_quota(cluster, **{"count/secrets": "0"})
    await cluster.create()
    said = await cluster.until_condition(ConditionType.DEGRADED, "True", "ObjectRefused")
    assert "Secret chat-pointsman: " in said
    assert "quota" in said
    assert cluster.condition(ConditionType.READY)[:2] == ("False", "ObjectRefused")
    assert cluster.kubelet.created == [], "a worker without its token would be nobody's"
    await cluster.kube.delete(QUOTAS, "team", cluster.namespace)
    await cluster.edit({"drain": {"timeoutSeconds": 61}})
    await cluster.until_summary("1P1D")
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"


async def test_a_pool_that_is_refused_has_no_number_until_it_is_made_with_that_of_the_latest_spec(
    cluster: Cluster,
) -> None:
    await enforce_quota(cluster, **{"count/workerpools.pointsman.dev": "0"})
    await cluster.create()
    said = await cluster.until_condition(ConditionType.DECODE_READY, "False", "ObjectRefused")
    assert "the WorkerPool does not exist" in said and "quota" in said

    async def counts() -> tuple[Object, int]:
        found = await cluster.kube.get(resources.LLM_SERVICES, "chat", cluster.namespace)
        return found["status"]["pools"]["decode"], found["status"]["observedGeneration"]

    edited = {"decode": {"replicas": 2, "maxReplicas": 4}}
    patched = await cluster.kube.patch(resources.LLM_SERVICES, "chat", cluster.namespace, {"spec": {"pools": edited}})

    async def is_observed() -> bool:
        return bool((await counts())[1] == patched["metadata"]["generation"])

    await eventually(is_observed, "the operator has seen the edit")
    assert (await counts())[0] == dict.fromkeys(PoolCounts().manifest(), 0), "no number is desired, not 0"
    await cluster.kube.delete(QUOTAS, "team", cluster.namespace)
    await cluster.edit({"drain": {"timeoutSeconds": 61}})
    await cluster.until_summary("1P2D")
    assert (await counts())[0]["desired"] == 2


async def test_a_role_switch_that_is_refused_keeps_nothing_else_from_being_done(cluster: Cluster) -> None:
    await layout(cluster, 1, 3, Mode.ACTIVE)
    await enforce_quota(cluster, **{"count/roleswitches.pointsman.dev": "0"})
    name = await plan(cluster, 1, 2, 2, switches=1)
    said = await cluster.until_condition(ConditionType.DEGRADED, "True", "ObjectRefused")
    assert "CreateSwitch" in said
    assert cluster.condition(ConditionType.READY)[0] == "True", "all workers serve"
    lost = cluster.kubelet.worker_pods(Role.DECODE)[0].metadata.name
    await cluster.kube.delete(resources.PODS, lost, cluster.namespace)
    await cluster.until(cluster.kubelet.pods, lambda: lost in cluster.kubelet.ended, "the pod is gone")
    await cluster.until_layout(1, 3)
    await cluster.kube.delete(QUOTAS, "team", cluster.namespace)
    await cluster.until_plan(PlanPhase.COMPLETED, name)
    await cluster.until_layout(2, 2)
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"


@pytest.fixture
def deny(control_plane: ControlPlane, namespace: str) -> Iterator[Callable[[str, str], None]]:
    """``deny(resource, expression)``: an admission policy of somebody's that the operator's updates must satisfy."""
    group, name = "admissionregistration.k8s.io", f"somebodys-{namespace}"
    kinds = "validatingadmissionpolicies", "validatingadmissionpolicybindings"

    def make(resource: str, expression: str) -> None:
        rule = {"apiGroups": [names.GROUP], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [resource]}
        mine = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
        control_plane.apply(
            {
                "apiVersion": f"{group}/v1",
                "kind": "ValidatingAdmissionPolicy",
                "metadata": {"name": name},
                "spec": {
                    "matchConstraints": {"resourceRules": [rule], "namespaceSelector": mine},
                    "matchConditions": [
                        {"name": "the-operator", "expression": f"request.userInfo.username == '{USER}'"}
                    ],
                    "validations": [
                        {"expression": expression, "message": "somebody forbids it", "reason": "Forbidden"}
                    ],
                },
            },
            {
                "apiVersion": f"{group}/v1",
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": name},
                "spec": {"policyName": name, "validationActions": ["Deny"]},
            },
        )

    yield make
    for kind in kinds:
        control_plane.kubectl("delete", f"{kind}.{group}", name, "--ignore-not-found")


async def is_denied(kubeconfig: Path, resource: Resource, name: str, namespace: str, patch: dict[str, Any]) -> bool:
    """Whether the operator may not write this; nothing is written."""
    async with await Kube.connect(kubeconfig, field_manager="test") as operators:
        try:
            await patch_with(operators, DRY_RUN, resource, name, namespace, patch)
        except Forbidden as error:
            return "somebody forbids it" in str(error)
    return False


async def test_a_finalizer_that_is_refused_is_said(
    cluster: Cluster, operator_kubeconfig: Path, deny: Callable[[str, str], None]
) -> None:
    await cluster.create(paused=True)
    deny("llmservices", "object.metadata.?finalizers == oldObject.metadata.?finalizers")
    patch = {"metadata": {"finalizers": [names.FINALIZER]}}
    await eventually(
        lambda: is_denied(operator_kubeconfig, resources.LLM_SERVICES, "chat", cluster.namespace, patch),
        "the policy is in force",
    )
    await cluster.edit({"paused": False})
    said = await cluster.until_condition(ConditionType.READY, "False", "ObjectRefused")
    assert "AddFinalizer" in said
    assert "somebody forbids it" in said
    assert cluster.kubelet.created == []


async def test_a_switch_whose_owner_may_not_be_written_is_carried_out(
    cluster: Cluster, operator_kubeconfig: Path, deny: Callable[[str, str], None]
) -> None:
    """As it was on OpenShift, where the operator lacked the right: the service was not looked at any more."""
    pools = {"prefill": {"replicas": 1, "maxReplicas": 4}, "decode": {"replicas": 2, "maxReplicas": 4}}
    await cluster.create(pools=pools)
    await cluster.until_layout(1, 2)
    deny("roleswitches", "object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences")
    await cluster.switch(Role.DECODE, "of-nobody", serviceRef={"name": "nobody"})
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "any", "uid": "any"}
    patch = {"metadata": {"ownerReferences": [owner]}}
    await eventually(
        lambda: is_denied(operator_kubeconfig, resources.ROLE_SWITCHES, "of-nobody", cluster.namespace, patch),
        "the policy is in force",
    )
    await cluster.switch(Role.DECODE)
    await cluster.until_switch(SwitchPhase.COMPLETED)
    await cluster.until_layout(2, 1)


async def test_two_workers_on_the_network_of_one_node_are_said_to_lack_ports(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    """As for RDMA: each worker needs the node's ports for itself."""
    node = f"host-{cluster.namespace}"
    await add_tainted_node(cluster, node)
    cluster.kubelet.places_workers = False
    template = {"spec": {"hostNetwork": True, "nodeSelector": {"host": node}, "tolerations": [{"operator": "Exists"}]}}
    try:
        await cluster.create(worker={"gpus": 0, "template": template})
        # the scheduler can also have met the gateway's pods, before the stand-in for the kubelet placed them
        await cluster.until_condition(ConditionType.DEGRADED, "True", "Unschedulable", saying="didn't have free ports")
    finally:
        control_plane.kubectl("delete", "node", node, "--wait=false")
