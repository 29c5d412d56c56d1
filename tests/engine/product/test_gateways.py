"""The only gateway goes under load: clients that use its Service notice nothing."""

import asyncio
import json

from engine.product.served import MIX, MODEL_NAME, WAIT_SECONDS, Served, errors, gateways, may_evict
from pointsman.api.protocol import names
from pointsman.local.traffic import Endpoint, prompts, running_load
from waiting import eventually

CORDONED = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}


async def delete(chat: Served, pod: str) -> None:
    chat.kubectl("delete", "pod", pod, "--wait=false")


async def evict_it(chat: Served, pod: str) -> None:
    await eventually(lambda: may_evict(chat, pod), "the gateway is evicted")


async def drain_its_node(chat: Served, pod: str) -> None:
    """``kubectl drain``, which cordons the node, evicts the gateway and waits until its pod is gone."""
    selector = f"{names.SERVICE_LABEL}={chat.name},{names.COMPONENT_LABEL}={names.COMPONENT_GATEWAY}"
    node = chat.kubectl("get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")
    arguments = ("drain", node, f"--pod-selector={selector}", "--delete-emptydir-data", "--timeout=150s")
    try:
        said = await asyncio.to_thread(chat.cluster.kubectl, *arguments, timeout_s=160)
    finally:
        chat.cluster.kubectl("uncordon", node)
    assert f"pod/{pod} evicted" in said
    assert f"node/{node} drained" in said


async def until_replaced(chat: Served, gone: str) -> None:
    """Another gateway has taken its place."""

    def replaced() -> bool:
        found = gateways(chat)
        return gone not in found and list(found.values()) == [True]

    await eventually(replaced, "another gateway has taken its place")


async def test_the_only_gateway_is_deleted_evicted_and_drained_under_load_and_no_request_fails(chat: Served) -> None:
    """The cluster has one node: the gateway's replacement goes to the same, cordoned as it is."""

    def tolerate(*tolerations: dict[str, str]) -> None:
        template = {"spec": {"tolerations": tolerations}} if tolerations else None
        patch = json.dumps({"spec": {"gateway": {"template": template}}})
        chat.kubectl("patch", "llms", chat.name, "--type=merge", f"--patch={patch}")

    async def tolerate_the_cordon(chat: Served, pod: str) -> None:
        tolerate(CORDONED)

    url = chat.cluster.service_url(chat.name)
    async with (
        Endpoint(url, MODEL_NAME, timeout_seconds=WAIT_SECONDS) as endpoint,
        running_load(endpoint, prompts(MIX, seed=131), clients=3) as traffic,
    ):
        for take_away in (delete, evict_it, tolerate_the_cordon, drain_its_node):
            ((before, ready),) = gateways(chat).items()
            assert ready
            await traffic.answered(5, timeout_seconds=120)
            await take_away(chat, before)
            await until_replaced(chat, before)
            await traffic.answered(5, timeout_seconds=120)
    ((last, _),) = gateways(chat).items()
    tolerate()
    await until_replaced(chat, last)  # the next test uses the pod's own address
    assert errors(traffic.records) == []
