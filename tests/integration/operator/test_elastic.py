"""An ElasticGroup and the real operator at a real API server, under the chart's rights."""

import asyncio
import re

import pytest

from integration.operator.elastic_groups import NAME, create, plan, status
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.kube import resources
from pointsman.local.control_plane import ControlPlane
from waiting import eventually

from .conftest import Cluster
from .plan_objects import policy


def applied(cluster: Cluster, what: str) -> int:
    """How often the operator wrote objects of that kind, or the one of that kind and name."""
    return len(re.findall(rf"reason=Applied object={what}(?![-\w])", cluster.operator.log))


@pytest.mark.parametrize("gpus", [0, 1])
async def test_its_objects_are_written_once_and_only_what_changes_is_written_again(cluster: Cluster, gpus: int) -> None:
    await create(cluster, instance={"gpus": gpus})
    await eventually(lambda: applied(cluster, f"PodDisruptionBudget/{NAME}") == 1, "all objects are made")
    await cluster.kube.patch(resources.ELASTIC_GROUPS, NAME, cluster.namespace, {"spec": {"gateway": {"replicas": 2}}})
    await eventually(lambda: applied(cluster, f"Deployment/{NAME}-gateway") == 2, "the gateway is changed")
    # The objects are looked at in order: when the gateway is changed again, the look before has ended.
    await cluster.kube.patch(resources.ELASTIC_GROUPS, NAME, cluster.namespace, {"spec": {"gateway": {"replicas": 3}}})
    await eventually(lambda: applied(cluster, f"Deployment/{NAME}-gateway") == 3, "the gateway is changed")
    assert applied(cluster, "StatefulSet") == 2, "one each"
    assert applied(cluster, "PodDisruptionBudget") == 2, "of the instances and of the gateways"
    assert len(re.findall(rf"reason=Applied object=NetworkPolicy/{NAME}-pointsman-", cluster.operator.log)) == 3, (
        "of manager and instances"
    )


async def test_a_new_default_image_does_not_reach_a_group_that_runs(cluster: Cluster) -> None:
    """Kubernetes replaces an instance from the StatefulSet: with another image it would not fit the others."""
    await create(cluster)
    await eventually(lambda: applied(cluster, f"PodDisruptionBudget/{NAME}") == 1, "all objects are made")

    async def image_is_stored() -> bool:
        return (await status(cluster)).status.worker_image == "worker:test"

    await eventually(image_is_stored, "the status has the image")
    await asyncio.to_thread(cluster.operator.stop)
    cluster.operator.set(worker_image="worker:next", gateway_image="gateway:next")
    cluster.operator.start()
    await eventually(lambda: applied(cluster, f"Deployment/{NAME}-gateway") == 2, "the gateway is upgraded")
    # The objects are looked at in order: when the gateway is changed again, the look before has ended.
    await cluster.kube.patch(resources.ELASTIC_GROUPS, NAME, cluster.namespace, {"spec": {"gateway": {"replicas": 3}}})
    await eventually(lambda: applied(cluster, f"Deployment/{NAME}-gateway") == 3, "the gateway is changed")
    for name in (NAME, f"{NAME}-manager"):
        found = await cluster.kube.get(resources.STATEFUL_SETS, name, cluster.namespace)
        assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "worker:test"
    assert applied(cluster, "StatefulSet") == 2, "one each"


def instances_in_metrics(cluster: Cluster) -> dict[str, float]:
    """Instances by state, as the operator exports them."""
    samples = cluster.operator.samples("pointsman_operator_elastic_instances")
    return {sample.labels["state"]: sample.value for sample in samples if sample.labels["service"] == NAME}


