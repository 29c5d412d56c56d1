"""The chart's end: after its services nothing is left; before them, they stay, can be deleted, and it can come back."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointsman.api.protocol.names import FINALIZER
from pointsman.local.cluster import RELEASE, SYSTEM_NAMESPACE, LocalCluster
from waiting import until

INSTALL_PAGE = Path(__file__).parents[3] / "docs" / "install.md"
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
        yield running


def finalizers(cluster: LocalCluster) -> list[str]:
    found = json.loads(cluster.kubectl("get", "llms", "chat", "-o", "json"))
    names: list[str] = found["metadata"].get("finalizers", [])
    return names


def gateway(cluster: LocalCluster) -> str:
    """Uid and readiness of the gateway's only pod."""
    path = "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[0].ready}"
    return cluster.kubectl("get", "pods", "-l", "app.kubernetes.io/component=gateway", "-o", path)


def everything(cluster: LocalCluster) -> set[str]:
    """Kind, namespace and name of every object there is, but Events, which time out."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    wanted = ",".join(kind for kind in kinds if not kind.startswith("events"))
    columns = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"
    return set(cluster.kubectl("get", wanted, "--all-namespaces", "-o", columns, "--no-headers").splitlines())


def documented_commands() -> list[list[str]]:
    """The words of each command that docs/install.md says takes all of Pointsman away."""
    block = INSTALL_PAGE.read_text().split("## Uninstall\n\n", 1)[1].split("\n\n", 1)[0]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def test_the_documented_commands_take_everything_away_that_was_installed_and_served(cluster: LocalCluster) -> None:
    before = everything(cluster)
    cluster.install()
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(SERVICE))
    until(lambda: gateway(cluster).endswith(" true"), "the gateway is ready")

    for program, *arguments in documented_commands():
        if program == "helm":
            cluster.helm(*arguments)
        else:
            assert program == "kubectl"
            cluster.kubectl(*arguments)

    def left() -> set[str]:
        return everything(cluster) - before

    until(lambda: not left() or None, f"nothing is left; at first there was {left()}")


def test_a_chart_that_goes_first_leaves_services_that_can_be_deleted(cluster: LocalCluster) -> None:
    cluster.install()
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
