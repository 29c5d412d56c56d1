"""A real planner process on the shared control plane, and pods whose /metrics a test writes."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fixtures.control_plane_process import ControlPlaneProcess
from fixtures.kube_calls import WatchedMirror
from fixtures.mirrors import caught_up
from pointsman.api.protocol import metrics as named
from pointsman.api.protocol import names
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plan import Plan
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.local.control_plane import ControlPlane
from pointsman.planner.permissions import CLUSTER_RULES, LEASE_RULES
from waiting import eventually

DEADLINE_S = 120.0
CONTENT_TYPE = {"Content-Type": CONTENT_TYPE_LATEST}  # Prometheus reads nothing that does not say what it is
USER = "pointsman-planner-under-test"


ONLY_SWITCHES = {
    "scaleOut": {"enabled": False},
    "scaleIn": {"enabled": False},
}


class Page:
    """The /metrics of one pod: gateway and engine families, made with the library that makes the real ones."""

    def __init__(self, tokens: Sequence[float] = (128, 512, 2048, 8192)) -> None:
        """``tokens`` are the bounds of the buckets of prompts' lengths."""
        self.registry = CollectorRegistry()
        self.failing = False
        self.arrivals = self._made(Counter, named.GATEWAY_ARRIVALS)
        self.arrivals.labels("chat", "completions")
        self.accepted = self._made(Counter, named.GATEWAY_ACCEPTED)
        self.accepted.labels("chat")
        self.first_tokens = self._made(Counter, named.GATEWAY_FIRST_TOKENS)
        self.ended = self._made(Counter, named.GATEWAY_ENDED)
        self.objective = self._made(Gauge, named.GATEWAY_OBJECTIVE)
        self.ttft = self._made(Histogram, named.GATEWAY_TTFT, buckets=(0.25, 0.5, 1.0, 2.0, 4.0))
        self.tpot = self._made(Histogram, named.GATEWAY_TPOT, buckets=(0.01, 0.025, 0.05, 0.1))
        self.prompts = self._made(Histogram, named.GATEWAY_PROMPT_TOKENS, buckets=tokens)
        self.outputs = self._made(Histogram, named.GATEWAY_OUTPUT_TOKENS, buckets=(16, 64, 256))
        self.depth = self._made(Gauge, named.WORKER_QUEUE_DEPTH)
        self.prefill_time = Histogram("vllm:request_prefill_time_seconds", "x", registry=self.registry)
        self.computed = Histogram(
            "vllm:request_prefill_kv_computed_tokens", "x", buckets=(128, 512, 2048, 8192), registry=self.registry
        )
        self.steps = Histogram("vllm:inter_token_latency_seconds", "x", registry=self.registry)
        self.running = Gauge("vllm:num_requests_running", "x", registry=self.registry)

    def _made(self, kind: Any, metric: named.Metric, **fields: Any) -> Any:
        made = kind(metric.name, metric.help, metric.labels, registry=self.registry, **fields)
        if metric.labels == ("service",):
            made.labels("chat")  # a gateway shows it from its start
        return made

    def requests(self, count: int, *, prompt: int, output: int, ttft_s: float, tpot_s: float) -> None:
        """So many requests were answered."""
        for _ in range(count):
            self.arrivals.labels("chat", "completions").inc()
            self.accepted.labels("chat").inc()
            self.ttft.labels("chat", "local").observe(ttft_s)
            self.tpot.labels("chat", "local").observe(tpot_s)
            self.prompts.labels("chat").observe(prompt)
            self.outputs.labels("chat").observe(output)

    def engine(self, *, prefill_ms: float, tokens: int, step_ms: float, batch: int) -> None:
        """So long a prefill and a decode step took, two of each."""
        for _ in range(2):
            self.prefill_time.observe(prefill_ms / 1000)
            self.computed.observe(tokens)
            self.steps.observe(step_ms / 1000)
        self.running.set(batch)


