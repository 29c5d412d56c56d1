"""Environment and command line of a container."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.local.node.core.environment import (
    CannotResolve,
    References,
    Sources,
    command_line,
    environment,
    expand,
    quantity,
    references,
)

SOURCES = Sources(
    config_maps={"settings": {"COLOUR": "green"}},
    secrets={"keys": {"token": "s3cret"}},
    pod_ip="127.1.2.3",
    host_ip="127.1.2.1",
    allocatable={"cpu": "8", "memory": "16Gi"},
)


def pod(container: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "ns", "uid": "u", "labels": {"example.com/role": "decode"}}
    return {"metadata": metadata, "spec": {"nodeName": "local", "containers": [container]}}


def resolved(**container: Any) -> dict[str, str]:
    spec = {"name": "main", **container}
    return environment(pod(spec), spec, SOURCES)


def from_field(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)/$(B)", "1/2"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


@given(st.text(st.characters(exclude_characters="$")))
def test_text_without_a_dollar_stays_as_it_is(text: str) -> None:
    assert expand(text, {"A": "1"}) == text


@given(st.text())
def test_an_escaped_text_expands_to_itself(text: str) -> None:
    assert expand(text.replace("$", "$$"), {"A": "1"}) == text


def test_a_variable_sees_only_those_before_it() -> None:
    variables = resolved(
        env=[{"name": "A", "value": "$(B)"}, {"name": "B", "value": "2"}, {"name": "C", "value": "$(B)"}]
    )

    assert variables == {"A": "$(B)", "B": "2", "C": "2"}


def test_env_wins_over_env_from_and_may_use_it() -> None:
    variables = resolved(
        envFrom=[{"prefix": "P_", "configMapRef": {"name": "settings"}}, {"configMapRef": {"name": "settings"}}],
        env=[{"name": "COLOUR", "value": "not $(P_COLOUR)"}],
    )

    assert variables == {"P_COLOUR": "green", "COLOUR": "not green"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "a"),
        ("metadata.labels['example.com/role']", "decode"),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "local"),
        ("status.podIP", "127.1.2.3"),
        ("status.hostIP", "127.1.2.1"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    assert resolved(env=[from_field(path)]) == {"X": value}


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.memory", "divisor": "1Mi"}, "2048"),
        ({"resource": "limits.cpu"}, "2"),  # rounded up
        ({"resource": "requests.cpu", "divisor": "1m"}, "250"),
        ({"resource": "requests.memory"}, "0"),
    ],
)
def test_resources_are_divided_and_rounded_up(reference: dict[str, str], value: str) -> None:
    variable = {"name": "X", "valueFrom": {"resourceFieldRef": reference}}
    resources = {"limits": {"memory": "2Gi", "cpu": "1500m"}, "requests": {"cpu": "250m"}}

    assert resolved(env=[variable], resources=resources) == {"X": value}


def test_without_a_limit_the_nodes_allocatable_counts() -> None:
    variable = {"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Gi"}}}

    assert resolved(env=[variable]) == {"X": "16"}


@pytest.mark.parametrize(
    ("container", "sentence"),
    [
        ({"envFrom": [{"secretRef": {"name": "none"}}]}, 'secret "none" not found (container "main")'),
        (
            {"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "SIZE"}}}]},
            'couldn\'t find key SIZE in configmap settings (container "main", variable "X")',
        ),
        ({"env": [from_field("status.phase")]}, "fieldPath 'status.phase' is not one of metadata.name"),
    ],
)
def test_what_leads_nowhere_is_named(container: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CannotResolve) as refusal:
        resolved(**container)

    assert sentence in str(refusal.value)


def test_optional_references_may_lead_nowhere() -> None:
    optional = {"name": "none", "optional": True}
    variable = {"name": "X", "valueFrom": {"secretKeyRef": {**optional, "key": "k"}}}

    assert resolved(envFrom=[{"configMapRef": optional}], env=[variable]) == {}


def test_what_must_be_read_is_known_before() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}, {"name": "Y", "value": "1"}],
    }

    assert references(container) == References(frozenset({"a"}), frozenset({"b", "c"}))


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({}, ["entry", "cmd"]),
        ({"args": ["a"]}, ["entry", "a"]),
        ({"command": ["c"]}, ["c"]),
        ({"command": ["c"], "args": ["$(A)"]}, ["c", "1"]),
    ],
)
def test_command_and_args_replace_the_images(container: dict[str, Any], words: list[str]) -> None:
    assert command_line(container, ["entry"], ["cmd"], {"A": "1"}) == words


@pytest.mark.parametrize(("text", "value"), [("500m", "0.5"), ("1Gi", str(2**30)), ("2k", "2000"), ("1.5", "1.5")])
def test_quantities(text: str, value: str) -> None:
    assert quantity(text) == Decimal(value)


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(ValueError, match="'1 GB' is not a quantity like"):
        quantity("1 GB")
