"""helm upgrades an earlier commit to this chart, rolls back and upgrades again, while a service runs all the time.

3a2454a is the last commit without ElasticGroup, ec6a7b8 the last one without encode workers.
``pointsman_3a2454a.tar.xz`` is the chart and the operator of that commit with all that it imports, made by
``git archive 3a2454a charts/pointsman crds/src kube/src operator/src process/src serving/src | xz -9e``.
"""

import asyncio
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fixtures.crds import until_established
from fixtures.helm_release import CHART, HelmRelease
from fixtures.operators import OperatorProcess
from pointsman.api.protocol.names import COPIED_REPLICAS_ANNOTATION, ROLE_LABEL, SERVICE_LABEL, Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.kube import resources
from pointsman.kube.errors import NotFound
from pointsman.local.control_plane import ControlPlane
from pointsman.local.errors import ControlPlaneFailed
from pointsman.operator.core.naming import APPLIED_HASH_ANNOTATION
from pointsman.planner.core.routing.publication import named
from pointsman.planner.core.types import RoutingNumbers
from pointsman.serving.flow_control import FlowBounds
from waiting import eventually

from .clients import MODEL, Clients, clients_of, serve_requests
from .conftest import CRDS, Cluster
from .plan_objects import plan, policy, publish, routing

WITHOUT_GROUPS: Final = "3a2454a"
WITHOUT_ENCODE: Final = "ec6a7b8"
EARLIER_REGISTRY: Final = ("--set", "images.registry=pointsman")
"""The registry that the charts of both commits had as a default."""
SOURCES: Final = ("crds/src", "kube/src", "operator/src", "process/src", "serving/src")
ELASTIC_CRD: Final = "elasticgroups.pointsman.dev"
GROUP: Final = "long-chat"
OBJECTS: Final = ",".join(
    (
        "pods", "deployments", "statefulsets", "services", "serviceaccounts", "secrets", "rolebindings",
        "poddisruptionbudgets", "workerpools",
    )
)  # fmt: skip


@dataclass
class Installation:
    """A release of the chart, and its operator as a process with the rights that the chart gives it."""

    release: HelmRelease
    earlier: Path  # the unpacked commit
    operator: OperatorProcess

    def start(self, *, earlier: bool) -> OperatorProcess:
        """Stop the running operator, as a Deployment does, and start that of one version."""
        self.operator.stop()
        name, namespace = self.release.name, self.release.namespace
        account = f"system:serviceaccount:{namespace}:{name}-operator"
        self.operator = OperatorProcess(
            self.release.control_plane.kubeconfig_for(account),
            namespace,
            lease_name=f"{name}-operator",
            gateway_cluster_role=f"{name}-gateway",
        )
        if earlier:
            self.operator.import_from([self.earlier / source for source in SOURCES])
        self.operator.start()
        return self.operator


