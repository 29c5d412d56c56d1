"""A namespace deleted with a service in it: nothing can be created there any more, and everything goes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.operators import ForkedOperator, OperatorProcess
from pointsman.api.protocol.names import Role
from pointsman.kube import resources
from pointsman.local.control_plane import ControlPlane
from waiting import eventually, until

from .conftest import Cluster


@pytest.fixture
def operator(control_plane: ControlPlane, operator_kubeconfig: Path, namespace: str) -> Iterator[OperatorProcess]:
    """One operator, started, in a namespace of its own as on any cluster: its Lease does not go with the service."""
    home = f"{namespace}-system"
    control_plane.kubectl("create", "namespace", home)
    process = ForkedOperator(operator_kubeconfig, home, watch_namespace=namespace)
    process.start()
    yield process
    process.kill()
    control_plane.kubectl("delete", "namespace", home, "--wait=false")


async def test_a_namespace_goes_with_its_service_its_switches_and_its_plans(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")
    switch = {"serviceRef": {"name": "chat"}, "from": Role.DECODE, "to": Role.PREFILL}
    body = {"metadata": {"name": "on-the-way"}, "spec": switch}
    await cluster.kube.create(resources.ROLE_SWITCHES, body, cluster.namespace)

    control_plane.kubectl("delete", "namespace", cluster.namespace, "--wait=false")

    find = ("get", "namespace", cluster.namespace, "--ignore-not-found", "-o", "name")
    await asyncio.to_thread(until, lambda: not control_plane.kubectl(*find), "the namespace is gone", 120)
    await eventually(lambda: cluster.kubelet.worker_pods() == [], "the last pod's end is seen")
