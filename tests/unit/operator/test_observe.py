"""Pods of the API server as the core sees them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pointsman.api.protocol import names
from pointsman.kube.pods import LOST_AFTER_S, Pod
from pointsman.operator.observe import is_gateway, is_of_stateful_set, worker_of


def test_a_deleted_pod_is_given_up_a_while_after_the_end_of_its_grace_period() -> None:
    """The API server stamps a deletion with the time at which the pod is to be gone, not with when it was asked for."""
    metadata = {"name": "chat-0", "namespace": "default", "uid": "u", "resourceVersion": "1"}
    living = worker_of(Pod.model_validate({"metadata": metadata}))
    assert (living.terminating, living.lost_at_s) == (False, None)
    gone_by = datetime(2026, 5, 4, 12, 1, 30, tzinfo=UTC)
    deleted = worker_of(Pod.model_validate({"metadata": {**metadata, "deletionTimestamp": gone_by.isoformat()}}))
    assert (deleted.terminating, deleted.lost_at_s) == (True, gone_by.timestamp() + LOST_AFTER_S)


def gateway_pod(owner: dict[str, Any] | None, **labels: str) -> Pod:
    """A pod with a gateway's labels."""
    told = {
        names.SERVICE_LABEL: "chat",
        names.COMPONENT_LABEL: names.COMPONENT_GATEWAY,
        "pod-template-hash": "5d4f8c",
        **labels,
    }
    metadata: dict[str, Any] = {"name": "x", "namespace": "default", "uid": "u", "resourceVersion": "1", "labels": told}
    if owner is not None:
        metadata["ownerReferences"] = [{"apiVersion": "apps/v1", "uid": "r", "controller": True, **owner}]
    return Pod.model_validate({"metadata": metadata})


@pytest.mark.parametrize(
    ("owner", "is_ours"),
    [
        ({"kind": "ReplicaSet", "name": "chat-gateway-5d4f8c"}, True),
        ({"kind": "ReplicaSet", "name": "chat-gateway-canary-5d4f8c"}, False),  # of a Deployment chat-gateway-canary
        ({"kind": "ReplicaSet", "name": "other-gateway-5d4f8c"}, False),
        ({"kind": "StatefulSet", "name": "chat-gateway-5d4f8c"}, False),
        (None, False),  # a copy for debugging that kept its labels
    ],
)
def test_a_gateway_is_a_pod_of_the_gateways_deployment_and_no_look_alike(
    owner: dict[str, Any] | None, is_ours: bool
) -> None:
    assert is_gateway(gateway_pod(owner)) is is_ours


def test_a_pod_of_a_group_is_one_of_its_stateful_set() -> None:
    instance = gateway_pod({"kind": "StatefulSet", "name": "long"})
    assert is_of_stateful_set(instance, "long")
    assert not is_of_stateful_set(instance, "long-manager")
    assert not is_of_stateful_set(gateway_pod(None), "long")
