"""What the operator reads while something runs: the objects that run, as they are now, not all of their namespace."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from fixtures.fault_proxy import FaultProxy, Request, Silence
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.kube import resources
from waiting import eventually

from .conftest import Cluster
from .plan_objects import layout, plan, policy, scale
from .proxied import operator as operator
from .proxied import proxy as proxy

_KINDS = ("/plans", "/roleswitches")


async def _plan_of_another(cluster: Cluster, number: int) -> None:
    """A plan that waits for a person, of a service that is not there."""
    now = datetime.now(UTC)
    body = {
        "metadata": {"name": f"other-{number:05}"},
        "spec": {
            "serviceRef": {"name": "other"},
            "sequence": number,
            "mode": Mode.APPROVE,
            "observedAt": now.isoformat(),
            "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}},
            "routing": {"maxLocalPrefillTokens": 1, "maxPrefillQueueSize": 1},
            "changesLayout": True,
            "reason": "PrefillShort",
            "message": "long prompts",
            "expiresAt": (now + timedelta(hours=1)).isoformat(),
            "approval": {"required": True},
        },
    }
    await cluster.kube.create(resources.PLANS, body, cluster.namespace, field_validation="Strict")


async def test_a_switch_and_a_plan_that_run_are_read_by_their_names(
    cluster: Cluster,
    proxy: FaultProxy,
) -> None:
    await layout(cluster, 1, 3, Mode.ACTIVE)
    await asyncio.gather(*(_plan_of_another(cluster, number) for number in range(1, 21)))
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 1
    proxy.requests.clear()
    name = await plan(cluster, 1, 2, 2, switches=1)
    await cluster.until_switch(SwitchPhase.DRAINING, f"{name}-0")
    # The phase may be written while the worker is still being asked.
    await eventually(lambda: any(worker.drained.is_set() for worker in cluster.kubelet.workers.values()), "one drains")
    busy = next(worker for worker in cluster.kubelet.workers.values() if worker.drained.is_set())
    for _ in range(10):
        await busy.answered.wait()  # a look
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 0
    await cluster.until_plan(PlanPhase.COMPLETED, name)
    await cluster.until_layout(2, 2)
    read = [r for r in proxy.requests if r.method == "GET" and not r.watch and r.path.endswith(_KINDS)]
    assert len(read) > 10
    by_name = {kind: ["metadata.name" in r.query for r in read if r.path.endswith(kind)] for kind in _KINDS}
    assert all(by_name["/plans"])
    until_mirrored = by_name["/roleswitches"].index(True)
    assert all(by_name["/roleswitches"][until_mirrored:]), "all are read only while one just made is not mirrored yet"
    ended = [request for request in read if "other-" in request.query]
    assert ended == [], "another service's plans are not read for this one"
    assert Role.PREFILL in await cluster.books()


@pytest.fixture
async def old_policy(cluster: Cluster, proxy: FaultProxy) -> Callable[[], Awaitable[None]]:
    """From its call on, the operator learns of no edit of a policy by its watch."""

    def silent(request: Request) -> Silence | None:
        return Silence(0) if request.watch and "/plannerpolicies" in request.path else None

    async def begin() -> None:
        proxy.plan = silent
        proxy.requests.clear()
        proxy.cut()
        await eventually(lambda: any(silent(request) for request in proxy.requests), "the policies are watched again")

    return begin


async def test_a_plan_is_carried_out_under_the_policy_as_it_is_however_old_the_operators_copy_is(
    cluster: Cluster, old_policy: Callable[[], Awaitable[None]]
) -> None:
    await layout(cluster, 1, 1, Mode.SHADOW)
    await old_policy()
    await policy(cluster, Mode.ACTIVE)
    await cluster.until_plan(PlanPhase.COMPLETED, await plan(cluster, 1, 1, 2))
    await cluster.until_layout(1, 2)


async def test_what_people_scale_under_an_external_policy_stays_however_old_the_operators_copy_is(
    cluster: Cluster, old_policy: Callable[[], Awaitable[None]]
) -> None:
    await layout(cluster, 1, 1, Mode.ACTIVE)
    await old_policy()
    await policy(cluster, Mode.EXTERNAL)
    await scale(cluster, "chat-decode", 2)
    await cluster.until_layout(1, 2)
    assert not [event for event in cluster.events.objects() if event.get("reason") == "ReplicasPutBack"]
