"""Loads of the live loop, and what its planner shows."""

import asyncio
from datetime import UTC, datetime

import pytest

from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.kube import resources
from pointsman.planner.explain import command as explain

from .conftest import World

SILENCE = Condition(
    type="PlannerHealthy",
    status=ConditionStatus.UNKNOWN,
    reason="Silent",
    last_transition_time=datetime.fromtimestamp(0, UTC),
)
SHORT = {"prompt": 100, "output": 200, "ttft_s": 0.1, "tpot_s": 0.008}
LIGHT = {**SHORT, "output": 16}
LONG = {"prompt": 4000, "output": 16, "ttft_s": 0.6, "tpot_s": 0.008}


def health(world: World) -> Condition:
    """What the planner says of itself about the service; with no reason while it says nothing."""
    found = [c for s in world.services.objects() for c in s.status.conditions if c.type == "PlannerHealthy"]
    return found[0] if found else SILENCE


async def healthy(world: World, status: ConditionStatus) -> None:
    await world.until(lambda: health(world).status is status, f"PlannerHealthy {status}", world.services)


async def explained(
    world: World, capsys: pytest.CaptureFixture[str], service: str, *options: str, status: int = 0
) -> str:
    """What ``pointsman explain`` says on this cluster."""
    arguments = [service, *options, "--namespace", world.namespace, "--kubeconfig", str(world.kubeconfig)]
    assert await asyncio.to_thread(explain.main, arguments) == status
    said = capsys.readouterr()
    return said.out + said.err


async def earlier_plan(world: World, sequence: int, phase: PlanPhase, *, asked: bool = False) -> str:
    """A plan of earlier days that changed the layout, after 2P3D; its name. ``asked``: a person must approve it."""
    name, then = f"chat-{sequence:05}", datetime.now(UTC)
    body = {
        "metadata": {"name": name},
        "spec": {
            "serviceRef": {"name": "chat"},
            "sequence": sequence,
            "mode": "Active",
            "observedAt": then.isoformat(),
            "expiresAt": then.isoformat(),
            "pools": {"prefill": {"replicas": 2}, "decode": {"replicas": 3}},
            "routing": {"maxLocalPrefillTokens": 512, "maxPrefillQueueSize": 8},
            "changesLayout": True,
            "reason": "PrefillShort",
            "message": "long ago",
            "approval": {"required": asked},
        },
    }
    await world.kube.create(resources.PLANS, body, world.namespace)
    await world.kube.patch(resources.PLANS, name, world.namespace, {"status": {"phase": phase}}, subresource="status")
    return name
