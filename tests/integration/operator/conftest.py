"""A real operator process under the chart's rights, on the shared control plane, in a namespace of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.control_plane_process import ControlPlaneProcess
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.workerpool import WorkerPool
from pointsman.kube import resources
from pointsman.kube.client import Kube, Object
from pointsman.kube.mirror import Mirror
from pointsman.local.control_plane import ControlPlane
from pointsman.operator.permissions import CLUSTER_RULES, LEASE_RULES, bind_rule

from .stand_in import StandInKubelet

CRDS = Path(__file__).parents[3] / "charts/pointsman/files/crds"
DEADLINE_S = 200.0
USER = "pointsman-operator-under-test"


@pytest.fixture(scope="session")
def operator_kubeconfig(control_plane: ControlPlane) -> Path:
    """The CRDs, and a user that may do what ``permissions`` says and nothing else."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    control_plane.kubectl("wait", "--for=condition=Established", "-f", str(CRDS), "--timeout=60s")
    rules = [rule.manifest() for rule in (*CLUSTER_RULES, *LEASE_RULES, bind_rule("pointsman-gateway"))]
    # A RoleBinding may only hand out rights one has, or that one may bind: the gateway's role has some of its own.
    gateway_rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    control_plane.apply(
        {**role, "metadata": {"name": USER}, "rules": rules},
        {
            **role,
            "metadata": {"name": "pointsman-gateway"},
            "rules": [*gateway_rules, {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
            "subjects": [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}],
        },
    )
    return control_plane.kubeconfig_for(USER)


class OperatorProcess(ControlPlaneProcess):
    """``python -m pointsman.operator``; ``settings`` are those a test wants otherwise."""

    def __init__(self, kubeconfig: Path, namespace: str, **settings: str) -> None:
        told = {
            "worker_image": "worker:test",
            "gateway_image": "gateway:test",
            "nats_url": "nats://nats.test:4222",
            "nats_user": "pointsman",
            "nats_password": "a-password-of-nats",
        }
        super().__init__("operator", kubeconfig, namespace, **(told | settings))


class Cluster:
    """What a test sees and does: services and pools as they are, and conditions awaited with a deadline."""

    def __init__(self, kube: Kube, namespace: str, kubelet: StandInKubelet, operator: OperatorProcess) -> None:
        self.kube, self.namespace, self.kubelet, self.operator = kube, namespace, kubelet, operator
        self.services = Mirror(kube, resources.LLM_SERVICES, LLMService, namespace=namespace)
        self.pools = Mirror(kube, resources.WORKER_POOLS, WorkerPool, namespace=namespace)
        self.events: Mirror[Object] = Mirror(kube, resources.EVENTS, dict, namespace=namespace)

    async def until(
        self, mirror: Mirror[Any], condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S
    ) -> None:
        """Wait for something to hold; fails with the operator's last words."""
        try:
            async with asyncio.timeout(deadline_s):
                await mirror.until(condition)
        except TimeoutError:
            self.kubelet.check()
            pods = [
                (p.metadata.name, dict(p.metadata.labels), p.status.phase, p.ready) for p in self.kubelet.pods.objects()
            ]
            said = {s.metadata.name: s.status.manifest() for s in self.services.objects()}
            words = self.operator.log[-6000:]
            raise AssertionError(
                f"not within {deadline_s:g} s: {what}\npods: {pods}\nstatus: {said}\noperator:\n{words}"
            ) from None

    async def create(self, name: str = "chat", **spec: Any) -> LLMService:
        """A service with small pools."""
        body = {
            "metadata": {"name": name},
            "spec": {
                "model": {"source": "hf://test/tiny"},
                "worker": {"gpus": 0},
                "pools": {
                    "prefill": {"replicas": 1, "maxReplicas": 4},
                    "decode": {"replicas": 1, "maxReplicas": 4},
                },
                "drain": {"timeoutSeconds": 60},
                **spec,
            },
        }
        made = await self.kube.create(resources.LLM_SERVICES, body, self.namespace, field_validation="Strict")
        return LLMService.model_validate(made)

    async def edit(self, spec: dict[str, Any], name: str = "chat") -> None:
        """``kubectl patch`` of a service's spec."""
        await self.kube.patch(resources.LLM_SERVICES, name, self.namespace, {"spec": spec})

    def service(self, name: str = "chat") -> LLMService | None:
        return self.services.get(name, self.namespace)

    def condition(self, kind: ConditionType, name: str = "chat") -> tuple[str, str, str]:
        """(status, reason, message) of a condition; empty strings while it is not there."""
        found = self.service(name)
        for item in found.status.conditions if found else ():
            if item.type == kind:
                return str(item.status), item.reason, item.message
        return "", "", ""

    async def until_condition(
        self,
        kind: ConditionType,
        status: str,
        reason: str | None = None,
        name: str = "chat",
        deadline_s: float = DEADLINE_S,
    ) -> str:
        """Wait for a condition; returns its message."""

        def holds() -> bool:
            found = self.condition(kind, name)
            return found[0] == status and (reason is None or found[1] == reason)

        await self.until(self.services, holds, f"{kind}={status} {reason or ''} of {name}", deadline_s)
        return self.condition(kind, name)[2]

    async def until_summary(self, summary: str, name: str = "chat", deadline_s: float = DEADLINE_S) -> None:
        """Wait until a service as it is written now is Ready with this summary, and nothing is under way."""

        def holds() -> bool:
            found = self.service(name)
            return (
                found is not None
                and found.status.summary == summary
                and found.status.observed_generation == found.metadata.generation
                and self.condition(ConditionType.READY, name)[0] == "True"
                and self.condition(ConditionType.PROGRESSING, name)[:2] == ("False", "Idle")
            )

        await self.until(self.services, holds, f"summary {summary}, Ready", deadline_s)

    async def until_event(self, reason: str, part: str = "") -> str:
        """Wait for an Event of the operator; returns its note."""

        def notes() -> list[str]:
            return [
                e.get("note", "")
                for e in self.events.objects()
                if e.get("reason") == reason and part in e.get("note", "")
            ]

        await self.until(self.events, lambda: bool(notes()), f"Event {reason} with {part!r}")
        return notes()[0]


@pytest.fixture
async def kube(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    async with await Kube.connect(control_plane.kubeconfig, field_manager="test") as client:
        yield client


@pytest.fixture
def operator(operator_kubeconfig: Path, namespace: str) -> Iterator[OperatorProcess]:
    """The process, started."""
    process = OperatorProcess(operator_kubeconfig, namespace)
    process.start()
    yield process
    process.kill()


@pytest.fixture
async def cluster(kube: Kube, namespace: str, operator: OperatorProcess) -> AsyncIterator[Cluster]:
    """Kubelet, operator and mirrors of one test."""
    async with StandInKubelet(kube, namespace) as kubelet:
        found = Cluster(kube, namespace, kubelet, operator)
        tasks = [asyncio.create_task(mirror.run()) for mirror in (found.services, found.pools, found.events)]
        try:
            yield found
        finally:
            # A finalizer would keep the namespace: nobody drains after this test.
            for item in found.services.objects():
                await kube.patch(
                    resources.LLM_SERVICES, item.metadata.name, namespace, {"metadata": {"finalizers": []}}
                )
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
