"""Discovery through a real API server: labels, readiness, routing numbers, two namespaces, and the API server away."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fixtures.gateways import Gateway, connected, gateway_process
from integration.gateway.stand_in_worker import SERVED_NAME, TOKEN, StandInWorker, running
from pointsman.api.protocol import headers, names
from pointsman.local.control_plane import APISERVER, ControlPlane, ControlPlaneOptions
from pointsman.serving.flow_control import FlowBounds
from waiting import eventually, until

CRDS = Path(__file__).parents[3] / "crds/llmservices.yaml"
SERVICE = "chat"


@dataclass
class Cluster:
    """A control plane of this module's own (its API server is killed), and what stands in for a kubelet."""

    control_plane: ControlPlane
    used: int = 0

    def address(self) -> str:
        """An address of no other pod."""
        self.used += 1
        return f"127.91.{self.control_plane_id}.{self.used}"

    @property
    def control_plane_id(self) -> int:
        """Keeps addresses of test runs side by side apart."""
        return int(self.control_plane.directory.stat().st_ino % 250) + 1

    def service(self, namespace: str, **routing: int) -> None:
        """An LLMService with these routing numbers in its status."""
        spec = {
            "model": {"source": "file:///models/stand-in", "servedName": SERVED_NAME},
            "engine": {"type": "VLLM"},
            "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}},
        }
        self.control_plane.apply(
            {
                "apiVersion": names.API_VERSION,
                "kind": "LLMService",
                "metadata": {"name": SERVICE, "namespace": namespace},
                "spec": spec,
            },
            namespace=namespace,
        )
        self.status("llmservice", SERVICE, namespace, {"routing": routing})

    def pod(self, namespace: str, name: str, address: str, *, routable: str = "true", role: str = "decode") -> None:
        """A worker's pod, Ready at ``address``."""
        labels = {
            names.SERVICE_LABEL: SERVICE,
            names.COMPONENT_LABEL: names.COMPONENT_WORKER,
            names.ROLE_LABEL: role,
            names.ROUTABLE_LABEL: routable,
        }
        self.control_plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {"containers": [{"name": "engine", "image": "worker:test"}]},
            },
            namespace=namespace,
        )
        self.ready(namespace, name, address, "True")

    def gateway_pod(self, namespace: str, name: str) -> None:
        """A gateway's pod that no kubelet has started yet."""
        labels = {names.SERVICE_LABEL: SERVICE, names.COMPONENT_LABEL: names.COMPONENT_GATEWAY}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"containers": [{"name": "gateway", "image": "gateway:test"}]},
        }
        self.control_plane.apply(pod, namespace=namespace)

    def ready(self, namespace: str, name: str, address: str, ready: str) -> None:
        """What a kubelet writes."""
        conditions = [{"type": "Ready", "status": ready}]
        addresses = {"podIP": address, "podIPs": [{"ip": address}]}
        self.status("pod", name, namespace, {"phase": "Running", "conditions": conditions, **addresses})

    def label(self, namespace: str, name: str, label: str, value: str) -> None:
        """What the operator writes."""
        self.control_plane.kubectl("label", "pod", name, "-n", namespace, f"{label}={value}", "--overwrite")

    def status(self, kind: str, name: str, namespace: str, status: dict[str, Any]) -> None:
        """Patch the status subresource."""
        self.control_plane.kubectl(
            "patch",
            kind,
            name,
            "-n",
            namespace,
            "--subresource=status",
            "--type=merge",
            "-p",
            json.dumps({"status": status}),
        )


@pytest.fixture(scope="module")
def cluster() -> Any:
    """See Cluster."""
    without = frozenset({"kube-scheduler", "kube-controller-manager"})
    with ControlPlane.temporary(options=ControlPlaneOptions(without=without)) as running_control_plane:
        running_control_plane.kubectl("apply", "--server-side", "-f", str(CRDS))
        established = '-o=jsonpath={.status.conditions[?(@.type=="Established")].status}'
        crd = ("get", "crd", "llmservices.pointsman.dev", established)
        until(lambda: running_control_plane.kubectl(*crd) == "True", "the CRD is established")
        yield Cluster(running_control_plane)


