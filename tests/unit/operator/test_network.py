"""NetworkPolicies of services, and the evaluator that tests ask who reaches whom."""

from typing import Any

import pytest

from fixtures.network_policies import Pod, reaches
from pointsman.api.protocol import names
from pointsman.operator.core.install import Network
from pointsman.operator.core.network import network_policies, policy_names
from pointsman.operator.settings import OperatorSettings
from unit.operator.world import service

CONTROLLERS: dict[str, Any] = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "operator"}}}
WEB = Pod("web", "default", ip="10.1.2.3")
DB = Pod("db", "default", {"app": "db"}, ports={"sql": 5432})


def policy(ingress: Any, selector: dict[str, Any] | None = None, namespace: str = "default") -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"podSelector": selector or {}, "policyTypes": ["Ingress"], "ingress": ingress},
    }


@pytest.mark.parametrize(
    ("policies", "reached"),
    [
        ([], True),
        ([policy([], namespace="other")], True),
        ([policy([], {"matchLabels": {"app": "web"}})], True),
        ([policy([])], False),
        ([policy([{}])], True),
        ([policy([]), policy([{"from": []}])], True),
        ([policy([{"from": [{"podSelector": {}}]}])], True),
        ([policy([{"from": [{"podSelector": {"matchLabels": {"app": "x"}}}]}])], False),
        ([policy([{"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]}])], True),
        ([policy([{"from": [{"namespaceSelector": {"matchLabels": {"team": "b"}}}]}])], False),
        ([policy([{"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "x"}}}]}])], False),
        ([policy([{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}])], True),
        ([policy([{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}])], False),
        ([policy([{"ports": [{"port": 5432}]}])], True),
        ([policy([{"ports": [{"port": "sql"}]}])], True),
        ([policy([{"ports": [{"port": "http"}]}])], False),
        ([policy([{"ports": [{"port": 5000, "endPort": 6000}]}])], True),
        ([policy([{"ports": [{"port": 5000}]}])], False),
        ([policy([{"ports": [{"protocol": "UDP", "port": 5432}]}])], False),
        ([policy([{"ports": [{"protocol": "TCP"}]}])], True),
    ],
)
def test_the_evaluator_knows_what_the_api_says(policies: list[dict[str, Any]], reached: bool) -> None:
    assert reaches(policies, WEB, DB, 5432, namespaces={"default": {"team": "a"}}) is reached


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ({"key": "app", "operator": "In", "values": ["db", "x"]}, True),
        ({"key": "app", "operator": "NotIn", "values": ["db"]}, False),
        ({"key": "none", "operator": "NotIn", "values": ["db"]}, True),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "app", "operator": "DoesNotExist"}, False),
    ],
)
def test_the_evaluator_knows_the_operators_of_selectors(expression: dict[str, Any], selected: bool) -> None:
    closed = policy([], {"matchExpressions": [expression]})
    assert reaches([closed], WEB, DB, 5432) is not selected


def test_a_rule_without_peers_is_left_out_because_it_would_allow_everybody() -> None:
    for made in network_policies(service(), Network(controllers=CONTROLLERS)):
        assert all(rule["from"] for rule in made["spec"]["ingress"])


@pytest.mark.parametrize("kind", ["LLMService", "ElasticGroup"])
def test_every_policy_has_a_name_that_is_known_when_it_is_deleted(kind: str) -> None:
    network = Network(controllers=CONTROLLERS, metrics_from=({"namespaceSelector": {}},))
    made = network_policies(service(kind=kind), network)
    assert {item["metadata"]["name"] for item in made} <= set(policy_names(service()))
    assert "chat-workers" not in policy_names(service()), "docs/operate/security.md told users to make one of that name"
    for item in made:
        assert item["metadata"]["labels"][names.SERVICE_LABEL] == "chat"
        assert item["metadata"]["ownerReferences"][0]["kind"] == kind


def settings(**changes: str) -> OperatorSettings:
    told: dict[str, Any] = {
        "namespace": "system",
        "worker_image": "w",
        "gateway_image": "g",
        "nats_url": "nats://n:4222",
    }
    return OperatorSettings(**(told | {"POINTSMAN_POD_NAME": "operator-0"} | changes))


@pytest.mark.parametrize("certificate", ["no certificate", "Prüfstelle"])
def test_the_operator_refuses_a_certificate_that_cannot_be_read(certificate: str) -> None:
    """Its services' pods would get it, and none would reach NATS."""
    with pytest.raises(ValueError, match=r"nats_ca_certificate\n.*not a certificate in PEM: .*cadata"):
        settings(nats_ca_certificate=certificate)


def test_the_operator_without_the_labels_of_its_own_pods_would_lock_itself_out() -> None:
    with pytest.raises(ValueError, match="controller_pods is empty"):
        settings(network_policies="true")
    assert settings().install().network is None
    network = settings(network_policies="true", controller_pods='{"matchLabels": {"a": "b"}}').install().network
    assert network is not None
    assert network.controllers == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "system"}},
        "podSelector": {"matchLabels": {"a": "b"}},
    }
