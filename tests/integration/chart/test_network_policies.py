"""Who reaches whom in a cluster that enforces NetworkPolicies: every pair of pods, every port, from the chart's values.

The policies of chart and operator as they are rendered; the operator reads its settings from the chart's Deployment.
"""

import itertools
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fixtures.helm_release import CHART, REGISTRY
from fixtures.network_policies import Pod, reaches
from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.operator.core.adapters import adapter_for
from pointsman.operator.core.elastic.manifests import group_objects, service_of
from pointsman.operator.core.gateway import gateway_objects
from pointsman.operator.core.install import Install
from pointsman.operator.core.network import network_policies
from pointsman.operator.core.snapshot import Service
from pointsman.operator.settings import OperatorSettings
from unit.operator.world import service, spec

SECURITY_PAGE: Final = Path(__file__).parents[3] / "docs" / "operate" / "security.md"
SYSTEM: Final = "pointsman-system"
MONITORING_ONLY: Final = (
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=monitoring",
)
HTTP, METRICS, NIXL, EMBEDDINGS, UCX = names.ENGINE_PORT, names.WORKER_METRICS_PORT, 5600, 5650, 40123
PORTS: Final = (HTTP, METRICS, names.METRICS_PORT, NIXL, EMBEDDINGS, UCX, names.NATS_PORT, 8222)
STRANGERS: Final = (
    Pod("web", "models"),
    Pod("web", "other"),
    Pod("web", SYSTEM),
    Pod("look-alike", "other", {"app.kubernetes.io/name": "pointsman", "app.kubernetes.io/component": "operator"}),
    Pod("node-agent", "kube-system", {"k8s-app": "agent"}),
)
PROMETHEUS: Final = Pod("prometheus", "monitoring", {"app.kubernetes.io/name": "prometheus"})


