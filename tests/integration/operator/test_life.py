"""The life of a service: made, scaled, drained, broken, deleted."""

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType

from .conftest import Cluster


async def test_a_service_becomes_ready_once_every_worker_proved_its_role(cluster: Cluster) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")

    found = cluster.service()
    assert found is not None
    assert found.status.endpoint == f"http://chat-gateway.{cluster.namespace}.svc:8000/v1"
    assert found.status.pools is not None
    assert found.status.pools.decode.manifest() == {
        "desired": 2,
        "existing": 2,
        "ready": 2,
        "routable": 2,
        "draining": 0,
        "starting": 0,
    }
    assert found.status.observed_generation == found.metadata.generation
    for kind in ("Available", "PrefillReady", "DecodeReady", "GatewayReady"):
        assert cluster.condition(ConditionType(kind))[0] == "True", kind
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"

    for worker in cluster.kubelet.workers.values():
        role = worker.pod.metadata.labels[names.ROLE_LABEL].capitalize()
        assert worker.asked == [f"role {role}", f"verify {role}"], "each is asked once"
    prefill = cluster.kubelet.worker_pods(Role.PREFILL)[0].metadata.name
    partner = cluster.kubelet.workers[prefill].partners[0]
    decode_urls = {f"http://{pod.status.pod_ip}:8000" for pod in cluster.kubelet.worker_pods(Role.DECODE)}
    assert partner in decode_urls, "a prefill worker is proved with one that pulls its KV"
