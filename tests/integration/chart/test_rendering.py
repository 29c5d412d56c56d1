"""What ``helm template`` makes of the chart: valid objects, a restricted security profile, strict values."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pointsman.operator.permissions import CLUSTER_RULES, LEASE_RULES
from pointsman.planner import permissions as planner

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "pointsman"
KUBERNETES = "1.36"

VARIANTS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "as on the embedded cluster": (
        "bindHost=$(POD_IP)",
        "nats.url=nats://127.9.9.9:4222",
        "images.operator=pointsman-operator",
        "imagePullPolicy=Never",
        "operator.logFormat=text",
    ),
    "two operators with a policy for everything": (
        "operator.replicas=2",
        "planner.replicas=2",
        "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.team=monitoring",
        "nats.persistence.enabled=true",
        "nats.persistence.storageClassName=fast",
        "imagePullSecrets[0]=pull",
        "operator.nodeSelector.a=b",
        "operator.tolerations[0].operator=Exists",
        "operator.podLabels.team=x",
        "operator.podAnnotations.a=b",
        "operator.serviceAccount.annotations.a=b",
        "operator.env[0].name=A",
        "operator.env[0].value=b",
        "operator.priorityClassName=high",
        "nats.podAnnotations.a=b",
    ),
    "a NATS of one's own": ("nats.enabled=false", "nats.url=nats://n.n.svc:4222", "nats.auth.existingSecret=mine"),
    "one namespace": ("watchNamespace=models",),
    "bare": (
        "networkPolicy.enabled=false",
        "planner.enabled=false",
        "crds.install=false",
        "rbac.aggregate=false",
        "uninstall.stripFinalizers=false",
    ),
}


@pytest.fixture(scope="module")
def helm(binary: Callable[[str], Path]) -> Callable[..., subprocess.CompletedProcess[str]]:
    program = binary("helm")

    @cache  # several tests look at the same rendering
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)

    return run


Helm = Callable[..., subprocess.CompletedProcess[str]]


def rendered(helm: Helm, *settings: str) -> list[dict[str, Any]]:
    """The objects of the chart with ``settings``."""
    flags = [part for setting in settings for part in ("--set", setting)]
    done = helm("template", "pointsman", str(CHART), "--namespace", "pointsman-system", *flags)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def pod_templates(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for item in objects:
        if "template" in item.get("spec", {}):
            yield f"{item['kind']}/{item['metadata']['name']}", item["spec"]["template"]["spec"]


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name)
    return found


def environment(objects: list[dict[str, Any]]) -> dict[str, Any]:
    container = one(objects, "Deployment", "pointsman-operator")["spec"]["template"]["spec"]["containers"][0]
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


def test_helm_finds_nothing_to_complain_about(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_object_is_valid_for_kubernetes(helm: Helm, settings: tuple[str, ...]) -> None:
    objects = rendered(helm, *settings)
    assert objects
    for item in objects:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_no_two_objects_have_one_name(helm: Helm, settings: tuple[str, ...]) -> None:
    names = [
        (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        for item in rendered(helm, *settings)
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_container_has_a_read_only_root_and_requests(helm: Helm, settings: tuple[str, ...]) -> None:
    for name, spec in pod_templates(rendered(helm, *settings)):
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("operatr.replicas=2", "operatr"),
        ("operator.replicas=two", "replicas"),
        ("nats.jetStream.memory=1G", "memory"),
        ("bindHost=localhost", "bindHost"),
        ("imagePullPolicy=Sometimes", "imagePullPolicy"),
        ("nats.url=nats://user:secret@host:4222", "url"),
        ("monitoring.podMonitor.enabled=true", "podMonitor"),
        ("monitoring.podMonitors.interval=15", "interval"),
        ("nats.enabled=false", "set nats.url to the server to use"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Helm, setting: str, complaint: str) -> None:
    done = helm("template", "pointsman", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_the_crds_stay_when_the_chart_goes(helm: Helm) -> None:
    crds = [item for item in rendered(helm) if item["kind"] == "CustomResourceDefinition"]
    assert {item["metadata"]["name"] for item in crds} == {
        path.stem + ".pointsman.dev" for path in (ROOT / "crds").glob("*.yaml")
    }
    assert all(item["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for item in crds)


def test_an_address_placeholder_reaches_the_operator_unexpanded(helm: Helm) -> None:
    told = environment(rendered(helm, "bindHost=$(POD_IP)"))
    assert told["POINTSMAN_BIND_HOST"] == "$(POD_IP)"  # the kubelet puts the operator's own address in
    assert told["POINTSMAN_POD_BIND_HOST"] == "$$(POD_IP)"  # and leaves this one for workers and gateways


def test_images_default_to_the_charts_version(helm: Helm) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    told = environment(rendered(helm))
    assert told["POINTSMAN_WORKER_IMAGE"] == f"pointsman/worker:{version}"
    assert told["POINTSMAN_GATEWAY_IMAGE"] == f"pointsman/gateway:{version}"


def test_the_password_of_nats_is_on_no_command_line_and_in_no_plain_value(helm: Helm) -> None:
    objects = rendered(helm)
    for _, spec in pod_templates(objects):
        for container in spec["containers"]:
            for item in container["env"]:
                if "PASSWORD" in item["name"]:
                    assert "secretKeyRef" in item["valueFrom"]
    generated = one(objects, "Secret", "pointsman-nats")["data"]["nats-password"]
    assert sum(generated in yaml.safe_dump(item) for item in objects) == 1


def granted(*rules: dict[str, Any]) -> set[tuple[str, str, str, str]]:
    """(group, resource, verb, name or "*") of every single right in ``rules``."""
    return {
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", ["*"])
    }


def test_the_chart_grants_the_operator_what_it_says_it_does_and_nothing_else(helm: Helm) -> None:
    objects = rendered(helm)
    in_the_cluster = granted(*one(objects, "ClusterRole", "pointsman-operator")["rules"])
    assert in_the_cluster == granted(*(rule.manifest() for rule in CLUSTER_RULES))
    own_lease = granted(*one(objects, "Role", "pointsman-operator")["rules"])
    assert {right[:3] for right in own_lease} == {
        right[:3] for right in granted(*(rule.manifest() for rule in LEASE_RULES))
    }


def test_the_chart_grants_the_planner_what_it_says_it_does_and_nothing_else(helm: Helm) -> None:
    objects = rendered(helm)
    in_the_cluster = granted(*one(objects, "ClusterRole", "pointsman-planner")["rules"])
    assert in_the_cluster == granted(*(rule.manifest() for rule in planner.CLUSTER_RULES))
    own_lease = granted(*one(objects, "Role", "pointsman-planner")["rules"])
    said = granted(*(rule.manifest() for rule in planner.LEASE_RULES))
    assert {right[:3] for right in own_lease} == {right[:3] for right in said}


def test_the_operator_can_give_away_no_right_that_it_lacks(helm: Helm) -> None:
    rules = one(rendered(helm), "ClusterRole", "pointsman-operator")["rules"]
    assert not any({"bind", "escalate", "impersonate", "*"} & set(rule["verbs"]) for rule in rules)


def test_with_one_namespace_the_operator_has_no_rights_elsewhere(helm: Helm) -> None:
    objects = rendered(helm, "watchNamespace=models")
    assert not [item for item in objects if item["kind"] == "ClusterRoleBinding"]
    assert environment(objects)["POINTSMAN_WATCH_NAMESPACE"] == "models"


def test_two_installations_share_no_object_of_the_cluster(helm: Helm) -> None:
    def of_the_cluster(release: str, *settings: str) -> set[tuple[str, str]]:
        flags = [part for setting in settings for part in ("--set", setting)]
        done = helm("template", release, str(CHART), "--namespace", "pointsman-system", *flags)
        items = [item for item in yaml.safe_load_all(done.stdout) if item]
        return {(i["kind"], i["metadata"]["name"]) for i in items if "namespace" not in i["metadata"]}

    one_team = of_the_cluster("pointsman", "watchNamespace=a")
    another = of_the_cluster("pointsman-b", "watchNamespace=b", "crds.install=false")
    assert ("ClusterRole", "pointsman-b-operator") in another
    assert one_team & another == set()


def test_an_environment_of_ipv6_addresses_is_bound_to(helm: Helm) -> None:
    told = environment(rendered(helm, "bindHost=::"))
    assert (told["POINTSMAN_BIND_HOST"], told["POINTSMAN_POD_BIND_HOST"]) == ("::", "::")


def test_a_disruption_budget_exists_only_where_two_operators_do(helm: Helm) -> None:
    assert not [item for item in rendered(helm) if item["kind"] == "PodDisruptionBudget"]
    assert [item for item in rendered(helm, "operator.replicas=2") if item["kind"] == "PodDisruptionBudget"]


def test_a_cluster_that_chooses_users_itself_gets_none_from_the_chart(helm: Helm) -> None:
    given = [f"podSecurityContext.{key}=null" for key in ("runAsUser", "runAsGroup", "fsGroup")]
    templates = dict(pod_templates(rendered(helm, *given)))
    assert len(templates) == 4, "operator, planner, NATS, uninstall hook"
    for name, spec in templates.items():
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}, name
    for name, spec in pod_templates(rendered(helm)):
        assert spec["securityContext"]["runAsUser"] == 65532, name


def test_the_uninstall_hook_runs_where_the_operator_runs(helm: Helm) -> None:
    objects = rendered(
        helm,
        "operator.nodeSelector.a=b",
        "operator.tolerations[0].operator=Exists",
        "operator.affinity.nodeAffinity.a=b",
        "operator.priorityClassName=high",
        "operator.podAnnotations.mesh=none",
    )
    hook = one(objects, "Job", "pointsman-uninstall")["spec"]["template"]
    operator = one(objects, "Deployment", "pointsman-operator")["spec"]["template"]
    for key in ("nodeSelector", "tolerations", "affinity", "priorityClassName"):
        assert hook["spec"][key] == operator["spec"][key], key
    assert hook["metadata"]["annotations"] == {"mesh": "none"}


def test_two_releases_of_one_name_can_have_names_of_their_own(helm: Helm) -> None:
    def cluster_wide(*settings: str) -> set[tuple[str, str]]:
        kinds = {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
        objects = rendered(helm, "crds.install=false", *settings)
        return {(item["kind"], item["metadata"]["name"]) for item in objects if item["kind"] in kinds}

    assert cluster_wide()
    assert not cluster_wide() & cluster_wide("fullnameOverride=pointsman-of-b")


def test_the_chart_renders_as_a_dependency_and_with_build_metadata_in_its_version(helm: Helm, tmp_path: Path) -> None:
    """CI systems append +build to versions, and + is allowed in no label."""
    shutil.copytree(CHART, tmp_path / "parent" / "charts" / "pointsman")
    child = tmp_path / "parent" / "charts" / "pointsman" / "Chart.yaml"
    chart = yaml.safe_load(child.read_text())
    child.write_text(yaml.safe_dump(chart | {"version": "0.1.0+build.7", "appVersion": "0.1.0+build.7"}))
    parent = {
        "apiVersion": "v2", "name": "platform", "version": "1.0.0",
        "dependencies": [{"name": "pointsman", "version": "0.1.0+build.7"}],
    }  # fmt: skip
    (tmp_path / "parent" / "Chart.yaml").write_text(yaml.safe_dump(parent))
    (tmp_path / "parent" / "values.yaml").write_text(yaml.safe_dump({"global": {"region": "x"}}))
    openshift = ("--set", "pointsman.podSecurityContext.runAsUser=null")
    done = helm("template", "platform", str(tmp_path / "parent"), "--namespace", "pointsman-system", *openshift)
    assert done.returncode == 0, done.stderr
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    for item in objects:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
        for value in item["metadata"].get("labels", {}).values():
            assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", value), item["metadata"]
    for name, spec in pod_templates(objects):
        assert "runAsUser" not in spec["securityContext"], name
