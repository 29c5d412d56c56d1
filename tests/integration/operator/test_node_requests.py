"""Events of node autoscalers, as their own versions of the API write them, read with the operator's rights."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.kube.client import Kube
from pointsman.kube.resources import Resource
from pointsman.operator.core.snapshot import Policy, Worker
from pointsman.operator.core.unschedulable import NODE_PROVISION_S, given_up_at_s
from pointsman.operator.node_requests import NodeRequests

CORE_EVENTS = Resource("", "v1", "events", "Event")
POLICY = Policy(
    name="chat",
    spec=PlannerPolicySpec.model_validate(
        {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 7}}  # ten minutes by default
    ),
)


def pending(name: str, age_s: float) -> Worker:
    """A worker without a node, created so long ago."""
    created_s = datetime.now(UTC).timestamp() - age_s
    return Worker(
        name=name, uid=f"uid-of-{name}", resource_version="1", created_s=created_s, role=None,
        revision="", kv_compatibility="", unschedulable="0/3 nodes are available",
    )  # fmt: skip


async def report(kube: Kube, namespace: str, worker: Worker, reason: str, ago_s: float, source: str) -> None:
    """What an autoscaler's recorder writes: an Event of the core API."""
    at = (datetime.now(UTC) - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    body: dict[str, Any] = {
        "metadata": {"name": f"{worker.name}.{reason.lower()}"},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": worker.name, "uid": worker.uid},
        "reason": reason,
        "message": "as the autoscaler puts it",
        "type": "Normal",
        "source": {"component": source},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    await kube.create(CORE_EVENTS, body, namespace)


@pytest.mark.usefixtures("operator_kubeconfig")
async def test_events_of_autoscalers_say_whether_a_node_is_being_made(
    kube: Kube, operator_kubeconfig: Path, namespace: str
) -> None:
    late = 660.0
    told, nominated, refused, silent, young = (
        pending(name, age_s)
        for name, age_s in (("told", late), ("nominated", late), ("refused", late), ("silent", late), ("young", 60.0))
    )
    await report(kube, namespace, told, "TriggeredScaleUp", 600, "cluster-autoscaler")
    await report(kube, namespace, nominated, "Nominated", 30, "karpenter")
    await report(kube, namespace, refused, "TriggeredScaleUp", 600, "cluster-autoscaler")
    await report(kube, namespace, refused, "NotTriggerScaleUp", 5, "cluster-autoscaler")
    await report(kube, namespace, silent, "FailedScheduling", 10, "default-scheduler")
    await report(kube, namespace, young, "Nominated", 30, "karpenter")
    workers = (told, nominated, refused, silent, young)
    async with await Kube.connect(operator_kubeconfig) as as_the_operator:
        known = await NodeRequests(as_the_operator).complete(workers, workers, POLICY, namespace)
    requested = {worker.name: worker.node_requested_s is not None for worker in known}
    assert requested == {"told": True, "nominated": True, "refused": False, "silent": False, "young": False}
    now_s = datetime.now(UTC).timestamp()
    for worker, left_s in zip(known[:2], (NODE_PROVISION_S - 600, NODE_PROVISION_S - 30), strict=True):
        assert abs(given_up_at_s(worker, POLICY) - now_s - left_s) < 60
