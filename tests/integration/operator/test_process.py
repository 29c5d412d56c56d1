"""The process itself: one leads, idleness writes nothing, a bad setting is named."""

import asyncio
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.operators import OperatorProcess
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.kube import resources
from waiting import eventually

from .conftest import Cluster

# A Lease is written to be held; nothing else may be written while nothing changes.
WRITES = re.compile(
    r'^pointsman_operator_kube_requests_total\{resource="(?!leases)[^"]*",status="\d+",'
    r'verb="(create|update|patch|delete)"\} ([0-9.]+)',
    re.MULTILINE,
)
LOOKS = re.compile(r'^pointsman_operator_reconciles_total\{outcome="done"\} ([0-9.]+)', re.MULTILINE)


def _scrape(port: int) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        return str(page.read().decode())


@pytest.fixture
def operator(operator_kubeconfig: Path, namespace: str) -> Iterator[OperatorProcess]:
    """One that looks at everything twice a second, changed or not, and asks about NATS as often."""
    process = OperatorProcess(operator_kubeconfig, namespace, resync_seconds="0.5", survey_seconds="0.5")
    process.start()
    yield process
    process.kill()


async def test_an_idle_service_costs_looks_but_no_write(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    # Somebody else's condition in the same list: neither ours to repeat nor to remove.
    theirs = {
        "type": "PlannerHealthy",
        "status": "True",
        "reason": "Well",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    planner = {"metadata": {"name": "chat", "namespace": cluster.namespace}, "status": {"conditions": [theirs]}}
    await cluster.kube.apply(resources.LLM_SERVICES, planner, subresource="status", field_manager="somebody-else")
    port = cluster.operator.port
    assert port is not None

    async def figures() -> tuple[float, float]:
        page = await asyncio.to_thread(_scrape, port)
        return sum(float(count) for _, count in WRITES.findall(page)), sum(map(float, LOOKS.findall(page)))

    async def after(looks: float) -> tuple[float, float]:
        found = (0.0, 0.0)

        async def enough() -> bool:
            nonlocal found
            found = await figures()
            return found[1] >= looks

        await eventually(enough, f"{looks:.0f} looks")
        return found

    for _ in range(3):  # the count of an Event that was repeated is written a minute later, not by a look
        _, looked = await figures()
        writes, looked = await after(looked + 4)  # what was under way has ended
        later, _ = await after(looked + 8)
        if later == writes:
            break
    assert writes > 0, "the pattern finds what was written before"
    assert later == writes, "looks at an idle service wrote something"
    live = await cluster.kube.get(resources.LLM_SERVICES, "chat", cluster.namespace)
    assert "PlannerHealthy" in {item["type"] for item in live["status"]["conditions"]}


async def test_network_policies_go_and_come_with_the_setting(cluster: Cluster) -> None:
    """What ``networkPolicy.enabled`` of the chart does. A policy of a stranger stays."""
    stranger = {
        "metadata": {"name": "chat-pointsman-instances"},
        "spec": {"podSelector": {"matchLabels": {"app": "theirs"}}, "policyTypes": ["Ingress"]},
    }
    await cluster.kube.create(resources.NETWORK_POLICIES, stranger, cluster.namespace)
    await cluster.create()

    async def found() -> set[str]:
        names = ("chat-pointsman-workers", "chat-pointsman-worker-metrics", "chat-pointsman-instances")
        live = [(name, await cluster.kube.find(resources.NETWORK_POLICIES, name, cluster.namespace)) for name in names]
        return {name.removeprefix("chat-pointsman-") for name, policy in live if policy is not None}

    async def is_closed() -> bool:
        return await found() == {"workers", "worker-metrics", "instances"}

    async def is_open() -> bool:
        return await found() == {"instances"}

    await eventually(is_closed, "the workers are closed")
    await cluster.kube.delete(resources.NETWORK_POLICIES, "chat-pointsman-workers", cluster.namespace)
    await eventually(is_closed, "what somebody deleted is put back")
    cluster.operator.stop()
    cluster.operator.set(network_policies="false")
    cluster.operator.start()
    await eventually(is_open, "the policies are gone")


async def test_workers_that_lost_nats_degrade_the_service_until_it_is_back(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    for worker in cluster.kubelet.workers.values():
        worker.nats_connected = False
    said = await cluster.until_condition(ConditionType.DEGRADED, "True", "NatsUnreachable")
    assert "nats://nats.test:4222" in said
    assert cluster.condition(ConditionType.AVAILABLE)[0] == "True", "prompts are computed locally"
    for worker in cluster.kubelet.workers.values():
        worker.nats_connected = True
    await cluster.until_condition(ConditionType.DEGRADED, "False")


async def test_sigterm_hands_the_lease_on_and_the_next_operator_goes_on_at_once(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    assert await asyncio.to_thread(cluster.operator.stop) == 0
    lease = await cluster.kube.get(resources.LEASES, "pointsman-operator", cluster.namespace)
    assert not lease["spec"].get("holderIdentity")
    await cluster.edit({"pools": {"decode": {"replicas": 2}}})
    cluster.operator.start()
    await cluster.until_summary("1P2D")
    assert len(cluster.kubelet.created) == 3


def test_a_missing_setting_is_named_with_its_field() -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("POINTSMAN_")}
    done = subprocess.run(
        [sys.executable, "-m", "pointsman.operator", "--bind-port", "80000"],
        env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    for setting in ("NAMESPACE", "WORKER_IMAGE", "GATEWAY_IMAGE", "NATS_URL", "BIND_PORT"):
        assert f"POINTSMAN_{setting}: " in done.stderr
