"""The readiness gate of worker pods, and what the operator knows of nodes that do not answer."""

from dataclasses import replace
from typing import Any

import pytest

from pointsman.api.protocol.names import LANGUAGE_ROLES, ROLE_LABEL, ROUTABLE_CONDITION, ROUTABLE_LABEL, Role
from pointsman.kube.pods import Pod
from pointsman.operator.core import actions as act
from pointsman.operator.core.decide import decide
from pointsman.operator.core.naming import VERIFIED_CONTAINER_ANNOTATION
from pointsman.operator.core.readiness import readiness_actions
from pointsman.operator.core.snapshot import Pool, Worker
from pointsman.operator.observe import worker_of
from unit.operator.scenes import snapshot, worker
from unit.operator.world import Render, service, spec, state

BY_GATE = "ReadinessGatesNotReady"


def pod(*, gate: str | None, ready: str, reason: str = "", containers_ready: str = "True", label: str = "true") -> Pod:
    """A decode worker that was verified. ``gate``: status of its readiness gate; None: an earlier version made it."""
    conditions = [
        {"type": "ContainersReady", "status": containers_ready},
        {"type": "Ready", "status": ready, "reason": reason},
        *([{"type": ROUTABLE_CONDITION, "status": gate}] if gate else []),
    ]
    running = {"name": "engine", "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    return Pod.model_validate(
        {
            "metadata": {
                "name": "chat-r-0",
                "namespace": "default",
                "uid": "u",
                "resourceVersion": "1",
                "labels": {ROLE_LABEL: "decode", ROUTABLE_LABEL: label},
                "annotations": {VERIFIED_CONTAINER_ANNOTATION: "decode/0-1767225600"},
            },
            "spec": {
                "nodeName": "n1",
                **({"readinessGates": [{"conditionType": ROUTABLE_CONDITION}]} if gate is not None else {}),
            },
            "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [running]},
        }
    )


@pytest.mark.parametrize(
    ("found", "ready", "routable", "lost"),
    [
        (pod(gate="True", ready="True"), True, True, False),
        (pod(gate="False", ready="False", reason=BY_GATE, label="false"), True, False, False),
        (pod(gate="", ready="False", reason=BY_GATE), True, False, False),  # nobody has written its condition yet
        (pod(gate="True", ready="False", reason=BY_GATE), True, False, False),  # the kubelet has not seen it yet
        (pod(gate="True", ready="False", reason="ContainersNotReady", containers_ready="False"), False, False, False),
        (pod(gate="True", ready="False"), False, False, True),  # as the node lifecycle controller writes it
        (pod(gate=None, ready="True"), True, True, False),
        (pod(gate=None, ready="False"), False, False, True),
    ],
)
def test_a_worker_with_a_gate_is_ready_when_its_engine_is_and_routable_when_its_pod_is(
    found: Pod, ready: bool, routable: bool, lost: bool
) -> None:
    seen = worker_of(found)
    assert (seen.ready, seen.routable, seen.node_lost) == (ready, routable, lost)


@pytest.mark.parametrize(("label", "condition"), [(True, False), (False, True)])
def test_the_condition_follows_the_label(label: bool, condition: bool) -> None:
    found = worker(routable_label=label, routable_condition=condition)
    (action,) = readiness_actions(snapshot(found))
    assert (action.uid, action.routable) == (found.uid, label)
    assert list(readiness_actions(snapshot(replace(found, routable_condition=label)))) == []


@pytest.mark.parametrize("fields", [{"routable_condition": None}, {"terminating": True}, {"phase": "Failed"}])
def test_pods_without_the_gate_and_pods_that_end_are_left_alone(fields: dict[str, Any]) -> None:
    found = worker(**{"routable_label": True, "routable_condition": False, **fields})
    assert list(readiness_actions(snapshot(found))) == []


def test_a_verified_worker_gets_label_and_condition_in_one_pass() -> None:
    verified = state(role=Role.DECODE, verified=Role.DECODE)
    found = worker(routable_label=False, routable_condition=False, state=verified)
    kinds = {type(action) for action in decide(snapshot(worker("p", Role.PREFILL), found), Render()).actions}
    assert {act.PatchPod, act.SetRoutableCondition} <= kinds


def test_of_two_workers_the_one_that_no_gateway_may_use_leaves_first() -> None:
    """Otherwise a role could be left with a worker whose pod is not Ready yet."""
    serving = worker("serving", created_s=2.0)
    closed = worker("closed", created_s=1.0, routable_condition=True, gates_open=False)
    pools = {role: Pool(uid=role, resource_version="1", replicas=1, copied_replicas=1) for role in LANGUAGE_ROLES}
    found = snapshot(worker("p", Role.PREFILL), serving, closed, pools=pools, service=service(spec()))
    leaving = [action.worker for action in decide(found, Render()).actions if isinstance(action, act.PatchPod)]
    assert leaving == ["closed"]


def test_a_worker_of_an_earlier_version_has_no_gate() -> None:
    assert worker_of(pod(gate=None, ready="True")).routable_condition is None
    assert Worker.__dataclass_fields__["gates_open"].default is True
