"""A real operator process under the chart's rights, on the shared control plane, in a namespace of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.crds import until_established
from fixtures.kube_calls import WatchedMirror
from fixtures.mirrors import caught_up
from fixtures.operators import ForkedOperator, OperatorProcess
from pointsman.api.protocol import names
from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.api.v1alpha1.roleswitch import RoleSwitch, SwitchPhase
from pointsman.api.v1alpha1.workerpool import WorkerPool
from pointsman.kube import resources
from pointsman.kube.client import Kube, Object
from pointsman.local.control_plane import ControlPlane
from pointsman.operator.permissions import CLUSTER_RULES, LEASE_RULES
from waiting import until

from .stand_in import StandInKubelet

CRDS = Path(__file__).parents[3] / "charts/pointsman/files/crds"
DEADLINE_S = 150.0
USER = "pointsman-operator-under-test"


@pytest.fixture(scope="session")
def operator_kubeconfig(control_plane: ControlPlane) -> Path:
    """The CRDs, and a user that may do what ``permissions`` says and nothing else."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    until_established(control_plane)
    rules = [rule.manifest() for rule in (*CLUSTER_RULES, *LEASE_RULES)]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    control_plane.apply(
        {**role, "metadata": {"name": USER}, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": USER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
            "subjects": [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}],
        },
    )
    return control_plane.kubeconfig_for(USER)


