"""The chart's end: before its services they stay, can be deleted, and it can come back; after them nothing is left."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pointsman.api.protocol.names import FINALIZER
from pointsman.local.cluster import RELEASE, SYSTEM_NAMESPACE, LocalCluster
from pointsman.local.errors import ControlPlaneFailed
from waiting import until

INSTALL_PAGE = Path(__file__).parents[3] / "docs" / "use" / "install.md"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster without engine: workers do not start, gateways do. ``before`` installs the chart."""
    with LocalCluster(engine=False) as running:
        yield running


@pytest.fixture(scope="module")
def before(cluster: LocalCluster) -> set[str]:
    """All that is there without Pointsman, which is installed then."""
    found = everything(cluster)
    cluster.install()
    return found


def everything(cluster: LocalCluster) -> set[str]:
    """Kind, namespace and name of every object there is, but Events, which time out."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    wanted = ",".join(kind for kind in kinds if not kind.startswith("events"))
    columns = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"
    return set(cluster.kubectl("get", wanted, "--all-namespaces", "-o", columns, "--no-headers").splitlines())


def serve(cluster: LocalCluster, name: str) -> str:
    """Apply a service and wait until the operator guards it and its gateway is ready; the gateway."""
    manifest: dict[str, Any] = {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name},
        "spec": {"model": {"source": "file:///models/none"}, "worker": {"gpus": 0}, "gateway": {"replicas": 1}},
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    until(lambda: FINALIZER in finalizers(cluster, name), "the operator guards the service")
    until(lambda: gateway(cluster, name).endswith(" true"), "the gateway is ready")
    return gateway(cluster, name)


def serve_group(cluster: LocalCluster, name: str) -> str:
    """The same of an elastic group, which needs no guard; its last object is made."""
    manifest: dict[str, Any] = {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "ElasticGroup",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "file:///models/none"},
            "instance": {"gpus": 0},
            "instances": {"replicas": 2},
            "gateway": {"replicas": 1},
        },
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    until(lambda: cluster.kubectl("get", "pdb", name, "--ignore-not-found"), "all objects of the group are made")
    until(lambda: gateway(cluster, name).endswith(" true"), "the gateway is ready")
    return gateway(cluster, name)


def finalizers(cluster: LocalCluster, name: str) -> list[str]:
    found = json.loads(cluster.kubectl("get", "llms", name, "-o", "json"))
    names: list[str] = found["metadata"].get("finalizers", [])
    return names


def gateway(cluster: LocalCluster, name: str) -> str:
    """Uid and readiness of a service's only gateway pod."""
    path = "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[0].ready}"
    selector = f"app.kubernetes.io/component=gateway,pointsman.dev/service={name}"
    return cluster.kubectl("get", "pods", "-l", selector, "-o", path)


def documented_commands() -> list[list[str]]:
    """The words of each command that docs/use/install.md says takes all of Pointsman away."""
    block = INSTALL_PAGE.read_text().split("## Uninstall\n\n", 1)[1].split("\n\n", 1)[0]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


@pytest.mark.usefixtures("before")
def test_a_chart_that_goes_first_leaves_services_that_can_be_deleted_and_are_guarded_when_it_is_back(
    cluster: LocalCluster,
) -> None:
    served, group = serve(cluster, "chat"), serve_group(cluster, "long-chat")
    serve(cluster, "draft")
    serve_group(cluster, "long-draft")

    cluster.helm("uninstall", RELEASE)

    assert finalizers(cluster, "chat") == []
    assert gateway(cluster, "chat") == served  # the data path is untouched
    assert gateway(cluster, "long-chat") == group
    assert "operator" not in cluster.kubectl("get", "deployments", "-n", SYSTEM_NAMESPACE, "-o", "name")

    cluster.kubectl("delete", "llms", "draft", "--timeout=60s")  # without an operator
    cluster.kubectl("delete", "eg", "long-draft", "--timeout=60s")
    for name in ("draft", "long-draft"):
        until(lambda name=name: gateway(cluster, name) == " ", "garbage collection took the gateway")  # type: ignore[misc]
    cluster.kubectl("delete", "pdb", "long-chat")

    cluster.install()
    until(lambda: FINALIZER in finalizers(cluster, "chat"), "the chart came back and guards the service again")
    until(lambda: cluster.kubectl("get", "pdb", "long-chat", "--ignore-not-found"), "it manages the group again")
    assert gateway(cluster, "chat") == served
    assert gateway(cluster, "long-chat") == group


def test_the_documented_commands_take_everything_away_that_was_installed_and_served(
    cluster: LocalCluster, before: set[str]
) -> None:
    serve(cluster, "chat")
    serve_group(cluster, "long-chat")

    for program, *arguments in documented_commands():
        if program == "helm":
            cluster.helm(*arguments)
        else:
            assert program == "kubectl"
            cluster.kubectl(*arguments)

    left: set[str] = set()

    def nothing_left() -> bool:
        left.clear()
        try:
            left.update(everything(cluster) - before)
        except ControlPlaneFailed as error:  # a kind that was listed a moment ago, whose CRD is gone by now
            left.add(str(error))
        return not left

    try:
        until(nothing_left, "nothing is left")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{sorted(left)}") from None
