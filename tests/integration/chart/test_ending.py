"""The chart uninstalled first: its hook runs as a pod, services stay and can be deleted, the chart can come back."""

import json
from collections.abc import Iterator

import pytest

from pointsman.api.protocol.names import FINALIZER
from pointsman.local.cluster import RELEASE, SYSTEM_NAMESPACE, LocalCluster
from waiting import until

SERVICE = {
    "apiVersion": "pointsman.dev/v1alpha1",
    "kind": "LLMService",
    "metadata": {"name": "chat"},
    "spec": {"model": {"source": "file:///models/none"}, "worker": {"gpus": 0}},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster without engine: workers do not start, gateways do."""
    with LocalCluster(engine=False) as running:
        running.install()
        yield running


def finalizers(cluster: LocalCluster) -> list[str]:
    found = json.loads(cluster.kubectl("get", "llms", "chat", "-o", "json"))
    names: list[str] = found["metadata"].get("finalizers", [])
    return names


def gateway(cluster: LocalCluster) -> str:
    """Uid and readiness of the gateway's only pod."""
    path = "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[0].ready}"
    return cluster.kubectl("get", "pods", "-l", "app.kubernetes.io/component=gateway", "-o", path)


def test_a_chart_that_goes_first_leaves_services_that_can_be_deleted(cluster: LocalCluster) -> None:
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(SERVICE))
    until(lambda: FINALIZER in finalizers(cluster), "the operator guards the service")
    until(lambda: gateway(cluster).endswith(" true"), "the gateway is ready")
    before = gateway(cluster)

    cluster.helm("uninstall", RELEASE)

    assert finalizers(cluster) == []
    assert gateway(cluster) == before  # the data path is untouched
    assert "operator" not in cluster.kubectl("get", "deployments", "-n", SYSTEM_NAMESPACE, "-o", "name")

    cluster.install()
    until(lambda: FINALIZER in finalizers(cluster), "the chart came back and guards the service again")
    assert gateway(cluster) == before

    cluster.helm("uninstall", RELEASE)
    cluster.kubectl("delete", "llms", "chat", "--timeout=60s")  # without an operator
    until(lambda: gateway(cluster) == " ", "garbage collection took the gateway")
