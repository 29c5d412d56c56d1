"""Credentials of services: whose they are, and that they can be replaced while workers serve."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from fixtures.operators import ForkedOperator, OperatorProcess
from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.operator.core.nats_logins import service_login

from .conftest import Cluster

KEY: Final = "the-key-of-the-services-in-the-tests-of-rotation"
NEW: Final = "a-new-control-token-of-the-tests"


@pytest.fixture
def operator(operator_kubeconfig: Path, namespace: str) -> Iterator[OperatorProcess]:
    """One that looks at each service every second, and gives each a NATS login of its own."""
    process = ForkedOperator(operator_kubeconfig, namespace, resync_seconds="1", nats_service_key=KEY)
    process.start()
    yield process
    process.kill()


async def secret(kube: Kube, namespace: str, service: str = "chat") -> dict[str, str]:
    """What a service's Secret says; nothing while there is none."""
    found = await kube.find(resources.SECRETS, service + names.SECRET_SUFFIX, namespace) or {}
    return {key: base64.b64decode(value).decode() for key, value in (found.get("data") or {}).items()}


async def write_token(cluster: Cluster, token: str) -> None:
    """``kubectl patch secret``."""
    body: dict[str, Any] = {"stringData": {names.SECRET_CONTROL_TOKEN: token}}
    await cluster.kube.patch(resources.SECRETS, "chat" + names.SECRET_SUFFIX, cluster.namespace, body)


async def scale(cluster: Cluster, *, decode: int) -> None:
    await cluster.edit({"pools": {"decode": {"replicas": decode}}})


async def test_each_service_has_a_nats_login_of_its_own_and_none_has_the_shared_one(cluster: Cluster) -> None:
    services = [await cluster.create(), await cluster.create("other")]
    for made in services:
        await cluster.until_summary("1P1D", made.metadata.name)
        login = service_login(KEY, cluster.namespace, made.metadata.uid, 1024)
        found = await secret(cluster.kube, cluster.namespace, made.metadata.name)
        assert (found[names.SECRET_NATS_USER], found[names.SECRET_NATS_PASSWORD]) == (login.user, login.password)


async def test_a_control_token_that_was_replaced_loses_no_worker(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    old = (await secret(cluster.kube, cluster.namespace))[names.SECRET_CONTROL_TOKEN]
    await write_token(cluster, NEW)
    await cluster.until_said("old control token kept in addition to the new one")
    assert (await secret(cluster.kube, cluster.namespace))[names.SECRET_CONTROL_TOKEN] == f"{NEW},{old}"
    await scale(cluster, decode=3)  # pods of an earlier version: to them the value is one token
    await cluster.until_summary("1P3D")
    await scale(cluster, decode=1)
    await cluster.until_layout(1, 1)
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"
    await write_token(cluster, NEW)
    await scale(cluster, decode=2)
    # Not Ready: the two workers of before the rotation know the old token alone, and a poll of them is refused.
    await cluster.until(
        cluster.kubelet.pods, lambda: len(cluster.kubelet.worker_pods(Role.DECODE, routable=True)) == 2, "2 serve"
    )
    assert (await secret(cluster.kube, cluster.namespace))[names.SECRET_CONTROL_TOKEN] == NEW, "the rotation is over"


async def test_a_worker_that_lost_its_token_is_named_and_comes_back_with_it(cluster: Cluster) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")
    old = (await secret(cluster.kube, cluster.namespace))[names.SECRET_CONTROL_TOKEN]
    cluster.operator.stop()
    await cluster.kube.delete(resources.SECRETS, "chat" + names.SECRET_SUFFIX, cluster.namespace)
    cluster.operator.start()
    await scale(cluster, decode=1)

    def names_a_decode_worker() -> bool:
        said = cluster.condition(ConditionType.DEGRADED)
        refused = "refuse the control token of Secret chat-pointsman" in said[2]
        named = any(pod.metadata.name in said[2] for pod in cluster.kubelet.worker_pods(Role.DECODE))
        return said[:2] == ("True", "ControlTokenRefused") and refused and named

    await cluster.until(cluster.services, names_a_decode_worker, "a decode worker is named")
    made = (await secret(cluster.kube, cluster.namespace))[names.SECRET_CONTROL_TOKEN]
    assert made != old
    await write_token(cluster, f"{made},{old}")
    await cluster.until_layout(1, 1)
    await cluster.until_condition(ConditionType.DEGRADED, "False")