class GatewayPage(Page):
    """The /metrics of a gateway as the gateway's own code counts."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = GatewayMetrics("chat")
        self.registry = self.metrics.registry

    def requests(self, count: int, *, prompt: int, output: int, ttft_s: float, tpot_s: float) -> None:
        path = self.metrics.by_path("local")
        for _ in range(count):
            self.metrics.arrived("completions")
            self.metrics.accepted.inc()
            path.ttft.observe(ttft_s)
            path.tpot.observe(tpot_s)
            self.metrics.prompt_tokens.observe(prompt)
            self.metrics.finished(prompt, output)


class World:
    """A service with a policy, pods with addresses and pages, and the plans the planner makes."""

    def __init__(self, kube: Kube, kubeconfig: Path, namespace: str, planner: ControlPlaneProcess) -> None:
        self.kube, self.kubeconfig, self.namespace, self.planner = kube, kubeconfig, namespace, planner
        self.plans = WatchedMirror(kube, resources.PLANS, Plan, namespace=namespace)
        self.services = WatchedMirror(kube, resources.LLM_SERVICES, LLMService, namespace=namespace)
        self.pages: dict[str, Page] = {}
        self.runners: list[web.AppRunner] = []
        self._addresses: dict[str, str] = {}
        self._network = f"127.{77 + secrets.randbelow(30)}.{secrets.randbelow(250)}"

    async def policy(self, **fields: Any) -> None:
        """The policy ``chat``: quick ticks and no scaling, unless told otherwise."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "PlannerPolicy",
            "metadata": {"name": "chat", "namespace": self.namespace},
            "spec": {
                "mode": "Active",
                "objectives": {"ttftMs": 1000, "tpotMs": 50},
                "budget": {"maxGpus": 5},
                "metrics": {"intervalSeconds": 0.3, "staleAfterSeconds": 5},
                "actions": ONLY_SWITCHES,
                **fields,
            },
        }
        await self.kube.apply(resources.PLANNER_POLICIES, body)

    async def service(self, gateway: Page | None = None, **spec: Any) -> LLMService:
        """The service ``chat`` under that policy, two prefill and three decode workers, one gateway.

        ``gateway``: its page; by default a new one.
        """
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "LLMService",
            "metadata": {"name": "chat", "namespace": self.namespace},
            "spec": {
                "model": {"source": "hf://test/tiny"},
                "worker": {"gpus": 0},
                "pools": {
                    "prefill": {"replicas": 2, "maxReplicas": 4},
                    "decode": {"replicas": 3, "maxReplicas": 4},
                },
                "policyRef": {"name": "chat"},
                **spec,
            },
        }
        made = await self.kube.create(resources.LLM_SERVICES, body)
        for number, role in enumerate(["prefill"] * 2 + ["decode"] * 3):
            await self.pod(f"chat-{number}", number, {names.ROLE_LABEL: role, names.ROUTABLE_LABEL: "true"}, "worker")
        await self.pod("gateway", 9, {}, "gateway", gateway)
        return LLMService.model_validate(made)

    async def pod(
        self, name: str, number: int, labels: dict[str, str], component: str, page: Page | None = None
    ) -> None:
        """A ready pod that serves its page on port 8000 of an address of its own."""
        address, page = f"{self._network}.{number + 1}", page or Page()
        self.pages[name] = page
        self._addresses[name] = f"{address}:{names.ENGINE_PORT}"

        async def metrics(_: web.Request) -> web.Response:
            if page.failing:
                return web.Response(status=500)
            return web.Response(body=generate_latest(page.registry), headers=CONTENT_TYPE)

        app = web.Application()
        app.router.add_get("/metrics", metrics)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, address, names.ENGINE_PORT).start()
        self.runners.append(runner)
        marks = {names.SERVICE_LABEL: "chat", names.COMPONENT_LABEL: component, **labels}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": marks},
            # No scheduler binds it: on a node that does not exist garbage collection would end it.
            "spec": {"containers": [{"name": "engine", "image": "stand-in"}], "schedulerName": "nobodys"},
        }
        await self.kube.create(resources.PODS, body)
        conditions = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "podIP": address, "conditions": conditions}
        await self.kube.patch(resources.PODS, name, self.namespace, {"status": status}, subresource="status")

    def address(self, name: str) -> str:
        """``host:port`` of a pod's page."""
        return self._addresses[name]

    async def load(self, seconds: float = 600.0, **requests: Any) -> None:
        """Fifty requests a second, however busy the computer; every worker prefills two prompts in a tenth of one.

        No prompt of these tests takes longer than 40 ms, so an engine is never shown to do several at a time. Without
        ``seconds`` it lasts longer than any test.
        """
        clock = asyncio.get_running_loop().time
        begin, done = clock(), 0
        while clock() < begin + seconds:
            for _ in range(int((clock() - begin) / 0.1) + 1 - done):
                done += 1
                self.pages["gateway"].requests(5, **requests)
                for name, page in self.pages.items():
                    if name != "gateway":
                        tokens = requests["prompt"]
                        page.engine(prefill_ms=0.01 * tokens, tokens=tokens, step_ms=8, batch=4)
                        page.depth.set(0)
            await asyncio.sleep(0.1)  # the load's own pace, not a wait for something

    async def exported(self, name: str) -> list[Sample]:
        """The samples of a name that the planner's own /metrics has."""
        url = f"http://127.0.0.1:{self.planner.port}/metrics"
        async with ClientSession() as session, session.get(url) as answer:
            families = text_string_to_metric_families(await answer.text())
        return [sample for family in families for sample in family.samples if sample.name == name]

    async def looks(self) -> dict[str, float]:
        """How often the planner has decided, by the reason."""
        samples = await self.exported("pointsman_planner_ticks_total")
        return {sample.labels["reason"]: sample.value for sample in samples}

    async def looked_again(self, times: int) -> dict[str, float]:
        """Wait until it has decided so many times more; what it decided in them, by the reason."""
        before = await self.looks()

        async def since() -> dict[str, float]:
            return {reason: count - before.get(reason, 0.0) for reason, count in (await self.looks()).items()}

        async def enough() -> bool:
            return sum((await since()).values()) >= times

        await eventually(enough, f"{times} more decisions")
        return {reason: count for reason, count in (await since()).items() if count}

    async def until(self, condition: Callable[[], bool], what: str, mirror: WatchedMirror[Any] | None = None) -> None:
        """Wait for something to hold; fails with the planner's last words. Then the other mirror is at least as new."""
        other = self.plans if mirror is self.services else self.services
        try:
            async with asyncio.timeout(DEADLINE_S):
                await (mirror if mirror is not None else self.plans).until(condition)
                await caught_up(self.kube, other, self.namespace)
        except TimeoutError:
            plans = [(p.metadata.name, p.spec.reason, p.spec.message) for p in self.plans.objects()]
            raise AssertionError(
                f"not within {DEADLINE_S:g} s: {what}\nplans: {plans}\nplanner:\n{self.planner.log[-5000:]}"
            ) from None

    def layouts(self) -> list[Plan]:
        """Plans that change the layout, oldest first."""
        found = [plan for plan in self.plans.objects() if plan.spec.changes_layout]
        return sorted(found, key=lambda plan: plan.spec.sequence)


