"""A node loses its power, and the control plane's own controllers find out."""

import time
from datetime import timedelta

import pytest

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.kube import resources

from .conftest import Cluster
from .stand_in import NODE

OTHER_NODE = f"{NODE}-b"
LOST_NODE_S = 5


@pytest.mark.verify  # the node lifecycle controller takes 50 seconds to find a node lost
@pytest.mark.verify_operator
async def test_a_worker_on_a_node_without_power_is_replaced_after_what_the_user_says(
    cluster: Cluster, findings: dict[str, object]
) -> None:
    await cluster.kubelet.add_node(OTHER_NODE)
    cluster.kubelet.node_for = lambda pod: OTHER_NODE if pod.metadata.name.endswith("-2") else NODE
    await cluster.create(
        pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}},
        worker={"gpus": 0, "lostNodeSeconds": LOST_NODE_S},
        drain={"timeoutSeconds": 1},
    )
    await cluster.until_summary("1P2D")
    (lost,) = (pod for pod in cluster.kubelet.worker_pods(Role.DECODE) if pod.spec.node_name == OTHER_NODE)
    name = lost.metadata.name
    await cluster.kubelet.silence_node(OTHER_NODE)
    silent_since_s = time.monotonic()
    said = await cluster.until_condition(ConditionType.DECODE_READY, "False", "NodeLost", deadline_s=120.0)
    said_after_s = time.monotonic() - silent_since_s
    assert f"{name} is on node {OTHER_NODE}, which does not answer" in said
    await cluster.until_summary("1P2D")
    replaced_after_s = time.monotonic() - silent_since_s
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"

    left = cluster.kubelet.pods.get(name, cluster.namespace)
    assert left is not None, "nobody ends a pod on a node that does not answer"
    assert left.metadata.deletion_timestamp is not None
    found_lost, evicted = left.condition("Ready"), left.condition("DisruptionTarget")
    assert found_lost is not None
    assert evicted is not None
    assert found_lost.last_transition_time is not None
    assert evicted.last_transition_time is not None
    assert evicted.reason == "DeletionByTaintManager"
    waited = evicted.last_transition_time - found_lost.last_transition_time
    assert timedelta(seconds=LOST_NODE_S - 1) <= waited < timedelta(seconds=LOST_NODE_S + 30), "not Kubernetes' 300 s"
    findings.update(
        lost_node_seconds=LOST_NODE_S,
        said_to_be_lost_after_seconds=round(said_after_s, 1),
        deleted_after_further_seconds=round(waited.total_seconds(), 1),
        replaced_and_ready_after_seconds=round(replaced_after_s, 1),
    )
    await cluster.kube.delete(resources.PODS, name, cluster.namespace, grace_period_s=0)
    await cluster.kube.delete(resources.NODES, OTHER_NODE, None)