@dataclass
class Stage:
    """Namespaces, workers at pods' addresses and gateways for one test."""

    cluster: Cluster
    make_worker: Callable[[str], StandInWorker]
    folder: Path
    stack: AsyncExitStack

    def namespace(self) -> str:
        """A new one."""
        name = f"gateway-{secrets.token_hex(4)}"
        self.cluster.control_plane.kubectl("create", "namespace", name)
        # what the controller manager would make: without it no pod is admitted
        self.cluster.control_plane.kubectl("create", "serviceaccount", "default", "-n", name)
        return name

    async def worker(self, namespace: str, name: str, **labels: str) -> StandInWorker:
        """A worker that runs at the address of a pod of its own."""
        address = self.cluster.address()
        worker = self.make_worker(name)
        await self.stack.enter_async_context(running(worker, host=address, port=names.ENGINE_PORT))
        await asyncio.to_thread(self.cluster.pod, namespace, name, address, **labels)
        return worker

    async def gateway(self, namespace: str, **settings: Any) -> Gateway:
        """A gateway process with the rights that the operator gives it in ``namespace``."""
        user = f"system:serviceaccount:{namespace}:chat-gateway"
        control_plane = self.cluster.control_plane
        rules = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [names.GROUP], "resources": ["llmservices"], "verbs": ["get", "list", "watch"]},
        ]
        group = "rbac.authorization.k8s.io"
        control_plane.apply(
            {
                "apiVersion": f"{group}/v1",
                "kind": "Role",
                "metadata": {"name": "gateway", "namespace": namespace},
                "rules": rules,
            },
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": "gateway", "namespace": namespace},
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "gateway"},
                "subjects": [{"kind": "User", "name": user, "apiGroup": group}],
            },
            namespace=namespace,
        )
        environment = {"KUBECONFIG": str(control_plane.kubeconfig_for(user))}
        process = self.stack.enter_context(
            gateway_process(
                self.folder / namespace, token=TOKEN, environment=environment, namespace=namespace, **settings
            )
        )
        return await self.stack.enter_async_context(connected(process))


