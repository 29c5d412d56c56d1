"""The slim pod reads what the API server writes."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from pointsman.kube.pods import Pod

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "llama-7f-0",
        "namespace": "team",
        "uid": "u1",
        "resourceVersion": "42",
        "creationTimestamp": "2026-11-20T10:00:00Z",
        "labels": {"pointsman.dev/role": "decode"},
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u2"},
            {"apiVersion": "x/v1", "kind": "WorkerPool", "name": "llama", "uid": "u3", "controller": True},
        ],
        "managedFields": [{"manager": "m"}],
    },
    "spec": {"nodeName": "n1", "containers": [{"name": "engine"}], "terminationGracePeriodSeconds": 30},
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T10:01:00Z", "lastProbeTime": None}
        ],
        "containerStatuses": [
            {
                "name": "engine",
                "ready": True,
                "restartCount": 2,
                "state": {"running": {"startedAt": "2026-11-20T10:00:30Z"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                "image": "x",
            }
        ],
    },
}


def read(pod: dict[str, Any]) -> Pod:
    return Pod.model_validate_json(json.dumps(pod))


def test_a_running_pod_is_read() -> None:
    pod = read(POD)
    assert pod.key == ("team", "llama-7f-0")
    assert pod.metadata.labels == {"pointsman.dev/role": "decode"}
    assert (pod.status.pod_ip, pod.spec.node_name, pod.ready, pod.terminating) == ("10.0.0.1", "n1", True, False)
    owner = pod.metadata.controller
    assert owner is not None
    assert owner.uid == "u3"
    container = pod.container("engine")
    assert container is not None
    assert container.last_state.terminated is not None
    assert (container.restart_count, container.last_state.terminated.exit_code) == (2, 137)
    assert container.state.waiting is None
    assert pod.container("sidecar") is None


def test_a_pod_nobody_has_looked_at_is_pending_and_not_ready() -> None:
    pod = read({"metadata": {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1"}})
    assert (pod.status.phase, pod.ready, pod.status.pod_ip, pod.unschedulable, pod.finished) == (
        "Pending",
        False,
        None,
        None,
        False,
    )


def test_the_scheduler_says_why_a_pod_has_no_node() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    }
    bound = POD | {"status": {"conditions": [condition]}}
    waiting = bound | {"spec": {"containers": [{"name": "engine"}]}}
    assert read(waiting).unschedulable == condition["message"]
    assert read(waiting | {"status": {"conditions": [condition | {"status": "True"}]}}).unschedulable is None
    assert read(bound).unschedulable is None, "it has a node: what is written of an earlier attempt is old"


def test_a_pod_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read(POD).metadata = None  # type: ignore[assignment, misc]  # that mypy refuses it too is the point
