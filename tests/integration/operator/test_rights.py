"""The rights that the chart grants the operator are those that it uses, as the API server's audit log says.

In one namespace and in all, at an API server with OwnerReferencesPermissionEnforcement. Every other test of this folder
has an operator with the same rules and no others.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from fixtures.audit import audit_mark, missing_rights, used_rights
from fixtures.chart_accounts import ChartAccount, chart_account, watched
from fixtures.operators import ForkedOperator, OperatorProcess
from pointsman.api.protocol.names import FINALIZER, GROUP, Role
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.kube import resources
from pointsman.kube.client import Object
from pointsman.local.control_plane import ControlPlane
from waiting import eventually

from . import elastic_groups as groups
from .conftest import Cluster
from .plan_objects import layout, plan

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


@pytest.fixture
def account(
    control_plane: ControlPlane, binary: Callable[[str], Path], namespace: str, watches: str
) -> Iterator[ChartAccount]:
    with chart_account(control_plane, binary, "operator", watches, namespace) as found:
        yield found


@pytest.fixture
def operator(operator_kubeconfig: Path, account: ChartAccount, audited_since: int) -> Iterator[OperatorProcess]:
    """One operator with the chart's account, started. ``operator_kubeconfig`` has the CRDs made."""
    process = ForkedOperator(account.kubeconfig, **account.settings)
    process.start()
    yield process
    process.kill()


@watched
async def test_the_operator_uses_every_right_it_is_granted_and_no_other(
    audited_since: int, cluster: Cluster, control_plane: ControlPlane, account: ChartAccount
) -> None:
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
    assert account.rights >= ASKED_BY_ADMISSION
    cluster.operator.stop()
    assert missing_rights(control_plane, account.user, audited_since) == []
    assert account.rights - used_rights(control_plane, account.user, audited_since) - ASKED_BY_ADMISSION == set()