@pytest.fixture
async def stage(cluster: Cluster, model_folder: Path, tmp_path: Path) -> AsyncIterator[Stage]:
    """See Stage."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    async with AsyncExitStack() as stack:
        yield Stage(cluster, lambda name: StandInWorker(name, model_folder, tokenizer), tmp_path, stack)


async def ask(gateway: Gateway) -> str:
    """Which worker answers."""
    answer = await gateway.client.completions.with_raw_response.create(model=SERVED_NAME, prompt="x y z", max_tokens=2)
    return str(answer.headers[headers.WORKER])


async def test_label_and_readiness_decide_and_the_routing_numbers_travel_with_requests(stage: Stage) -> None:
    namespace = stage.namespace()
    stage.cluster.service(namespace, maxLocalPrefillTokens=700, maxPrefillQueueSize=3)
    first = await stage.worker(namespace, "chat-0")
    second = await stage.worker(namespace, "chat-1", routable="false")
    prefill = await stage.worker(namespace, "chat-2", role="prefill")
    gateway = await stage.gateway(namespace)
    await gateway.knows(first, prefill)
    assert {await ask(gateway) for _ in range(4)} == {"chat-0"}
    assert first.seen[-1].headers[headers.MAX_LOCAL_PREFILL_TOKENS] == "700"
    assert first.seen[-1].headers[headers.MAX_PREFILL_QUEUE_SIZE] == "3"

    stage.cluster.label(namespace, "chat-1", names.ROUTABLE_LABEL, "true")
    await gateway.knows(first, second, prefill)
    stage.cluster.label(namespace, "chat-0", names.ROUTABLE_LABEL, "false")
    await gateway.knows(second, prefill)
    assert {await ask(gateway) for _ in range(4)} == {"chat-1"}

    # a role switch: the prefill worker becomes a decode worker, without any restart
    stage.cluster.label(namespace, "chat-2", names.ROLE_LABEL, "decode")
    stage.cluster.ready(namespace, "chat-1", second.url.split("/")[2].split(":")[0], "False")
    await gateway.knows(prefill)
    assert await ask(gateway) == "chat-2"

    stage.cluster.status("llmservice", SERVICE, namespace, {"routing": {"maxLocalPrefillTokens": 64}})
    await eventually(lambda: bool(gateway.of.logged("routing numbers")[-1]["rule"].count("=64")), "new numbers")
    await ask(gateway)
    assert prefill.seen[-1].headers[headers.MAX_LOCAL_PREFILL_TOKENS] == "64"

    for bound in (5, None):
        stage.cluster.status("llmservice", SERVICE, namespace, {"routing": {"decodingPerDecodeWorker": bound}})
        bounds = str(FlowBounds(decoding_per_decode_worker=bound))
        await eventually(partial(gateway.of.logged, "flow control", bounds=bounds), "a new bound")


async def test_services_of_one_name_in_two_namespaces_never_share_workers(stage: Stage) -> None:
    found = {}
    for number in range(2):
        namespace = stage.namespace()
        stage.cluster.service(namespace, maxLocalPrefillTokens=number, maxPrefillQueueSize=1)
        worker = await stage.worker(namespace, f"chat-of-{number}")
        found[worker] = await stage.gateway(namespace)
    for worker, gateway in found.items():
        await gateway.knows(worker)
        assert {await ask(gateway) for _ in range(5)} == {worker.name}


async def test_with_the_api_server_gone_the_last_known_workers_go_on_serving(stage: Stage) -> None:
    namespace = stage.namespace()
    stage.cluster.service(namespace, maxLocalPrefillTokens=9, maxPrefillQueueSize=1)
    workers = [await stage.worker(namespace, f"chat-{number}") for number in range(2)]
    gateway = await stage.gateway(namespace)
    await gateway.knows(*workers)
    stage.cluster.control_plane.kill(APISERVER)
    try:
        await eventually(lambda: any("listing again" in line["message"] for line in gateway.logs), "the watch broke")
        assert {await ask(gateway) for _ in range(20)} == {"chat-0", "chat-1"}
        async with gateway.http.get(f"{gateway.of.url}/ready") as ready:
            assert ready.status == 200
    finally:
        stage.cluster.control_plane.start_part(APISERVER)
    stage.cluster.label(namespace, "chat-0", names.ROUTABLE_LABEL, "false")
    await gateway.knows(workers[1])


async def test_the_only_gateway_serves_until_its_replacement_is_ready(stage: Stage) -> None:
    namespace = stage.namespace()
    stage.cluster.service(namespace, maxLocalPrefillTokens=9, maxPrefillQueueSize=1)
    worker = await stage.worker(namespace, "chat-0")
    for name in ("own", "replacement"):
        await asyncio.to_thread(stage.cluster.gateway_pod, namespace, name)
    await asyncio.to_thread(stage.cluster.ready, namespace, "own", stage.cluster.address(), "True")
    gateway = await stage.gateway(namespace, pod_name="own", linger_seconds=4, shutdown_seconds=240)
    await gateway.knows(worker)

    gateway.of.process.terminate()
    await eventually(lambda: gateway.of.logged("stopping"), "the gateway stops")
    for _ in range(30):  # longer than it lingers
        await asyncio.sleep(0.2)
        async with gateway.http.get(f"{gateway.of.url}/ready") as ready:
            assert ready.status == 200
        assert await ask(gateway) == "chat-0"

    await asyncio.to_thread(stage.cluster.ready, namespace, "replacement", stage.cluster.address(), "True")
    assert await ask(gateway) == "chat-0"  # Services on other nodes do not know the replacement yet
    assert await asyncio.to_thread(gateway.of.process.wait, 120) == 0
