"""The gateway's Deployment and Service at a real API server: placed, scaled by others, refused and not scheduled."""

from typing import Any

import pytest

from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.kube import resources
from pointsman.kube.resources import Resource
from pointsman.local.control_plane import ControlPlane
from waiting import eventually

from .conftest import Cluster
from .quotas import enforce_quota

SCALED = {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat-gateway"}}
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
LIMITS = {"name": "gateway", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
TOLERATION = {"key": "dedicated", "operator": "Equal", "value": "llm", "effect": "NoSchedule"}


async def live(cluster: Cluster, kind: Resource = resources.DEPLOYMENTS) -> dict[str, Any]:
    return await cluster.kube.get(kind, "chat-gateway", cluster.namespace)


async def replicas(cluster: Cluster) -> int:
    found: int = (await live(cluster))["spec"]["replicas"]
    return found


async def test_a_gateway_and_its_service_are_made_as_the_user_places_them(cluster: Cluster) -> None:
    service = {
        "type": "LoadBalancer",
        "annotations": {"example.com/scheme": "internal"},
        "loadBalancerClass": "example.com/internal",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
        "externalTrafficPolicy": "Local",
        "ipFamilyPolicy": "SingleStack",
    }
    template = {"spec": {"tolerations": [TOLERATION], "containers": [LIMITS]}}
    await cluster.create(gateway={"replicas": 1, "service": service, "template": template})
    await cluster.until_summary("1P1D")
    made = await live(cluster, resources.SERVICES)
    assert made["metadata"]["annotations"]["example.com/scheme"] == "internal"
    assert {key: value for key, value in service.items() if key != "annotations"}.items() <= made["spec"].items()
    pod = (await live(cluster))["spec"]["template"]["spec"]
    assert pod["tolerations"] == [TOLERATION]
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}


async def test_a_misspelt_field_of_the_template_is_refused_by_name(cluster: Cluster) -> None:
    await cluster.create(gateway={"replicas": 1, "template": {"spec": {"nodeSelektor": {"a": "b"}}}})
    said = await cluster.until_condition(ConditionType.GATEWAY_READY, "False", "GatewayRefused")
    assert "nodeSelektor" in said
    await cluster.edit({"gateway": {"template": None}})
    await cluster.until_summary("1P1D")


async def test_the_gateways_number_is_left_to_who_scaled_it_until_the_spec_changes(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    control_plane.kubectl("scale", "deployment", "chat-gateway", "--replicas=3", "-n", cluster.namespace)
    await cluster.until(
        cluster.services,
        lambda: cluster.condition(ConditionType.GATEWAY_READY)[2] == "3 of 3 gateways are ready",
        "all three are counted",
    )
    await cluster.edit({"gateway": {"limits": {"maxBodyMiB": 64}}})  # the Deployment is written

    async def written() -> bool:
        container = (await live(cluster))["spec"]["template"]["spec"]["containers"][0]
        return any(item["name"] == "POINTSMAN_MAX_BODY_MIB" for item in container["env"])

    await eventually(written, "the limit is in the Deployment")
    assert await replicas(cluster) == 3
    await cluster.until(
        cluster.services,
        lambda: cluster.condition(ConditionType.GATEWAY_READY)[2] == "3 of 3 gateways are ready",
        "all three are counted",
    )

    await cluster.edit({"gateway": {"replicas": 2}})

    async def as_in_the_spec() -> bool:
        return await replicas(cluster) == 2

    await eventually(as_in_the_spec, "the spec's new number")


async def test_an_autoscaler_owns_the_gateways_number(cluster: Cluster) -> None:
    await cluster.create(gateway={})
    await cluster.until_summary("1P1D")
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}
    autoscaler = {
        "metadata": {"name": "chat"},
        "spec": {**SCALED, "minReplicas": 4, "maxReplicas": 5, "metrics": [cpu]},
    }
    await cluster.kube.create(AUTOSCALERS, autoscaler, cluster.namespace)

    async def scaled() -> bool:
        return await replicas(cluster) == 4

    await eventually(scaled, "the autoscaler scaled it")
    before = (await live(cluster))["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    await cluster.edit({"drain": {"timeoutSeconds": 61}})

    async def written() -> bool:
        pod = (await live(cluster))["spec"]["template"]["spec"]
        return bool(pod["terminationGracePeriodSeconds"] == before + 1)

    await eventually(written, "the Deployment is written")
    await cluster.until_summary("1P1D")
    assert await replicas(cluster) == 4


async def test_a_gateway_that_no_node_takes_says_so_in_the_schedulers_words(cluster: Cluster) -> None:
    cluster.kubelet.most_gateways = 0
    await cluster.create()
    said = await cluster.until_condition(ConditionType.GATEWAY_READY, "False", "Unschedulable")
    assert "0 of 1 gateway is ready" in said
    assert "waits for a node: 0/" in said
    assert cluster.condition(ConditionType.DEGRADED)[0] == "True"
    await cluster.until_condition(ConditionType.DECODE_READY, "True")


@pytest.mark.parametrize("gateway", [{"replicas": 2}, {}], ids=["two-asked-for", "two-by-default"])
async def test_a_second_gateway_that_no_node_takes_is_missed_only_if_somebody_asked_for_it(
    cluster: Cluster, gateway: dict[str, Any]
) -> None:
    cluster.kubelet.most_gateways = 1
    await cluster.create(gateway=gateway)
    status = "False" if gateway else "True"

    def one_serves() -> bool:
        found = cluster.condition(ConditionType.GATEWAY_READY)
        return found[0] == status and "1 of 2 gateways are ready" in found[2] and "waits for a node: 0/" in found[2]

    await cluster.until(cluster.services, one_serves, "one gateway serves, the other waits for a node")
    await cluster.until_condition(ConditionType.DECODE_READY, "True")
    await cluster.until_condition(ConditionType.READY, status)
    await cluster.until_condition(ConditionType.DEGRADED, "True" if gateway else "False")


async def test_a_role_that_a_quota_forbids_is_said_and_keeps_no_worker_from_serving(cluster: Cluster) -> None:
    await enforce_quota(cluster, **{"count/roles.rbac.authorization.k8s.io": "0"})
    await cluster.create()
    said = await cluster.until_condition(ConditionType.READY, "False", "GatewayRefused")

    def workers_serve() -> bool:
        found = cluster.service()
        return found is not None and found.status.summary == "1P1D"

    await cluster.until(cluster.services, workers_serve, "the workers serve")
    assert "Role chat-gateway" in said and "exceeded quota: team" in said


async def test_a_budget_of_workers_that_a_quota_forbids_is_no_fault_of_the_gateway(cluster: Cluster) -> None:
    await enforce_quota(cluster, **{"count/poddisruptionbudgets.policy": "1"})  # the gateway's, which comes first
    await cluster.create()
    said = await cluster.until_condition(ConditionType.DEGRADED, "True", "ObjectRefused")
    assert "PodDisruptionBudget chat-prefill" in said
    await cluster.until_condition(ConditionType.READY, "True")
    assert cluster.condition(ConditionType.GATEWAY_READY)[0] == "True"


async def test_a_gateway_that_a_quota_forbids_says_so_and_a_field_of_the_service_helps(cluster: Cluster) -> None:
    await enforce_quota(cluster, **{"limits.cpu": "8", "limits.memory": "16Gi"})
    worker = {"name": "engine", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    await cluster.create(worker={"gpus": 0, "template": {"spec": {"containers": [worker]}}})
    said = await cluster.until_condition(ConditionType.GATEWAY_READY, "False", "GatewayRefused")
    assert "failed quota: team" in said
    assert "limits.cpu" in said
    await cluster.edit({"gateway": {"template": {"spec": {"containers": [LIMITS]}}}})
    await cluster.until_summary("1P1D")
