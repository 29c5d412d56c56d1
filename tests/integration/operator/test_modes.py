"""The modes of a policy: who may change a service, and what is left alone."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fixtures.kube_calls import WatchedMirror
from pointsman.api.protocol.names import API_VERSION, Role
from pointsman.api.v1alpha1.plan import Plan, PlanPhase, PlanReason
from pointsman.kube import resources
from pointsman.local.control_plane import ControlPlane

from .conftest import Cluster


class Decisions:
    """Policy and plans of the service ``chat``, written as the planner writes them."""

    def __init__(self, cluster: Cluster, control_plane: ControlPlane) -> None:
        self.cluster = cluster
        self.plans = WatchedMirror(cluster.kube, resources.PLANS, Plan, namespace=cluster.namespace)
        self._control_plane = control_plane
        self._number = 0

    def kubectl(self, *arguments: str) -> str:
        """As a person types it, in the namespace of the test."""
        return self._control_plane.kubectl("-n", self.cluster.namespace, *arguments)

    async def policy(self, mode: str) -> None:
        """The policy ``chat``, in ``mode`` from now on."""
        spec = {"mode": mode, "objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 8}}
        metadata = {"name": "chat", "namespace": self.cluster.namespace}
        body = {"apiVersion": API_VERSION, "kind": "PlannerPolicy", "metadata": metadata, "spec": spec}
        await self.cluster.kube.apply(resources.PLANNER_POLICIES, body)

    async def plan(self, mode: str, prefill: int, decode: int, **spec: Any) -> str:
        """One plan for that layout by scaling alone; its name."""
        self._number += 1
        now = datetime.now(UTC)
        body = {
            "apiVersion": API_VERSION,
            "kind": "Plan",
            "metadata": {"name": f"chat-{self._number:05}", "namespace": self.cluster.namespace},
            "spec": {
                "serviceRef": {"name": "chat"},
                "sequence": self._number,
                "mode": mode,
                "observedAt": now.isoformat(),
                "pools": {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}},
                "routing": {"maxLocalPrefillTokens": 640, "maxPrefillQueueSize": 8},
                "changesLayout": True,
                "reason": "DecodeShort",
                "message": "a test's decision",
                "expiresAt": (now + timedelta(minutes=5)).isoformat(),
                **spec,
            },
        }
        await self.cluster.kube.create(resources.PLANS, body)
        return f"chat-{self._number:05}"

    async def until(self, name: str, holds: Callable[[Plan], bool], what: str) -> Plan:
        """Wait for something of a plan."""

        def found() -> bool:
            plan = self.plans.get(name, self.cluster.namespace)
            return plan is not None and holds(plan)

        await self.cluster.until(self.plans, found, f"{name}: {what}")
        plan = self.plans.get(name, self.cluster.namespace)
        assert plan is not None
        return plan

    async def ended(self, name: str, phase: PlanPhase) -> Plan:
        """Wait for the end of a plan, which must be this one."""
        plan = await self.until(name, lambda p: p.status.phase is not None and p.status.phase.ended, "ended")
        assert plan.status.phase is phase, plan.status
        return plan

    def replicas(self) -> dict[Role, int]:
        """What the pools ask for."""
        return {pool.spec.role: pool.spec.replicas for pool in self.cluster.pools.objects()}


@pytest.fixture
async def decisions(cluster: Cluster, control_plane: ControlPlane) -> AsyncIterator[Decisions]:
    """The service ``chat`` at 1P1D under a policy, which each test puts into its mode."""
    made = Decisions(cluster, control_plane)
    watching = asyncio.create_task(made.plans.run())
    await made.policy("Shadow")
    await cluster.create(policyRef={"name": "chat"})
    await cluster.until_summary("1P1D")
    yield made
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_shadow_records_a_plan_and_changes_nothing(cluster: Cluster, decisions: Decisions) -> None:
    name = await decisions.plan("Shadow", 2, 3)
    plan = await decisions.ended(name, PlanPhase.SHADOW)
    assert plan.status.reason == PlanReason.RECORDED
    decisions.kubectl("scale", "wpool", "chat-decode", "--replicas=2")
    await cluster.until_summary("1P2D")
    assert decisions.replicas() == {Role.PREFILL: 1, Role.DECODE: 2}, "kubectl scale stands, the plan does not"
    service = cluster.service()
    assert service is not None
    assert service.status.routing is None or service.status.routing.set_by != f"plan/{name}"


async def test_a_plan_waits_until_a_person_types_what_its_status_says(cluster: Cluster, decisions: Decisions) -> None:
    await decisions.policy("Approve")
    name = await decisions.plan("Approve", 1, 2, approval={"required": True})
    plan = await decisions.until(name, lambda p: p.status.phase is PlanPhase.AWAITING_APPROVAL, "waits")
    assert plan.status.message is not None
    assert decisions.replicas() == {Role.PREFILL: 1, Role.DECODE: 1}
    program, *arguments = shlex.split(plan.status.message.partition(": ")[2])
    assert program == "kubectl"
    decisions.kubectl(*arguments)
    await decisions.ended(name, PlanPhase.COMPLETED)
    await cluster.until_summary("1P2D")
