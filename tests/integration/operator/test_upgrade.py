"""Custom resources of an earlier commit are replaced by the present ones and come back, while a service runs.

``crds_055ea15.json`` are that version's CRDs without their descriptions, ``crds_ec6a7b8.json`` those of the last
version without encode workers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.crds import until_established
from pointsman.api.protocol.names import LANGUAGE_ROLES, REVISION_LABEL, Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.kube import resources
from pointsman.kube.errors import Invalid
from pointsman.local.control_plane import ControlPlane
from waiting import eventually

from .clients import MODEL, Clients, clients_of, serve_requests
from .conftest import CRDS, Cluster

EARLIER = Path(__file__).with_name("crds_055ea15.json")
WITHOUT_ENCODE = Path(__file__).with_name("crds_ec6a7b8.json")


def install(control_plane: ControlPlane, source: Path) -> None:
    """What helm does with CRDs at an upgrade and at a rollback."""
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(source))
    until_established(control_plane)


@pytest.fixture
def earlier_crds(
    control_plane: ControlPlane, operator_kubeconfig: Path, request: pytest.FixtureRequest
) -> Iterator[None]:
    """The earlier CRDs; the present ones again at the end."""
    install(control_plane, request.param)
    yield
    install(control_plane, CRDS)


async def gateway_environment(cluster: Cluster) -> dict[str, Any]:
    """What the gateway's pods are told."""
    found = await cluster.kube.get(resources.DEPLOYMENTS, "chat-gateway", cluster.namespace)
    container = found["spec"]["template"]["spec"]["containers"][0]
    return {item["name"]: item.get("value") for item in container["env"]}


