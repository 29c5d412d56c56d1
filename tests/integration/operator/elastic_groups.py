"""An elastic group in a cluster, and plans for it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.kube import resources

from .conftest import Cluster

NAME = "long-chat"


async def create(cluster: Cluster, **spec: Any) -> None:
    """A group of two instances and one gateway."""
    body = {
        "metadata": {"name": NAME},
        "spec": {
            "model": {"source": "hf://test/tiny"},
            "instances": {"replicas": 2, "maxReplicas": 4},
            "gateway": {"replicas": 1},
            **spec,
        },
    }
    await cluster.kube.create(resources.ELASTIC_GROUPS, body, cluster.namespace, field_validation="Strict")


async def status(cluster: Cluster) -> ElasticGroup:
    return ElasticGroup.model_validate(await cluster.kube.get(resources.ELASTIC_GROUPS, NAME, cluster.namespace))


async def plan(cluster: Cluster, sequence: int, instances: int) -> str:
    """What the planner writes for the group."""
    now, found = datetime.now(UTC), await status(cluster)
    owner = {"apiVersion": found.api_version, "kind": found.kind, "name": NAME, "uid": found.metadata.uid}
    body = {
        "metadata": {"name": f"{NAME}-{sequence:05}", "ownerReferences": [owner]},
        "spec": {
            "serviceRef": {"kind": "ElasticGroup", "name": NAME},
            "sequence": sequence,
            "mode": Mode.ACTIVE,
            "observedAt": now.isoformat(),
            "instances": {"replicas": instances},
            "changesLayout": True,
            "reason": "InstancesShort",
            "message": "more requests",
            "expiresAt": (now + timedelta(seconds=60)).isoformat(),
        },
    }
    await cluster.kube.create(resources.PLANS, body, cluster.namespace, field_validation="Strict")
    return str(body["metadata"]["name"])  # type: ignore[index]