async def test_its_instances_are_metrics_of_the_operator_until_it_is_deleted(cluster: Cluster) -> None:
    await create(cluster)
    await eventually(lambda: applied(cluster, f"PodDisruptionBudget/{NAME}") == 1, "all objects are made")
    await eventually(lambda: instances_in_metrics(cluster).get("existing") == 2, "two instances exist")
    assert instances_in_metrics(cluster)["desired"] == 2
    assert "joined" not in instances_in_metrics(cluster), "the manager does not answer"
    await cluster.kube.delete(resources.ELASTIC_GROUPS, NAME, cluster.namespace)
    await eventually(lambda: not instances_in_metrics(cluster), "the metrics of a deleted group are gone")


async def test_kubectl_describes_it_by_its_kind_as_alerts_do(cluster: Cluster, control_plane: ControlPlane) -> None:
    await create(cluster)
    described = control_plane.kubectl("describe", "ElasticGroup", NAME, "--namespace", cluster.namespace)
    assert "Kind:         ElasticGroup" in described


async def test_it_says_what_it_waits_for_and_follows_kubectl_scale(cluster: Cluster) -> None:
    await create(cluster)

    async def says_so() -> bool:
        found = (await status(cluster)).status
        ready = {item.type: item.reason for item in found.conditions}.get("Ready")
        return ready == "ManagerNotReady" and found.endpoint is not None

    await eventually(says_so, "the manager is not there yet")
    scale = {"spec": {"replicas": 3}}
    await cluster.kube.patch(resources.ELASTIC_GROUPS, NAME, cluster.namespace, scale, subresource="scale")

    async def has_three() -> bool:
        found = await cluster.kube.get(resources.STATEFUL_SETS, NAME, cluster.namespace)
        return bool(found["spec"]["replicas"] == 3)

    await eventually(has_three, "the StatefulSet follows")


async def test_a_service_of_the_same_name_is_told_whose_the_objects_are(cluster: Cluster) -> None:
    await create(cluster)
    await eventually(lambda: applied(cluster, f"PodDisruptionBudget/{NAME}") == 1, "all objects are made")
    await cluster.create(NAME)

    def refused() -> bool:
        found = cluster.service(NAME)
        return found is not None and any(item.reason == "NameConflict" for item in found.status.conditions)

    await cluster.until(cluster.services, refused, "the service says that the name is taken")
    assert "ElasticGroup" in str([item.message for item in cluster.services.objects()[0].status.conditions])


async def phase(cluster: Cluster, name: str) -> PlanPhase | None:
    return Plan.model_validate(await cluster.kube.get(resources.PLANS, name, cluster.namespace)).status.phase


async def test_a_plan_changes_its_instances_once_and_a_policy_that_is_not_there_is_said(cluster: Cluster) -> None:
    await create(cluster, policyRef={"name": "chat"})

    async def degraded() -> str | None:
        found = {item.type: item.reason for item in (await status(cluster)).status.conditions}
        return found.get("Degraded")

    async def lacks_its_policy() -> bool:
        return await degraded() == "PolicyNotFound"

    await eventually(lacks_its_policy, "the group says that its policy is not there")
    await policy(cluster, Mode.ACTIVE)
    assert NAME in await cluster.until_policy("chat", "InUse", "InUse")
    first = await plan(cluster, 1, 3)

    async def has_three() -> bool:
        return (await status(cluster)).spec.instances.replicas == 3

    await eventually(has_three, "the plan is carried out")

    async def executing() -> bool:
        return await phase(cluster, first) is PlanPhase.EXECUTING

    await eventually(executing, "no instance is ready here")

    async def refused(name: str) -> bool:
        return await phase(cluster, name) is PlanPhase.FAILED

    second = await plan(cluster, 2, 9)
    await eventually(lambda: refused(second), "9 instances are more than the group may have")
    assert await phase(cluster, first) is PlanPhase.SUPERSEDED
    scale = {"spec": {"replicas": 2}}
    await cluster.kube.patch(resources.ELASTIC_GROUPS, NAME, cluster.namespace, scale, subresource="scale")
    third = await plan(cluster, 3, 9)
    await eventually(lambda: refused(third), "the operator has looked at the group since")
    assert (await status(cluster)).spec.instances.replicas == 2, "what a person wrote after the plan stays"