@pytest.mark.parametrize("earlier_crds", [EARLIER], indirect=True, ids=lambda path: path.stem)
@pytest.mark.usefixtures("earlier_crds")
async def test_upgrade_and_rollback_restart_scale_and_refuse_nothing(
    cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    serve_requests(cluster, tmp_path)
    shadow = {"mode": "Shadow", "objectives": {"ttftMs": 900, "tpotMs": 30}, "budget": {"maxGpus": 8}}
    await cluster.kube.create(
        resources.PLANNER_POLICIES, {"metadata": {"name": "chat"}, "spec": shadow}, cluster.namespace
    )
    pools = {"prefill": {"replicas": 1}, "decode": {"replicas": 2}}
    await cluster.create(model=MODEL, pools=pools, policyRef={"name": "chat"})
    await cluster.until_summary("1P2D")
    async with clients_of(cluster, control_plane, tmp_path) as clients:
        await _upgrade_and_roll_back(cluster, control_plane, clients)


async def _objectives(cluster: Cluster) -> dict[str, Any] | None:
    """What gateways count requests against."""
    found = await cluster.kube.get(resources.LLM_SERVICES, "chat", cluster.namespace)
    return ((found["status"].get("routing") or {}).get("objectives")) or None


async def _upgrade_and_roll_back(cluster: Cluster, control_plane: ControlPlane, clients: Clients) -> None:

    def workers() -> set[tuple[str, str, str]]:
        labels = [(pod, pod.metadata.labels["pointsman.dev/revision"]) for pod in cluster.kubelet.worker_pods()]
        return {(pod.metadata.name, pod.metadata.uid, revision) for pod, revision in labels}

    async def the_service_runs_on() -> None:
        await cluster.until_summary("1P2D")
        assert workers() == before
        assert cluster.condition(ConditionType.DEGRADED)[0] == "False"
        await clients.get_answers()

    before, earlier = workers(), await gateway_environment(cluster)

    install(control_plane, CRDS)
    cluster.operator.kill()
    cluster.operator.start()
    await cluster.edit({"drain": {"timeoutSeconds": 61}})
    await the_service_runs_on()
    goals = {"ttftMs": 900, "ttftMsPerPromptToken": 0, "tpotMs": 30}

    async def gateways_know_the_objectives() -> bool:
        return await _objectives(cluster) == goals

    await eventually(gateways_know_the_objectives, "the objectives of the policy are in the status")
    added = {"POINTSMAN_ROUTER": "least-loaded", "POINTSMAN_MAX_BODY_MIB": "64"}

    async def the_gateways_have_the_limits() -> bool:
        # Again and again: the API server uses a replaced CRD a moment after it says so.
        await cluster.edit({"gateway": {"router": "least-loaded", "limits": {"maxBodyMiB": 64}}})
        return added.items() <= (await gateway_environment(cluster)).items()

    await eventually(the_gateways_have_the_limits, "the gateway's environment has the limits")
    await the_service_runs_on()

    install(control_plane, EARLIER)
    cluster.operator.kill()
    cluster.operator.start()

    async def the_gateways_are_as_before() -> bool:
        await cluster.edit({"drain": {"timeoutSeconds": 120}})  # a write drops what the earlier CRD does not know
        await cluster.edit({"drain": {"timeoutSeconds": 60}})
        return await gateway_environment(cluster) == earlier

    await eventually(the_gateways_are_as_before, "the gateway's environment is the earlier one")
    await the_service_runs_on()
    assert await _objectives(cluster) is None, "the earlier resources have no such field"
    stored = await cluster.kube.get(resources.LLM_SERVICES, "chat", cluster.namespace)
    assert not {"router", "limits"} & stored["spec"]["gateway"].keys()
    pools = await cluster.books()
    assert {role.value: replicas for role, replicas in pools.items()} == {"Prefill": 1, "Decode": 2}


@pytest.mark.parametrize("earlier_crds", [WITHOUT_ENCODE], indirect=True, ids=lambda path: path.stem)
@pytest.mark.usefixtures("earlier_crds")
async def test_a_pool_shrinks_with_earlier_resources_and_gpus_in_a_stored_template_stay(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    """Earlier resources know no ``status.victims``. A template with GPUs, stored before it was refused, is served."""
    engine = {"name": "engine", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    template = {"spec": {"containers": [engine]}}
    await cluster.create(pools={"decode": {"replicas": 2}}, worker={"gpus": 0, "template": template})
    await cluster.until_summary("1P2D")
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 1
    await cluster.edit({"pools": {"decode": {"replicas": 1}}})
    await cluster.until_condition(ConditionType.PROGRESSING, "True", "WorkersDraining")
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 0
    await cluster.until_summary("1P1D")

    install(control_plane, CRDS)

    async def a_new_one_is_refused() -> bool:
        # Again and again: the API server uses a replaced CRD a moment after it says so.
        try:
            await cluster.create("other", paused=True, worker={"gpus": 0, "template": template})
        except Invalid as error:
            return "nvidia.com/gpu of container 'engine' is not counted by budgets" in str(error)
        await cluster.kube.delete(resources.LLM_SERVICES, "other", cluster.namespace)
        return False

    await eventually(a_new_one_is_refused, "a template with GPUs is refused")
    await cluster.edit({"drain": {"timeoutSeconds": 61}})
    await cluster.until_summary("1P1D")
    said = await cluster.until_condition(ConditionType.DEGRADED, "True", "UncountedGpus")
    assert "1 for container engine, but budgets count spec.worker.gpus (0)" in said


@pytest.mark.parametrize("earlier_crds", [WITHOUT_ENCODE], indirect=True, ids=lambda path: path.stem)
@pytest.mark.usefixtures("earlier_crds")
async def test_encode_workers_come_with_the_present_resources_and_go_with_a_rollback(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")

    def language_workers() -> set[tuple[str, str]]:
        pods = [pod for role in LANGUAGE_ROLES for pod in cluster.kubelet.worker_pods(role)]
        return {(pod.metadata.uid, pod.metadata.labels[REVISION_LABEL]) for pod in pods}

    before, gateway = language_workers(), await gateway_environment(cluster)
    install(control_plane, CRDS)
    cluster.operator.kill()
    cluster.operator.start()

    async def encode_is_kept() -> bool:
        # Again and again: the API server uses a replaced CRD a moment after it says so.
        await cluster.edit({"encode": {}, "pools": {"encode": {"replicas": 1}}})
        stored = await cluster.kube.get(resources.LLM_SERVICES, "chat", cluster.namespace)
        return "encode" in stored["spec"]

    await eventually(encode_is_kept, "the service has encode workers")
    await cluster.until_condition(ConditionType.ENCODE_READY, "True")
    await cluster.until(
        cluster.kubelet.pods, lambda: len(cluster.kubelet.worker_pods(Role.ENCODE, routable=True)) == 1, "one encodes"
    )
    assert (language_workers(), await gateway_environment(cluster)) == (before, gateway)

    install(control_plane, WITHOUT_ENCODE)

    async def encode_is_dropped() -> bool:
        await cluster.edit({"drain": {"timeoutSeconds": 61}})  # a write drops what the earlier CRD does not know
        await cluster.edit({"drain": {"timeoutSeconds": 60}})
        stored = await cluster.kube.get(resources.LLM_SERVICES, "chat", cluster.namespace)
        return "encode" not in stored["spec"]

    await eventually(encode_is_dropped, "the earlier resources drop the field")
    await cluster.until(cluster.kubelet.pods, lambda: not cluster.kubelet.worker_pods(Role.ENCODE), "none encodes")
    await cluster.until_summary("1P2D")
    assert (language_workers(), await gateway_environment(cluster)) == (before, gateway)
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"
    assert cluster.kubelet.lost_work == []
