"""Plans and policies of a service in a cluster."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.kube import resources
from pointsman.planner.core.types import Reason, RoutingNumbers
from pointsman.planner.routing_publisher import RoutingPublisher
from pointsman.serving.flow_control import FlowBounds

from .conftest import Cluster


async def policy(cluster: Cluster, mode: Mode, **spec: Any) -> None:
    """The PlannerPolicy ``chat``, made or changed."""
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "PlannerPolicy",
        "metadata": {"name": "chat", "namespace": cluster.namespace},
        "spec": {
            "mode": mode,
            "objectives": {"ttftMs": 1000, "tpotMs": 50},
            "budget": {"maxGpus": 7},
            "actions": {"scaleOut": {"unschedulableAfterSeconds": 10}},
            **spec,
        },
    }
    await cluster.kube.apply(resources.PLANNER_POLICIES, body)


async def layout(cluster: Cluster, prefill: int, decode: int, mode: Mode) -> None:
    """The service ``chat`` under a policy of that mode, all workers serving."""
    await policy(cluster, mode)
    pools = {"prefill": {"replicas": prefill, "maxReplicas": 4}, "decode": {"replicas": decode, "maxReplicas": 4}}
    await cluster.create(pools=pools, policyRef={"name": "chat"})
    await cluster.until_layout(prefill, decode)


async def plan(
    cluster: Cluster, sequence: int, prefill: int, decode: int, *, switches: int = 0, lives_s: float = 600, **spec: Any
) -> str:
    """What the planner writes; ``switches`` decode workers become prefill workers (negative: the other way)."""
    now = datetime.now(UTC)
    source, target = (Role.DECODE, Role.PREFILL) if switches > 0 else (Role.PREFILL, Role.DECODE)
    name = f"chat-{sequence:05}"
    body = {
        "metadata": {"name": name},
        "spec": {
            "serviceRef": {"name": "chat"},
            "sequence": sequence,
            "mode": Mode.ACTIVE,
            "observedAt": now.isoformat(),
            "pools": {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}},
            "switches": [{"from": source, "to": target, "count": abs(switches)}] if switches else [],
            "routing": {"maxLocalPrefillTokens": 100 * sequence, "maxPrefillQueueSize": 8},
            "changesLayout": True,
            "reason": "PrefillShort",
            "message": "long prompts",
            "expiresAt": (now + timedelta(seconds=lives_s)).isoformat(),
            **spec,
        },
    }
    await cluster.kube.create(resources.PLANS, body, cluster.namespace, field_validation="Strict")
    return name


async def routing(cluster: Cluster) -> Mapping[str, object]:
    """``status.routing`` as the API server has it now; mirrors show it later."""
    found = await cluster.kube.get(resources.LLM_SERVICES, "chat", cluster.namespace)
    numbers: Mapping[str, object] = found["status"].get("routing", {})
    return numbers


async def scale(cluster: Cluster, pool: str, replicas: int) -> None:
    """``kubectl scale wpool``."""
    await cluster.kube.patch(
        resources.WORKER_POOLS, pool, cluster.namespace, {"spec": {"replicas": replicas}}, subresource="scale"
    )


NUMBERS = RoutingNumbers(640, 8, FlowBounds(1000, 12, 800))


async def publish(cluster: Cluster, numbers: RoutingNumbers) -> None:
    """What the planner does."""
    service = cluster.service()
    assert service is not None
    key, uid = (cluster.namespace, "chat"), service.metadata.uid
    publisher = RoutingPublisher(cluster.kube, key, uid)
    await publisher.publish(NUMBERS, numbers, Reason.FLOW_CONTROL, datetime.now(UTC))
    await publisher.remove_leftovers()