@pytest.fixture(scope="session")
def planner_kubeconfig(installed_crds: ControlPlane) -> Path:
    """Of a user that may do what ``permissions`` says and nothing else."""
    group = "rbac.authorization.k8s.io"
    rules = [rule.manifest() for rule in (*CLUSTER_RULES, *LEASE_RULES)]
    installed_crds.apply(
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": USER}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": USER},
            "subjects": [{"kind": "User", "name": USER, "apiGroup": group}],
        },
    )
    return installed_crds.kubeconfig_for(USER)


@pytest.fixture
async def world(installed_crds: ControlPlane, planner_kubeconfig: Path, namespace: str) -> AsyncIterator[World]:
    kube = await Kube.connect(installed_crds.kubeconfig, field_manager="test")
    # A planner that stands still for two thirds of it ends, and here is nobody who would start it again.
    process = ControlPlaneProcess("planner", planner_kubeconfig, namespace, lease_seconds="9")
    made = World(kube, installed_crds.kubeconfig, namespace, process)
    mirrors = [asyncio.create_task(made.plans.run()), asyncio.create_task(made.services.run())]
    try:
        await made.plans.synced.wait()
        await made.services.synced.wait()
        yield made
    finally:
        made.planner.stop()
        for task in mirrors:
            task.cancel()
        await asyncio.gather(*mirrors, return_exceptions=True)
        for runner in made.runners:
            await runner.cleanup()
        await kube.close()