class World:
    """Policies and pods of one installation with ``settings`` of the chart."""

    def __init__(self, helm: Path, *settings: str) -> None:
        flags = [part for setting in settings for part in ("--set", setting)]
        command = [str(helm), "template", "pointsman", str(CHART), "--namespace", SYSTEM, *REGISTRY, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
        objects = [item for item in yaml.safe_load_all(done.stdout) if item]
        self.install = _install(objects)
        self.policies = [item for item in objects if item["kind"] == "NetworkPolicy"]
        self.pods = [*STRANGERS, PROMETHEUS]
        for item in objects:
            if item["kind"] in ("Deployment", "StatefulSet"):
                name = item["metadata"]["name"].removeprefix("pointsman-")
                self.pods.append(Pod.of(item["spec"]["template"], SYSTEM, name))
        self._services(service(spec(encode=(1, 1, 4)), namespace="models"))
        self._services(service(namespace="other"))  # of the same name, in another namespace
        self._services(service(namespace="models", name="code", uid="u-code"))
        self._group("models")

    def _services(self, made: Service) -> None:
        adapter, gateway = adapter_for(made.spec), gateway_objects(made, self.install)[-1]["spec"]["template"]
        self.pods.append(Pod.of(gateway, made.namespace, f"{made.name}/gateway"))
        for role in made.spec.roles:
            pod = adapter.pod(made, self.install, f"{made.name}-r-0", role)
            pod["metadata"]["labels"][names.METRICS_PORT_LABEL] = str(METRICS)
            self.pods.append(Pod.of(pod, made.namespace, f"{made.name}/{role.label}"))
        earlier = adapter.pod(made, self.install, f"{made.name}-r-1", Role.DECODE)
        self.pods.append(Pod.of(earlier, made.namespace, f"{made.name}/earlier"))
        self._policies(made)

    def _group(self, namespace: str) -> None:
        manifest = {
            "metadata": {"name": "long", "namespace": namespace, "uid": "u-long"},
            "kind": "ElasticGroup",
            "spec": {"model": {"source": "file:///models/tiny"}, "instances": {"replicas": 2}},
        }
        group = ElasticGroup.model_validate(manifest)
        templates = {
            item["metadata"]["name"]: item["spec"]["template"]
            for item in group_objects(group, self.install)
            if "template" in item.get("spec", {})
        }
        templates["long-manager"]["metadata"]["labels"][names.METRICS_PORT_LABEL] = str(METRICS)
        for name, kind in (("long-gateway", "gateway"), ("long-manager", "manager"), ("long", "instance")):
            self.pods.append(Pod.of(templates[name], namespace, f"long/{kind}"))
        self._policies(service_of(group))

    def _policies(self, made: Service) -> None:
        if self.install.network is not None:
            self.policies += network_policies(made, self.install.network)

    def reached(self, target: Pod, port: int) -> set[str]:
        """``namespace/pod`` of everybody who reaches it, itself left out."""
        return {_key(pod) for pod in self.pods if pod is not target and reaches(self.policies, pod, target, port)}

    def everybody(self, but: Pod) -> set[str]:
        return {_key(pod) for pod in self.pods if pod is not but}


def _install(objects: Iterable[dict[str, Any]]) -> Install:
    """As the operator makes it of the chart's environment."""
    (deployment,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == ("Deployment", "pointsman-operator"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    fields = {name.removeprefix("POINTSMAN_").lower(): value for name, value in given.items()}
    known = {name: value for name, value in fields.items() if name in OperatorSettings.model_fields}
    return OperatorSettings(**(known | {"namespace": SYSTEM, "POINTSMAN_POD_NAME": "operator-0"})).install()


def _key(pod: Pod) -> str:
    return f"{pod.namespace}/{pod.name}"


def expected(world: World, target: Pod, port: int, scrapers: set[str]) -> set[str]:
    """Who needs to reach ``target`` on ``port``. ``scrapers``: those that may read metrics."""
    owner, _, part = target.name.partition("/")
    controllers = {f"{SYSTEM}/operator", f"{SYSTEM}/planner"}
    if target in (*STRANGERS, PROMETHEUS) or part == "gateway":
        return world.everybody(target)
    if target.name in ("operator", "planner"):
        return scrapers - {_key(target)} if port == names.METRICS_PORT else set()
    if target.name == "nats":
        of_services = {_key(pod) for pod in world.pods if names.SERVICE_LABEL in pod.labels}
        return of_services | {f"{SYSTEM}/operator"} if port == names.NATS_PORT else set()
    inside = {
        _key(pod)
        for pod in world.pods
        if pod.namespace == target.namespace
        and pod.name.partition("/")[0] == owner
        and pod.name != f"{owner}/gateway"
        and pod is not target
    }
    if part == "instance":
        return inside
    if port == HTTP:
        found = inside | controllers | {f"{target.namespace}/{owner}/gateway"}
        return found | scrapers - {_key(target)} if part == "earlier" else found
    return inside | scrapers - {_key(target)} if port == METRICS else inside


@pytest.fixture(scope="module")
def helm(binary: Callable[[str], Path]) -> Path:
    return binary("helm")


@pytest.mark.parametrize("only_monitoring", [False, True], ids=["any namespace", "one namespace"])
def test_every_pod_is_reached_by_those_that_need_it_and_by_nobody_else(helm: Path, only_monitoring: bool) -> None:
    world = World(helm, *(MONITORING_ONLY if only_monitoring else ()))
    scrapers = {_key(PROMETHEUS)} if only_monitoring else {_key(pod) for pod in world.pods}
    assert len(world.pods) > 20
    for target, port in itertools.product(world.pods, PORTS):
        assert world.reached(target, port) == expected(world, target, port, scrapers), f"{_key(target)}:{port}"


def test_nobody_may_read_metrics_where_the_list_is_empty(helm: Path) -> None:
    world = World(helm, "networkPolicy.metricsFrom=null")
    for target, port in itertools.product(world.pods, PORTS):
        assert world.reached(target, port) == expected(world, target, port, set()), f"{_key(target)}:{port}"


def test_with_the_value_off_nothing_is_closed(helm: Path) -> None:
    world = World(helm, "networkPolicy.enabled=false")
    assert world.policies == []
    assert world.install.network is None


def test_the_policy_of_gateways_that_the_security_page_shows_opens_metrics_to_those_that_need_them(helm: Path) -> None:
    world = World(helm)
    (written,) = re.findall(r"```yaml\n(.+?)```", SECURITY_PAGE.read_text(), re.DOTALL)
    world.policies.append(yaml.safe_load(written))
    ingress = Pod("controller", "ingress")
    world.pods.append(ingress)
    (gateway,) = (pod for pod in world.pods if _key(pod) == "models/chat/gateway")
    system = {_key(pod) for pod in world.pods if pod.namespace == SYSTEM}
    assert world.reached(gateway, names.GATEWAY_METRICS_PORT) == system | {_key(PROMETHEUS)}
    assert world.reached(gateway, names.GATEWAY_PORT) == system | {_key(ingress), _key(PROMETHEUS)}


@pytest.mark.parametrize("tenant", ["models", "other"])
def test_a_worker_of_one_tenant_reaches_no_worker_of_another(helm: Path, tenant: str) -> None:
    world = World(helm)
    mine = [pod for pod in world.pods if pod.namespace == tenant]
    theirs = [pod for pod in world.pods if pod.namespace != tenant and pod.labels.get(names.ROLE_LABEL)]
    assert mine and theirs
    for source, target, port in itertools.product(mine, theirs, (NIXL, EMBEDDINGS, UCX)):
        assert not reaches(world.policies, source, target, port), f"{_key(source)} -> {_key(target)}:{port}"
