"""An ElasticGroup and the real operator at a real API server, under the chart's rights."""

from typing import Any

import pytest

from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.kube import resources
from waiting import eventually

from .conftest import Cluster

NAME = "long-chat"


async def create(cluster: Cluster, **spec: Any) -> None:
    """A group of two instances."""
    body = {
        "metadata": {"name": NAME},
        "spec": {"model": {"source": "hf://test/tiny"}, "instances": {"replicas": 2, "maxReplicas": 4}, **spec},
    }
    await cluster.kube.create(resources.ELASTIC_GROUPS, body, cluster.namespace, field_validation="Strict")


async def status(cluster: Cluster) -> ElasticGroup:
    return ElasticGroup.model_validate(await cluster.kube.get(resources.ELASTIC_GROUPS, NAME, cluster.namespace))


def applied(cluster: Cluster, what: str) -> int:
    """How often the operator wrote it."""
    return cluster.operator.log.count(f"reason=Applied {what}")


@pytest.mark.parametrize("gpus", [0, 1])
async def test_its_objects_are_written_once_and_only_what_changes_is_written_again(cluster: Cluster, gpus: int) -> None:
    await create(cluster, instance={"gpus": gpus})
    await eventually(lambda: applied(cluster, f"PodDisruptionBudget {NAME}") == 1, "all objects are made")
    await cluster.kube.patch(resources.ELASTIC_GROUPS, NAME, cluster.namespace, {"spec": {"gateway": {"replicas": 2}}})
    await eventually(lambda: applied(cluster, f"Deployment {NAME}-gateway") == 2, "the gateway is changed")
    # The objects are looked at in order: when the gateway is changed again, the look before has ended.
    await cluster.kube.patch(resources.ELASTIC_GROUPS, NAME, cluster.namespace, {"spec": {"gateway": {"replicas": 3}}})
    await eventually(lambda: applied(cluster, f"Deployment {NAME}-gateway") == 3, "the gateway is changed")
    assert applied(cluster, "StatefulSet ") == 2, "one each"
    assert applied(cluster, "PodDisruptionBudget ") == 1


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
    await eventually(lambda: applied(cluster, f"PodDisruptionBudget {NAME}") == 1, "all objects are made")
    await cluster.create(NAME)

    def refused() -> bool:
        found = cluster.service(NAME)
        return found is not None and any(item.reason == "NameConflict" for item in found.status.conditions)

    await cluster.until(cluster.services, refused, "the service says that the name is taken")
    assert "ElasticGroup" in str([item.message for item in cluster.services.objects()[0].status.conditions])
