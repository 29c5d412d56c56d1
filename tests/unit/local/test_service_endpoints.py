"""Where a Service sends connections: kube-proxy's rules for ready, serving and terminating endpoints."""

from typing import Any

import pytest

from pointsman.local.node.core.service_endpoints import Address, service_endpoints

HERE = Address("127.9.9.7", 8000)


def service(**spec: Any) -> dict[str, Any]:
    port = {"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}
    return {
        "metadata": {"name": "chat-gateway", "namespace": "default"},
        "spec": {"clusterIP": HERE.host, "selector": {"app": "gateway"}, "ports": [port], **spec},
    }


def pod(
    address: str,
    *,
    ready: bool = True,
    terminating: bool = False,
    namespace: str = "default",
    app: str = "gateway",
    phase: str = "Running",
    port_name: str = "http",
) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": address, "namespace": namespace, "labels": {"app": app, "team": "a"}}
    if terminating:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    containers = [{"name": "c", "ports": [{"name": port_name, "containerPort": 9000}]}]
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": meta,
        "spec": {"containers": containers},
        "status": {"phase": phase, "podIP": address, "conditions": conditions},
    }


def chosen(*pods: dict[str, Any], **spec: Any) -> set[str]:
    """Pods that get connections."""
    return {address.host for address in service_endpoints(service(**spec), pods)[HERE]}


def test_connections_go_to_ready_pods() -> None:
    assert chosen(pod("a"), pod("b"), pod("c", ready=False)) == {"a", "b"}
    assert service_endpoints(service(), [pod("a")]) == {HERE: frozenset({Address("a", 9000)})}


def test_a_pod_that_ends_gets_none_beside_a_ready_one() -> None:
    assert chosen(pod("ends", terminating=True), pod("ready")) == {"ready"}


def test_the_last_pod_gets_them_while_it_ends_as_long_as_its_probe_is_good() -> None:
    starting = pod("starting", ready=False)
    assert chosen(pod("ends", terminating=True), starting) == {"ends"}
    assert chosen(pod("ends", terminating=True, ready=False), starting) == set()


@pytest.mark.parametrize(
    "other",
    [
        pod("other", namespace="team"),
        pod("other", app="worker"),
        pod("other", phase="Failed"),
        pod("", phase="Pending"),
        pod("other", port_name="grpc"),
    ],
)
def test_other_pods_get_none(other: dict[str, Any]) -> None:
    assert chosen(other) == set()


def test_a_service_may_want_pods_that_are_not_ready() -> None:
    assert chosen(pod("a", ready=False), publishNotReadyAddresses=True) == {"a"}


def test_a_target_port_may_be_a_number() -> None:
    ports = [{"port": 8000, "targetPort": 7000, "protocol": "TCP"}]
    assert service_endpoints(service(ports=ports), [pod("a")])[HERE] == {Address("a", 7000)}


@pytest.mark.parametrize("spec", [{"clusterIP": "None"}, {"selector": {}}, {"clusterIP": ""}])
def test_a_service_without_address_or_selector_is_not_served(spec: dict[str, Any]) -> None:
    assert service_endpoints(service(**spec), [pod("a")]) == {}
