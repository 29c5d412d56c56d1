"""The shared NATS login of earlier versions ends by itself, once, when the last pod that may use it is replaced."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from fixtures.operators import ForkedOperator, OperatorProcess
from pointsman.api.protocol.names import Role
from pointsman.kube import resources
from pointsman.kube.client import Object
from pointsman.operator.shared_login import ENDED_ANNOTATION
from waiting import eventually

from .conftest import Cluster

KEY: Final = "the-key-of-the-services-in-the-tests-of-the-end"
SERVER: Final = "pointsman-nats"
SECRET: Final = f"{SERVER}-services"


@pytest.fixture
def operator(operator_kubeconfig: Path, namespace: str) -> Iterator[OperatorProcess]:
    """At first one whose services share a login."""
    looks = {"resync_seconds": "1", "shared_login_seconds": "0.3"}
    process = ForkedOperator(operator_kubeconfig, namespace, nats_server=SERVER, **looks)
    process.start()
    yield process
    process.kill()


async def make_secret(cluster: Cluster, accepted: str, **annotations: str) -> None:
    """What the chart makes."""
    values = {"nats-service-key": KEY, "nats-earlier-versions": accepted}
    body = {"metadata": {"name": SECRET, "annotations": annotations}, "stringData": values}
    await cluster.kube.create(resources.SECRETS, body, cluster.namespace)


async def make_pod(cluster: Cluster) -> Object:
    """What the chart's StatefulSet makes."""
    body = {"metadata": {"name": f"{SERVER}-0"}, "spec": {"containers": [{"name": "nats", "image": "nats:test"}]}}
    return await cluster.kube.create(resources.PODS, body, cluster.namespace)


async def state(cluster: Cluster) -> str:
    found = await cluster.kube.get(resources.SECRETS, SECRET, cluster.namespace)
    return base64.b64decode(found["data"]["nats-earlier-versions"]).decode()


async def server_pod(cluster: Cluster) -> Object | None:
    return await cluster.kube.find(resources.PODS, f"{SERVER}-0", cluster.namespace)


def restart(cluster: Cluster, **settings: Any) -> None:
    cluster.operator.stop()
    cluster.operator.set(**settings)
    cluster.operator.start()


async def test_the_shared_login_ends_once_when_no_pod_uses_it_any_more(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_layout(1, 1)
    await make_pod(cluster)
    await make_secret(cluster, "accepted")
    await cluster.until_said(f"the shared NATS login stays: service {cluster.namespace}/chat may use it")
    restart(cluster, nats_service_key=KEY)
    await cluster.until_said(f"the shared NATS login stays: pod {cluster.namespace}/")
    for role in (Role.DECODE, Role.PREFILL):
        (worker,) = cluster.kubelet.worker_pods(role)
        await cluster.kube.delete(resources.PODS, worker.metadata.name, cluster.namespace)
        await cluster.until(
            cluster.kubelet.pods,
            lambda role=role, uid=worker.metadata.uid: (  # type: ignore[misc]
                [pod.metadata.uid for pod in cluster.kubelet.worker_pods(role, routable=True)] not in ([], [uid])
            ),
            f"the {role} worker is replaced",
        )
    (gateway,) = cluster.kubelet.gateways
    await cluster.until_said(f"{cluster.namespace}/{gateway} may use it")
    assert await state(cluster) == "accepted"
    await cluster.kube.delete(resources.PODS, gateway, cluster.namespace)

    async def has_ended() -> bool:
        return await state(cluster) == "refused" and await server_pod(cluster) is None

    await eventually(has_ended, "the login is refused, and the server's pod is replaced")
    assert "no pod uses the shared NATS login" in await cluster.until_event("SharedLoginEnded")
    await cluster.until_layout(1, 1)

    before = await cluster.kube.get(resources.SECRETS, SECRET, cluster.namespace)
    pod = await make_pod(cluster)
    restart(cluster)
    await cluster.edit({"pools": {"decode": {"replicas": 2}}})
    await cluster.until_layout(1, 2)
    after, still = await cluster.kube.get(resources.SECRETS, SECRET, cluster.namespace), await server_pod(cluster)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert still is not None
    assert still["metadata"]["uid"] == pod["metadata"]["uid"]
    assert len([event for event in cluster.events.objects() if event["reason"] == "SharedLoginEnded"]) == 1


async def test_an_operator_that_died_in_between_leaves_the_rest_to_the_next_one(cluster: Cluster) -> None:
    """The Secret says "refused", and the server's pod was not replaced yet."""
    pod = await make_pod(cluster)
    made = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    await eventually(lambda: datetime.now(UTC) >= made + timedelta(seconds=1), "the next second", timeout_s=5)
    await make_secret(cluster, "refused", **{ENDED_ANNOTATION: datetime.now(UTC).isoformat()})

    async def is_gone() -> bool:
        return await server_pod(cluster) is None

    await eventually(is_gone, "the server's pod is replaced")


async def test_a_login_that_a_person_keeps_open_stays_open(cluster: Cluster) -> None:
    await make_pod(cluster)
    await make_secret(cluster, "kept")
    restart(cluster, nats_service_key=KEY)
    await cluster.create()
    await cluster.until_layout(1, 1)
    assert await state(cluster) == "kept"
    assert await server_pod(cluster) is not None
