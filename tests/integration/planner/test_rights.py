"""Every right that the planner is granted is used, as the API server's audit log says.

That no right is missing every test of this folder shows: its planner has these rights and no others.
"""

import asyncio

from fixtures.audit import audit_mark, granted_rights, used_rights
from pointsman.api.protocol import names
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.kube import resources
from pointsman.local.control_plane import ControlPlane
from pointsman.planner.health import health_of
from pointsman.planner.permissions import CLUSTER_RULES, LEASE_RULES
from waiting import eventually

from .conftest import USER, World
from .test_live_loop import LONG, earlier_plan

GROUP = "long-chat"


async def test_every_right_of_the_planner_is_used(world: World, control_plane: ControlPlane) -> None:
    since = audit_mark(control_plane)
    await world.policy(history={"plans": 1})
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
        "source": "Prometheus",
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
    outdated = [await earlier_plan(world, sequence, PlanPhase.COMPLETED) for sequence in (1, 2)]
    world.planner.start()
    load = asyncio.create_task(world.load(50, **LONG))

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
    assert granted_rights((*CLUSTER_RULES, *LEASE_RULES)) - used_rights(control_plane, USER, since) == set()