@pytest.fixture
def installation(
    control_plane: ControlPlane,
    operator_kubeconfig: Path,
    binary: Callable[[str], Path],
    namespace: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Installation]:
    """The earlier commit, installed by helm in the test's namespace. Restores the present CRDs at the end."""
    with tarfile.open(Path(__file__).with_name(f"pointsman_{request.param}.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    if request.param == WITHOUT_GROUPS:
        control_plane.kubectl("delete", "crd", ELASTIC_CRD, "--ignore-not-found", "--timeout=60s")
    release = HelmRelease(control_plane, binary("helm"), f"pointsman-{namespace[-4:]}", namespace)
    release.install(chart=tmp_path / "charts/pointsman")
    found = Installation(release, tmp_path, OperatorProcess(operator_kubeconfig, namespace))
    yield found
    found.operator.kill()
    release.helm("uninstall", release.name, "--no-hooks")
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
    until_established(control_plane)


@pytest.fixture
def operator(installation: Installation) -> OperatorProcess:
    """The earlier operator: ``cluster`` begins with it."""
    return installation.start(earlier=True)


def objects_of(control_plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    """All objects of a service or a group without their status, by kind and name.

    But for the gateway's rights and budget, which earlier commits had otherwise or not at all, and for the operator's
    notes on the gateway's Deployment.
    """
    listed = control_plane.kubectl("get", OBJECTS, "-n", namespace, "-l", f"pointsman.dev/service={name}", "-o", "json")
    found = {}
    for item in json.loads(listed)["items"]:
        changing = {"resourceVersion", "managedFields"}
        if item["kind"] in ("RoleBinding", "PodDisruptionBudget") and item["metadata"]["name"] in (
            f"{name}-gateway",
            f"{name}-gateway-role",
        ):
            continue
        meta = {key: value for key, value in item["metadata"].items() if key not in changing}
        if item["kind"] == "Deployment":
            del meta["generation"]  # of a Deployment, a changed annotation is a new one
            notes = (APPLIED_HASH_ANNOTATION, COPIED_REPLICAS_ANNOTATION)
            meta["annotations"] = {key: value for key, value in meta["annotations"].items() if key not in notes}
        found[f"{item['kind']}/{meta['name']}"] = {**item, "metadata": meta, "status": None}
    return found


def images_of(release: HelmRelease) -> set[str]:
    """The images of the chart's pods, and those that the operator is given for gateways and workers."""
    images: set[str] = set()
    for item in yaml.safe_load_all(release.helm("get", "manifest", release.name)):
        if item and item["kind"] in ("Deployment", "StatefulSet"):
            for container in item["spec"]["template"]["spec"]["containers"]:
                images |= {container["image"]}
                images |= {each["value"] for each in container.get("env", ()) if each["name"].endswith("_IMAGE")}
    return images


def others_of(control_plane: ControlPlane, namespace: str) -> dict[str, tuple[Any, ...]]:
    """Identity, generation and phase of each policy, plan and switch. Specs show the defaults of the present CRD."""
    listed = control_plane.kubectl("get", "plannerpolicies,plans,roleswitches", "-n", namespace, "-o", "json")
    found = ((item, item["metadata"]) for item in json.loads(listed)["items"])
    return {
        f"{item['kind']}/{meta['name']}": (meta["uid"], meta["generation"], item["status"].get("phase"))
        for item, meta in found
    }


def gateway_may_follow_workers(control_plane: ControlPlane, namespace: str, name: str = "chat") -> bool:
    """Whether a gateway that starts now finds the workers of its service."""
    account = f"--as=system:serviceaccount:{namespace}:{name}-gateway"
    try:
        return control_plane.kubectl("auth", "can-i", "watch", "pods", "-n", namespace, account).strip() == "yes"
    except ControlPlaneFailed:  # kubectl says no by its exit status
        return False


async def publishes(cluster: Cluster, numbers: RoutingNumbers) -> None:
    """As a planner that looks again and again: an earlier operator may put older numbers over them once."""
    wanted = {name: value for name, value in named(numbers).items() if value is not None}

    async def in_force() -> bool:
        found = await cluster.kube.get(resources.LLM_SERVICES, "chat", cluster.namespace)
        now = found["status"].get("routing", {})
        if {name: now[name] for name in named(numbers) if name in now} == wanted:
            return True
        await publish(cluster, numbers)
        return False

    await eventually(in_force, f"{numbers} in force")


async def until_accepted(cluster: Cluster, name: str, message: str) -> None:
    """Wait until the condition Accepted of a policy's present spec has this message."""

    def says() -> bool:
        found = cluster.policies.get(name, cluster.namespace)
        if found is None or found.status.observed_generation != found.metadata.generation:
            return False
        return [item.message for item in found.status.conditions if item.type == "Accepted"] == [message]

    await cluster.until(cluster.policies, says, f"policy {name}: {message}")


def reconciles(operator: OperatorProcess, outcome: str) -> float:
    """How many reconciles of services ended with this outcome."""
    samples = operator.samples("pointsman_operator_reconciles_total")
    return sum(sample.value for sample in samples if sample.labels["outcome"] == outcome)


@pytest.mark.parametrize("installation", [WITHOUT_GROUPS], indirect=True)
async def test_an_upgrade_and_a_rollback_change_neither_a_service_nor_an_elastic_group(
    installation: Installation, cluster: Cluster, control_plane: ControlPlane, tmp_path: Path
) -> None:
    # the earlier commit serves; the cluster has no kind ElasticGroup
    serve_requests(cluster, tmp_path)
    await policy(cluster, Mode.SHADOW, actions={})  # of the fields that the earlier commit has
    pools = {"prefill": {"replicas": 1}, "decode": {"replicas": 2}}
    await cluster.create(model=MODEL, pools=pools, policyRef={"name": "chat"})
    await cluster.until_summary("1P2D")
    await cluster.until_plan(PlanPhase.SHADOW, await plan(cluster, 1, 2, 1, mode=Mode.SHADOW))
    await create_switch_that_fails(cluster)
    async with clients_of(cluster, control_plane, tmp_path) as clients:
        await _upgrade_roll_back_and_upgrade(installation, cluster, control_plane, clients)


async def create_switch_that_fails(cluster: Cluster) -> None:
    """It would leave no prefill worker. Operators of the earlier commit may not set the owner of a switch."""
    service = cluster.service()
    assert service is not None
    owner = {"apiVersion": service.api_version, "kind": service.kind, "name": "chat", "uid": service.metadata.uid}
    body = {
        "metadata": {"name": "by-hand", "ownerReferences": [owner]},
        "spec": {"serviceRef": {"name": "chat"}, "from": Role.PREFILL, "to": Role.DECODE},
    }
    await cluster.kube.create(resources.ROLE_SWITCHES, body, cluster.namespace, field_validation="Strict")
    await cluster.until_switch(SwitchPhase.FAILED)


async def _upgrade_roll_back_and_upgrade(
    installation: Installation, cluster: Cluster, control_plane: ControlPlane, clients: Clients
) -> None:
    release, namespace = installation.release, cluster.namespace

    async def run_operator(*, earlier: bool) -> None:
        """Start an operator; returns when it has reconciled the service and reports it as Ready."""
        cluster.operator = await asyncio.to_thread(installation.start, earlier=earlier)
        await cluster.until_said(f"service={namespace}/chat reason=AsDesired")

    async def service_is_unchanged() -> None:
        found = cluster.service()
        assert found is not None
        assert service is not None
        assert found.spec == service.spec
        assert (found.metadata.uid, found.metadata.generation) == (service.metadata.uid, service.metadata.generation)
        assert objects_of(control_plane, namespace, "chat") == service_objects
        assert others_of(control_plane, namespace) == others
        assert gateway_may_follow_workers(control_plane, namespace)
        assert cluster.condition(ConditionType.DEGRADED)[0] == "False"
        await clients.get_answers()

    def operator_has_not_failed() -> None:
        log = cluster.operator.log
        assert not [word for word in ("Traceback", "Refused", "Forbidden", "forbidden") if word in log], log

    with pytest.raises(NotFound):
        await cluster.kube.list(resources.ELASTIC_GROUPS, namespace)
    service, service_objects = cluster.service(), objects_of(control_plane, namespace, "chat")
    others = others_of(control_plane, namespace)
    assert len(others) == 3
    assert len([key for key in service_objects if key.startswith("Pod/")]) == 4

    # without a registry helm changes nothing; with the one of the earlier chart all images stay the same
    installed, images_before = release.helm("history", release.name), images_of(release)
    with pytest.raises(AssertionError, match=r"images\.registry is not set: set it to the registry"):
        release.upgrade(CHART)
    with pytest.raises(AssertionError, match="Upgrade with --reset-then-reuse-values"):
        release.upgrade(CHART, "--reuse-values")
    assert release.helm("history", release.name) == installed

    # upgrade: the service does not change, and an elastic group gets its objects
    release.upgrade(CHART, *EARLIER_REGISTRY)
    assert images_of(release) == images_before
    until_established(control_plane)
    await run_operator(earlier=False)
    await service_is_unchanged()
    group_spec = {
        "model": {"source": "hf://test/tiny"},
        "instances": {"replicas": 2, "maxReplicas": 4},
        "gateway": {"replicas": 1},
    }
    body = {"metadata": {"name": GROUP}, "spec": group_spec}
    await cluster.kube.create(resources.ELASTIC_GROUPS, body, namespace, field_validation="Strict")

    def group_runs() -> bool:
        """Its gateway, its manager and two instances."""
        pods = [pod for pod in cluster.kubelet.pods.objects() if pod.metadata.labels[SERVICE_LABEL] == GROUP]
        return len(pods) == 4 and all(pod.ready for pod in pods)

    await cluster.until(cluster.kubelet.pods, group_runs, "all pods of the group are ready")
    budget = f"PodDisruptionBudget/{GROUP}"  # the last of its objects
    await eventually(lambda: budget in objects_of(control_plane, namespace, GROUP), "all objects of the group are made")
    await publishes(cluster, RoutingNumbers(640, 8, FlowBounds(1000, 12, 800)))
    group = await cluster.kube.get(resources.ELASTIC_GROUPS, GROUP, namespace)
    group_objects = objects_of(control_plane, namespace, GROUP)
    operator_has_not_failed()

    # rollback: the earlier operator sees pods of a kind that it does not know, and changes nothing of the group
    release.helm("rollback", release.name, "1")
    await run_operator(earlier=True)
    await service_is_unchanged()
    rolled_back = await cluster.kube.get(resources.ELASTIC_GROUPS, GROUP, namespace)
    assert (rolled_back["metadata"]["uid"], rolled_back["spec"]) == (group["metadata"]["uid"], group["spec"])
    assert objects_of(control_plane, namespace, GROUP) == group_objects
    await cluster.kube.delete(resources.POD_DISRUPTION_BUDGETS, GROUP, namespace)
    await eventually(lambda: reconciles(cluster.operator, "gone") > 0, "it finds no service of the group's name")
    await cluster.edit({"pools": {"decode": {"replicas": 3}}})
    await cluster.until_summary("1P3D")
    assert (await routing(cluster))["decodingPerDecodeWorker"] == 12, "what was published stays"
    await publishes(cluster, RoutingNumbers(640, 8))  # a newer planner beside CRDs and operator of the earlier commit
    group_objects_left = {key: item for key, item in group_objects.items() if key != budget}
    assert objects_of(control_plane, namespace, GROUP) == group_objects_left
    operator_has_not_failed()
    service, service_objects = cluster.service(), objects_of(control_plane, namespace, "chat")

    # upgrade again: helm adopts the CRD that it kept, and the operator manages the existing group
    release.upgrade(CHART, *EARLIER_REGISTRY)
    await run_operator(earlier=False)
    await eventually(lambda: budget in objects_of(control_plane, namespace, GROUP), "the deleted object is made again")
    assert (await routing(cluster))["maxLocalPrefillTokens"] == 640, "and stays"
    assert {**objects_of(control_plane, namespace, GROUP), budget: None} == {**group_objects, budget: None}
    await service_is_unchanged()
    operator_has_not_failed()


POLICY: Final = {"objectives": {"ttftMs": 900, "tpotMs": 30}, "budget": {"maxGpus": 8}}
SET: Final = {"actions": {"roleSwitch": {"minDwellSeconds": 5}}, "history": {"plans": 10}}
EARLIER_WORDS: Final = "followed as it is written, in mode"


@pytest.mark.parametrize("installation", [WITHOUT_ENCODE], indirect=True)
async def test_removed_policy_fields_are_named_after_an_upgrade_and_a_rolled_back_operator_reads_what_was_written(
    installation: Installation, cluster: Cluster
) -> None:
    async def write(name: str, **fields: Any) -> dict[str, Any]:
        body = {"metadata": {"name": name}, "spec": {**POLICY, **fields}}
        created: dict[str, Any] = await cluster.kube.create(resources.PLANNER_POLICIES, body, cluster.namespace)
        return created

    async def edit(name: str, **fields: Any) -> None:
        await cluster.kube.patch(resources.PLANNER_POLICIES, name, cluster.namespace, {"spec": fields})

    async def stored(name: str) -> dict[str, Any]:
        found = await cluster.kube.get(resources.PLANNER_POLICIES, name, cluster.namespace)
        spec: dict[str, Any] = found["spec"]
        return spec

    # the earlier version writes its defaults into each policy
    for name, fields in (("defaults", {}), ("edited", SET)):
        await write(name, **fields)
        await until_accepted(cluster, name, f"{EARLIER_WORDS} Shadow")
    assert (await stored("defaults"))["actions"]["roleSwitch"]["minDwellSeconds"] == 60

    # this version names what somebody set, and its own policies have none of these fields
    installation.release.upgrade(CHART, *EARLIER_REGISTRY)
    cluster.operator = await asyncio.to_thread(installation.start, earlier=False)
    ignored = "actions.roleSwitch.minDwellSeconds (5), history.plans (10)"
    await until_accepted(
        cluster, "edited", f"applied in mode Shadow, without fields that this version ignores: {ignored}"
    )
    await edit("defaults", mode="Approve")
    await until_accepted(cluster, "defaults", "applied as written, in mode Approve")

    async def only_fields_of_this_version_are_stored() -> bool:
        # Again and again: the API server uses a replaced CRD a moment after it says so.
        metrics = {"source": "Prometheus", "prometheusUrl": "http://prometheus:9090", "staleAfterSeconds": 70}
        created = await write("new", metrics=metrics, forecast={"seasonality": "None"})
        if "history" not in created["spec"] and "drainFirst" not in created["spec"]["actions"]["roleSwitch"]:
            return True
        await cluster.kube.delete(resources.PLANNER_POLICIES, "new", cluster.namespace)
        return False

    await eventually(only_fields_of_this_version_are_stored, "a policy without removed fields")
    await until_accepted(cluster, "new", "applied as written, in mode Shadow")

    # the earlier operator reads all of them, with its defaults where a field is missing
    installation.release.helm("rollback", installation.release.name, "1")
    cluster.operator = await asyncio.to_thread(installation.start, earlier=True)
    await until_accepted(cluster, "edited", f"{EARLIER_WORDS} Shadow")
    for name in ("defaults", "new"):
        await edit(name, mode="Active")
        await until_accepted(cluster, name, f"{EARLIER_WORDS} Active")

    async def has_the_earlier_defaults() -> bool:
        return (await stored("new")).get("history") == {"plans": 50}

    await eventually(has_the_earlier_defaults, "the earlier defaults in the new policy")
    assert (await stored("edited"))["actions"]["roleSwitch"]["minDwellSeconds"] == 5
    assert "Unreadable" not in cluster.operator.log


@pytest.mark.parametrize("installation", [WITHOUT_ENCODE], indirect=True)
async def test_an_upgrade_gives_encode_workers_and_a_rollback_leaves_the_others_as_they_are(
    installation: Installation, cluster: Cluster, control_plane: ControlPlane
) -> None:
    release, namespace = installation.release, cluster.namespace

    async def run_operator(*, earlier: bool) -> None:
        cluster.operator = await asyncio.to_thread(installation.start, earlier=earlier)
        await cluster.until_said(f"service={namespace}/chat reason=AsDesired")

    def of_the_service() -> dict[str, Any]:
        """All its objects but those of its encode workers."""
        found = objects_of(control_plane, namespace, "chat")
        return {key: item for key, item in found.items() if item["metadata"]["labels"].get(ROLE_LABEL) != "encode"}

    def operator_has_not_failed() -> None:
        log = cluster.operator.log
        assert not [word for word in ("Traceback", "Refused", "Forbidden", "forbidden") if word in log], log

    # the earlier commit serves; the present one takes over and changes nothing
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")
    await cluster.create("resting")
    await cluster.until_summary("1P1D", "resting")
    await cluster.edit({"paused": True}, "resting")  # the operator makes nothing for it: its gateway keeps its rights
    before = of_the_service()
    release.upgrade(CHART, *EARLIER_REGISTRY)
    await run_operator(earlier=False)
    assert of_the_service() == before
    assert gateway_may_follow_workers(control_plane, namespace)
    assert gateway_may_follow_workers(control_plane, namespace, "resting")
    await cluster.edit({"paused": False}, "resting")
    await cluster.until_summary("1P1D", "resting")
    assert gateway_may_follow_workers(control_plane, namespace, "resting")
    await cluster.kube.delete(resources.LLM_SERVICES, "resting", namespace)
    await cluster.until(cluster.services, lambda: cluster.service("resting") is None, "the second service is gone")
    operator_has_not_failed()

    # encode workers are added
    await cluster.edit({"encode": {}})
    await cluster.until_condition(ConditionType.ENCODE_READY, "True")
    await cluster.until(
        cluster.kubelet.pods, lambda: len(cluster.kubelet.worker_pods(Role.ENCODE, routable=True)) == 1, "one encodes"
    )
    assert of_the_service() == before
    assert gateway_may_follow_workers(control_plane, namespace)
    operator_has_not_failed()

    # rollback with encode workers in place: the earlier operator knows nothing of them and touches nothing
    installation.operator.stop()  # for it, a service of the earlier CRD has no encode workers: it would drain them
    release.helm("rollback", release.name, "1")
    await run_operator(earlier=True)
    assert of_the_service() == before
    assert gateway_may_follow_workers(control_plane, namespace)
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"
    assert len(cluster.kubelet.worker_pods(Role.ENCODE)) == 1
    await cluster.edit({"pools": {"decode": {"replicas": 3}}})  # a write drops the fields that it does not know
    await cluster.until(
        cluster.kubelet.pods, lambda: len(cluster.kubelet.worker_pods(Role.DECODE, routable=True)) == 3, "three decode"
    )
    operator_has_not_failed()
    before = of_the_service()

    # upgrade again: the service has no encode workers any more, so those that were left drain and go
    release.upgrade(CHART, *EARLIER_REGISTRY)
    await run_operator(earlier=False)
    await cluster.until(cluster.kubelet.pods, lambda: not cluster.kubelet.worker_pods(Role.ENCODE), "none encodes")
    await cluster.until_summary("1P3D")
    assert objects_of(control_plane, namespace, "chat") == before
    assert cluster.kubelet.lost_work == []
    operator_has_not_failed()
