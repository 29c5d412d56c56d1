"""A rollback: this version cannot read some objects that a newer one wrote, and serves everything else."""

import pytest

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.kube import resources

from .conftest import Cluster
from .newer_versions import NEWER, store
from .newer_versions import newer_crds as newer_crds


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