class Cluster:
    """What a test sees and does: services and pools as they are, and conditions awaited with a deadline."""

    def __init__(self, kube: Kube, namespace: str, kubelet: StandInKubelet, operator: OperatorProcess) -> None:
        self.kube, self.namespace, self.kubelet, self.operator = kube, namespace, kubelet, operator
        self.services = WatchedMirror(kube, resources.LLM_SERVICES, LLMService, namespace=namespace)
        self.pools = WatchedMirror(kube, resources.WORKER_POOLS, WorkerPool, namespace=namespace)
        self.switches = WatchedMirror(kube, resources.ROLE_SWITCHES, RoleSwitch, namespace=namespace)
        self.policies = WatchedMirror(kube, resources.PLANNER_POLICIES, PlannerPolicy, namespace=namespace)
        self.plans = WatchedMirror(kube, resources.PLANS, Plan, namespace=namespace)
        self.events: WatchedMirror[Object] = WatchedMirror(kube, resources.EVENTS, dict, namespace=namespace)

    def mirrors(self) -> tuple[WatchedMirror[Any], ...]:
        """All that must be fed while the test runs."""
        return *self.read_together(), self.policies, self.events

    def read_together(self) -> tuple[WatchedMirror[Any], ...]:
        """Those of which a test reads one after it has waited for another one, as it does with the kubelet's pods."""
        return self.services, self.pools, self.switches, self.plans

    async def until(
        self, mirror: WatchedMirror[Any], condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S
    ) -> None:
        """Wait for something to hold; fails with the operator's last words.

        Then every other mirror is at least as new: what the test reads of it next was not so only before.
        """
        try:
            async with asyncio.timeout(deadline_s):
                await mirror.until(condition)
                others = [each for each in self.read_together() if each is not mirror]
                await asyncio.gather(
                    caught_up(self.kube, self.kubelet.pods, self.namespace, names.SERVICE_LABEL),
                    *(caught_up(self.kube, other, self.namespace) for other in others),
                )
        except TimeoutError:
            self.kubelet.check()
            pods = [
                (p.metadata.name, dict(p.metadata.labels), p.status.phase, p.ready) for p in self.kubelet.pods.objects()
            ]
            said = {s.metadata.name: s.status.manifest() for s in self.services.objects()}
            switches = {s.metadata.name: s.status.manifest() for s in self.switches.objects()}
            plans = {p.metadata.name: p.status.manifest() for p in self.plans.objects()}
            words = self.operator.log[-6000:]
            raise AssertionError(
                f"not within {deadline_s:g} s: {what}\npods: {pods}\nstatus: {said}\nswitches: {switches}\n"
                f"plans: {plans}\noperator:\n{words}"
            ) from None

    async def create(self, name: str = "chat", **spec: Any) -> LLMService:
        """A service with small pools and one gateway."""
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
                "gateway": {"replicas": 1},
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
        saying: str = "",
    ) -> str:
        """Wait for a condition whose message contains `saying`; returns the message."""

        said = ""

        def holds() -> bool:
            nonlocal said
            *found, said = self.condition(kind, name)
            return found[0] == status and (reason is None or found[1] == reason) and saying in said

        await self.until(self.services, holds, f"{kind}={status} {reason or ''} of {name}", deadline_s)
        return said

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

    async def books(self) -> dict[Role, int]:
        """What the pools ask for, as the API server has it now."""
        found = [
            WorkerPool.model_validate(await self.kube.get(resources.WORKER_POOLS, f"chat-{role.label}", self.namespace))
            for role in LANGUAGE_ROLES
        ]
        return {pool.spec.role: pool.spec.replicas for pool in found}

    async def until_layout(self, prefill: int, decode: int) -> None:
        """Wait until so many workers serve, nothing is under way and deleted pods are gone; the pools must ask for
        exactly these."""
        wanted = {Role.PREFILL: prefill, Role.DECODE: decode}
        await self.until_summary(f"{prefill}P{decode}D")
        assert await self.books() == wanted

        def serve() -> bool:
            found = self.kubelet.worker_pods
            right = all(len(found(role)) == len(found(role, routable=True)) == count for role, count in wanted.items())
            return right and not any(pod.terminating for pod in self.kubelet.pods.objects())

        await self.until(self.kubelet.pods, serve, f"{prefill} prefill and {decode} decode workers serve, and no other")

    async def switch(self, source: Role, name: str = "by-hand", **spec: Any) -> RoleSwitch:
        """``kubectl create`` of a RoleSwitch out of a role."""
        target = Role.PREFILL if source is Role.DECODE else Role.DECODE
        body = {
            "metadata": {"name": name},
            "spec": {"serviceRef": {"name": "chat"}, "from": source, "to": target, **spec},
        }
        made = await self.kube.create(resources.ROLE_SWITCHES, body, self.namespace, field_validation="Strict")
        return RoleSwitch.model_validate(made)

    async def until_switch(self, phase: SwitchPhase, name: str = "by-hand") -> RoleSwitch:
        """Wait until a switch says ``phase``."""

        found: RoleSwitch | None = None

        def says() -> bool:
            nonlocal found
            found = self.switches.get(name, self.namespace)
            return found is not None and found.status.phase is phase

        await self.until(self.switches, says, f"switch {name} {phase}")
        assert found is not None
        return found

    async def until_plan(self, phase: PlanPhase, name: str) -> Plan:
        """Wait until a plan says ``phase``."""

        found: Plan | None = None

        def says() -> bool:
            nonlocal found
            found = self.plans.get(name, self.namespace)
            return found is not None and found.status.phase is phase

        await self.until(self.plans, says, f"plan {name} {phase}")
        assert found is not None
        return found

    async def until_policy(self, name: str, kind: str, reason: str) -> str:
        """Wait until a condition of a policy has that reason; returns its message."""

        messages: list[str] = []

        def says() -> bool:
            found = self.policies.get(name, self.namespace)
            said = found.status.conditions if found else ()
            messages[:] = [item.message for item in said if (item.type, item.reason) == (kind, reason)]
            return bool(messages)

        await self.until(self.policies, says, f"{kind} of policy {name} for {reason}")
        return messages[0]

    async def until_said(self, words: str) -> None:
        """Wait until the operator's log has these words."""
        await asyncio.to_thread(until, lambda: words in self.operator.log, f"the operator says {words!r}")

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
    """One operator, started."""
    process = ForkedOperator(operator_kubeconfig, namespace)
    process.start()
    yield process
    process.kill()


@pytest.fixture
async def cluster(kube: Kube, namespace: str, operator: OperatorProcess) -> AsyncIterator[Cluster]:
    """Kubelet, operator and mirrors of one test."""
    async with StandInKubelet(kube, namespace) as kubelet:
        found = Cluster(kube, namespace, kubelet, operator)
        tasks = [asyncio.create_task(mirror.run()) for mirror in found.mirrors()]
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
