"""A rollback: this version cannot read some objects that a newer one wrote, and serves everything else."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.kube import resources
from pointsman.kube.errors import Invalid
from pointsman.kube.resources import Resource
from pointsman.local.control_plane import ControlPlane
from waiting import eventually

from .conftest import CRDS, Cluster

# By CRD: where its schema has an enum, and the word of a newer version.
NEWER: Final = {
    "roleswitches": (("status", "way"), "Restart"),
    "plans": (("status", "phase"), "Paused"),
    "plannerpolicies": (("spec", "mode"), "Canary"),
}


@pytest.fixture
def newer_crds(control_plane: ControlPlane, operator_kubeconfig: object) -> Iterator[None]:
    """The CRDs of a newer version, with which its objects are stored; in the end the present ones."""
    for plural, (path, word) in NEWER.items():
        crd = json.loads(control_plane.kubectl("get", "crd", f"{plural}.{names.GROUP}", "-o", "json"))
        field: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for part in path:
            field = field["properties"][part]
        field["enum"].append(word)
        control_plane.kubectl("replace", "-f", "-", stdin=json.dumps(crd))
    yield
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))


async def store(cluster: Cluster, resource: Resource, name: str, body: dict[str, Any]) -> None:
    """Write an object as a newer version would; the API server takes it as soon as it knows the newer CRD."""

    refused = ""

    async def written() -> bool:
        nonlocal refused
        try:
            await cluster.kube.apply(resource, {"metadata": {"name": name}, "spec": body["spec"]}, cluster.namespace)
            if "status" in body:
                status = {"status": body["status"]}
                await cluster.kube.patch(resource, name, cluster.namespace, status, subresource="status")
        except Invalid as error:
            refused = str(error)
            return False
        return True

    try:
        await eventually(written, f"{resource.kind} {name} of a newer version is stored")
    except AssertionError as error:
        raise AssertionError(f"{error}: {refused}") from None


@pytest.mark.usefixtures("newer_crds")
async def test_objects_of_a_newer_version_stop_nobody_else(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    cluster.operator.stop()
    switch = {"serviceRef": {"name": "chat"}, "from": "Decode", "to": "Prefill"}
    plan = {
        "serviceRef": {"name": "chat"},
        "sequence": 1,
        "mode": "Active",
        "observedAt": "2026-01-01T00:00:00Z",
        "expiresAt": "2036-01-01T00:00:00Z",
        "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 3}},
        "routing": {"maxLocalPrefillTokens": 512, "maxPrefillQueueSize": 8},
        "changesLayout": True,
        "reason": "DecodeShort",
        "message": "of a newer version",
    }
    policy = {"mode": "Canary", "objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 4}}
    under_way = {"phase": "Switching", "way": "Restart"}
    await store(cluster, resources.ROLE_SWITCHES, "newer", {"spec": switch, "status": under_way})
    await store(cluster, resources.PLANS, "chat-00001", {"spec": plan, "status": {"phase": "Paused"}})
    await store(cluster, resources.PLANNER_POLICIES, "newer", {"spec": policy})
    cluster.operator.start()
    await cluster.edit({"pools": {"decode": {"replicas": 2}}})
    await cluster.until_layout(1, 2)
    await cluster.until_event("Unreadable", "status.way: Input should be 'Hot'")
    await cluster.until_event("Unreadable", "status.phase")
    await cluster.until_event("Unreadable", "spec.mode")
    shown = {
        sample.labels["resource"]: sample.value
        for sample in cluster.operator.samples("pointsman_operator_unreadable_objects")
    }
    assert {kind: shown[f"{kind}.{names.GROUP}"] for kind in NEWER} == dict.fromkeys(NEWER, 1.0)

    await cluster.edit({"policyRef": {"name": "newer"}})
    said = await cluster.until_condition(ConditionType.DEGRADED, "True", "Unreadable")
    assert "PlannerPolicy newer cannot be read by this version: spec.mode" in said
    assert len(cluster.kubelet.worker_pods(Role.DECODE)) == 2
    await store(cluster, resources.PLANNER_POLICIES, "newer", {"spec": {**policy, "mode": "Shadow"}})
    await cluster.until_condition(ConditionType.DEGRADED, "False")
    await cluster.until_layout(1, 2)
