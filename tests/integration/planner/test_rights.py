"""The rights that the chart grants the planner are those that it uses, as the API server's audit log says.

In one namespace and in all. Every other test of this folder has a planner with the same rules and no others.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.audit import audit_mark, missing_rights, used_rights
from fixtures.chart_accounts import ChartAccount, chart_account, watched
from fixtures.control_plane_process import ControlPlaneProcess
from integration.planner.live_loads import LONG, earlier_plan
from pointsman.api.protocol import names
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.kube import resources
from pointsman.local.control_plane import ControlPlane
from pointsman.planner.health import health_of
from pointsman.planner.plan_writer import KEPT_PLANS
from waiting import eventually

from .conftest import World

GROUP = "long-chat"


@pytest.fixture
def account(
    installed_crds: ControlPlane, binary: Callable[[str], Path], namespace: str, watches: str
) -> Iterator[ChartAccount]:
    with chart_account(installed_crds, binary, "planner", watches, namespace) as found:
        yield found


@watched
async def test_the_planner_uses_every_right_it_is_granted_and_no_other(
    world: World, control_plane: ControlPlane, account: ChartAccount
) -> None:
    world.planner = ControlPlaneProcess("planner", account.kubeconfig, lease_seconds="9", **account.settings)
    since = audit_mark(control_plane)
    await world.policy()
    await world.service()
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticGroup",
        "metadata": {"name": GROUP, "namespace": world.namespace},
        "spec": {
            "model": {"source": "hf://test/tiny"},
            "instances": {"replicas": 1, "maxReplicas": 4},
            "policyRef": {"name": "prometheus"},
        },
    }
    metrics = {
        "prometheusUrl": "http://127.0.0.1:9",
        "prometheusSecretRef": {"name": "pointsman-prometheus"},
    }
    policy = {
        "apiVersion": names.API_VERSION,
        "kind": "PlannerPolicy",
        "metadata": {"name": "prometheus", "namespace": world.namespace},
        "spec": {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 5}, "metrics": metrics},
    }
    await world.kube.create(resources.PLANNER_POLICIES, policy)
    await world.kube.create(resources.ELASTIC_GROUPS, body)
    outdated = [await earlier_plan(world, sequence, PlanPhase.COMPLETED) for sequence in range(1, KEPT_PLANS + 2)]
    world.planner.start()
    load = asyncio.create_task(world.load(**LONG))

    async def group_has_a_condition() -> bool:
        found = await world.kube.get(resources.ELASTIC_GROUPS, GROUP, world.namespace)
        return health_of(ElasticGroup.model_validate(found).status.conditions) is not None

    def plans() -> set[str]:
        return {plan.metadata.name for plan in world.layouts()}

    try:
        await world.until(lambda: bool(plans() - set(outdated)), "a plan is written")
        await world.until(lambda: outdated[0] not in plans(), "an outdated plan is deleted")
        await eventually(group_has_a_condition, "the group says how it is planned")
    finally:
        load.cancel()
    world.planner.stop()
    assert missing_rights(control_plane, account.user, since) == []
    assert account.rights - used_rights(control_plane, account.user, since) == set()
