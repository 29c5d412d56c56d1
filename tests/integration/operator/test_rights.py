"""Every right that the operator is granted is used, as the API server's audit log says; those it lacks it never needs.

That no right is missing every test of this folder shows: its operator has these rights and no others, at an API server
with OwnerReferencesPermissionEnforcement.
"""

from typing import Final

import pytest

from fixtures.audit import audit_mark, granted_rights, used_rights
from pointsman.api.protocol.names import FINALIZER, GROUP, Role
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.kube import resources
from pointsman.kube.client import Object
from pointsman.local.control_plane import ControlPlane
from pointsman.operator.permissions import CLUSTER_RULES, LEASE_RULES
from waiting import eventually

from . import test_elastic as groups
from .conftest import USER, Cluster
from .test_plans import layout, plan

ASKED_BY_ADMISSION: Final = {
    (GROUP, "llmservices/finalizers", "update"),
    (GROUP, "elasticgroups/finalizers", "update"),
    (GROUP, "roleswitches", "delete"),
}
"""Rights that the API server asks of who writes owner references. No request has these verbs."""


@pytest.fixture
def audited_since(control_plane: ControlPlane) -> int:
    """Before the operator starts."""
    return audit_mark(control_plane)


async def test_every_right_of_the_operator_is_used(
    audited_since: int, cluster: Cluster, control_plane: ControlPlane
) -> None:
    granted = granted_rights((*CLUSTER_RULES, *LEASE_RULES))
    await layout(cluster, 1, 2, Mode.ACTIVE)
    await groups.create(cluster, policyRef={"name": "chat"})
    service = cluster.service()
    assert service is not None
    # A pod that takes the name of the next worker is looked at.
    taken = {"name": f"chat-{service.status.revision}-3", "labels": {"app": "somebody-else"}}
    pod = {"metadata": taken, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await cluster.kube.create(resources.PODS, pod, cluster.namespace)
    await cluster.until_plan(PlanPhase.COMPLETED, await plan(cluster, 1, 2, 2, switches=1))
    await cluster.switch(Role.PREFILL)
    await cluster.until_switch(SwitchPhase.COMPLETED)
    # A worker without a node: its Events say whether a node is being made for it.
    cluster.kubelet.places_workers = False
    unschedulable = await plan(cluster, 2, 1, 4)
    await groups.plan(cluster, 1, 3)

    async def group_is_scaled() -> bool:
        return (await groups.status(cluster)).spec.instances.replicas == 3

    await eventually(group_is_scaled, "the plan of the group is carried out")
    # An Event that is repeated is counted, at the latest when the operator ends.
    bare: Object = {"metadata": {"finalizers": []}}
    without = await cluster.kube.patch(resources.LLM_SERVICES, "chat", cluster.namespace, bare)

    def has_it_again() -> bool:
        found = cluster.service()
        assert found is not None
        is_newer = int(found.metadata.resource_version) > int(without["metadata"]["resourceVersion"])
        return is_newer and FINALIZER in found.metadata.finalizers

    await cluster.until(cluster.services, has_it_again, "the finalizer is there again")
    await cluster.until_plan(PlanPhase.FAILED, unschedulable)
    await cluster.kube.delete(resources.LLM_SERVICES, "chat", cluster.namespace)
    await cluster.until(cluster.services, lambda: cluster.service() is None, "the service is gone")
    assert granted >= ASKED_BY_ADMISSION
    cluster.operator.stop()
    assert granted - used_rights(control_plane, USER, audited_since) - ASKED_BY_ADMISSION == set()
