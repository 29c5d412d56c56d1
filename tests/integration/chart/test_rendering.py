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

from fixtures.helm_release import CHART, REGISTRY
from pointsman.api.protocol.names import GROUP
from pointsman.kube.permissions import Rule
from pointsman.operator.permissions import CLUSTER_RULES, LEASE_RULES
from pointsman.planner import permissions as planner

ROOT = Path(__file__).parents[3]
KUBERNETES = "1.36"
NATS_IMAGE = "nats:2.15.2-alpine"

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
    "accounts, rights, labels and volumes of one's own": (
        "rbac.create=false",
        "operator.serviceAccount.create=false",
        "operator.serviceAccount.name=theirs",
        "planner.serviceAccount.name=other",
        "commonLabels.cost-centre=42a",
        "operator.podLabels.team=x",
        "operator.volumes[0].name=ca",
        "operator.volumes[0].configMap.name=ca",
        "operator.volumeMounts[0].name=ca",
        "operator.volumeMounts[0].mountPath=/ca",
        "planner.volumes[0].name=ca",
        "planner.volumes[0].configMap.name=ca",
        "planner.volumeMounts[0].name=ca",
        "planner.volumeMounts[0].mountPath=/ca",
    ),
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
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=240)

    return run


Helm = Callable[..., subprocess.CompletedProcess[str]]


def rendered(helm: Helm, *settings: str) -> list[dict[str, Any]]:
    """The objects of the chart with ``settings``."""
    flags = [part for setting in settings for part in ("--set", setting)]
    done = helm("template", "pointsman", str(CHART), "--namespace", "pointsman-system", *REGISTRY, *flags)
    assert done.returncode == 0, done.stderr
    return [item for item in yaml.safe_load_all(done.stdout) if item]


def pod_templates(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for item in objects:
        if "template" in item.get("spec", {}):
            yield f"{item['kind']}/{item['metadata']['name']}", item["spec"]["template"]["spec"]


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (item for item in objects if item["kind"] == kind and item["metadata"]["name"] == name)
    return found


def environment(objects: list[dict[str, Any]], fullname: str = "pointsman") -> dict[str, Any]:
    container = one(objects, "Deployment", f"{fullname}-operator")["spec"]["template"]["spec"]["containers"][0]
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


def test_helm_finds_nothing_to_complain_about(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART), *REGISTRY)
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
        ("images.registry=https://registry.example.com", "registry"),
        ("images.tag=0.1.0+build", "tag"),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Helm, setting: str, complaint: str) -> None:
    done = helm("template", "pointsman", str(CHART), *REGISTRY, "--set", setting)
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


WITHOUT_REGISTRY = (
    "images.registry is not set: set it to the registry and path that hold Pointsman's images, "
    "e.g. registry.example.com/pointsman"
)


def images(objects: list[dict[str, Any]]) -> set[str]:
    """Every image that an installation runs or has the operator run."""
    containers = [
        container
        for _, spec in pod_templates(objects)
        for container in (*spec["containers"], *spec.get("initContainers", ()))
    ]
    told = environment(objects)
    return {told["POINTSMAN_WORKER_IMAGE"], told["POINTSMAN_GATEWAY_IMAGE"], *(each["image"] for each in containers)}


def test_no_image_of_ours_comes_from_a_registry_that_was_not_named(helm: Helm) -> None:
    """A default would be whatever the owner of that name publishes."""
    done = helm("template", "pointsman", str(CHART))
    assert done.returncode != 0
    assert WITHOUT_REGISTRY in done.stderr
    assert WITHOUT_REGISTRY in helm("lint", "--strict", str(CHART)).stderr, (
        "lint reports it; helm lets no chart fail it"
    )
    # Named one by one, with one left out.
    named = [f"images.{name}=r.example.com/{name}@sha256:{'0' * 64}" for name in ("operator", "gateway", "worker")]
    flags = [part for image in named for part in ("--set", image)]
    assert WITHOUT_REGISTRY in helm("template", "pointsman", str(CHART), *flags).stderr
    done = helm("template", "pointsman", str(CHART), *flags, "--set", "planner.enabled=false")
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    assert images(objects) == {*(image.split("=", 1)[1] for image in named), NATS_IMAGE}


def test_one_value_names_the_registry_of_all_images_and_one_their_tag(helm: Helm) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    components = ("operator", "planner", "gateway", "worker")
    registry = REGISTRY[1].partition("=")[2]
    assert images(rendered(helm)) == {*(f"{registry}/{name}:{version}" for name in components), NATS_IMAGE}
    mirrored = rendered(helm, "images.registry=localhost:5000/", "images.tag=v2", "images.nats=localhost:5000/nats:2")
    assert images(mirrored) == {*(f"localhost:5000/{name}:v2" for name in components), "localhost:5000/nats:2"}


def test_values_that_an_upgrade_keeps_from_an_earlier_chart_are_enough_or_refused_with_the_remedy(
    helm: Helm, tmp_path: Path
) -> None:
    """With --reuse-values helm puts the installed chart's defaults in the place of this chart's."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def kept(name: str) -> str:
        chart = Path(shutil.copytree(CHART, tmp_path / name))
        (chart / "values.yaml").write_text(yaml.safe_dump(values))
        return str(chart)

    del values["commonLabels"]
    del values["rbac"]["create"]
    for group, names in {
        "images": ("registry", "tag"),
        "operator": ("volumes", "volumeMounts", "serviceAccount"),
        "planner": ("volumes", "volumeMounts", "serviceAccount"),
    }.items():
        for name in names:
            del values[group][name]
        if "serviceAccount" in names:
            values[group]["serviceAccount"] = {"annotations": {}}
    before_registry = kept("before-registry")
    assert WITHOUT_REGISTRY in helm("template", "pointsman", before_registry).stderr
    done = helm("template", "pointsman", before_registry, "--namespace", "pointsman-system", *REGISTRY)
    assert done.returncode == 0, done.stderr
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    assert [_without_secrets(item) for item in objects] == [_without_secrets(item) for item in rendered(helm)]
    del values["nats"]["authorizer"]
    done = helm("template", "pointsman", kept("before-authorizer"), *REGISTRY)
    assert "Upgrade with --reset-then-reuse-values" in done.stderr


def _without_secrets(item: dict[str, Any]) -> str:
    """An object without what is generated anew at each rendering."""
    text = yaml.safe_dump({key: value for key, value in item.items() if key != "data"})
    return re.sub(r"checksum/secret: \w+", "", text)


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


WRITES = {"create", "update", "patch", "delete"}
UNCHECKED = {"pods", "pods/status", "events"}  # each worker is verified, and an Event changes nothing


@pytest.mark.parametrize(
    ("rights", "policy"),
    [(CLUSTER_RULES, "pointsman-operator-objects"), (planner.CLUSTER_RULES, "pointsman-planner-state")],
    ids=["operator", "planner"],
)
def test_admission_policies_look_at_every_write_of_what_others_have_too(
    helm: Helm, rights: tuple[Rule, ...], policy: str
) -> None:
    """RBAC does not say whose objects: with a right to write Secrets alone, an account writes any Secret."""
    written = {
        (rule.group, kind)
        for rule in rights
        for kind in rule.resources
        if rule.group != GROUP and kind not in UNCHECKED and not WRITES.isdisjoint(rule.verbs)
    }
    constraints = one(rendered(helm), "ValidatingAdmissionPolicy", policy)["spec"]["matchConstraints"]
    looked_at = {
        (group, kind, operation)
        for rule in constraints["resourceRules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for operation in rule["operations"]
    }
    assert looked_at == {(*each, operation) for each in written for operation in ("CREATE", "UPDATE", "DELETE")}


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
        done = helm("template", release, str(CHART), "--namespace", "pointsman-system", *REGISTRY, *flags)
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
        "operator.podLabels.team=x",
        "operator.env[0].name=HTTPS_PROXY",
        "operator.env[0].value=http://proxy:3128",
        "operator.resources.limits.cpu=2",
        "operator.volumes[0].name=ca",
        "operator.volumes[0].configMap.name=ca",
        "operator.volumeMounts[0].name=ca",
        "operator.volumeMounts[0].mountPath=/ca",
    )
    hook = one(objects, "Job", "pointsman-uninstall")["spec"]["template"]
    operator = one(objects, "Deployment", "pointsman-operator")["spec"]["template"]
    placed = {
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"a": "b"}},
        "priorityClassName": "high",
    }
    for key, value in placed.items():
        assert hook["spec"][key] == operator["spec"][key] == value, key
    assert hook["spec"]["volumes"] == operator["spec"]["volumes"]
    assert hook["metadata"]["annotations"] == {"mesh": "none"}
    assert hook["metadata"]["labels"]["team"] == "x"
    (container,), (other,) = hook["spec"]["containers"], operator["spec"]["containers"]
    for key in ("resources", "volumeMounts"):
        assert container[key] == other[key], key
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"]


def test_every_object_and_pod_of_the_chart_has_the_common_labels_and_ours_win(helm: Helm) -> None:
    labels = ("commonLabels.team=a", "commonLabels.app\\.kubernetes\\.io/component=x", "planner.podLabels.team=b")
    for item in rendered(helm, *labels, "alerts.enabled=true", "monitoring.podMonitors.enabled=true"):
        assert item["metadata"]["labels"]["team"] == "a", item["metadata"]
        assert item["metadata"]["labels"]["app.kubernetes.io/component"] != "x", item["metadata"]
        if "template" in item.get("spec", {}):
            own = {"pointsman-planner": "b"}.get(item["metadata"]["name"], "a")
            assert item["spec"]["template"]["metadata"]["labels"]["team"] == own, "a pod's own labels come first"


def test_accounts_of_another_name_are_the_ones_that_have_the_rights_and_are_limited(helm: Helm) -> None:
    objects = rendered(
        helm,
        "operator.serviceAccount.name=theirs",
        "operator.serviceAccount.create=false",
        "planner.serviceAccount.name=other",
    )
    made = {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}
    assert made == {"other", "pointsman-nats", "pointsman-uninstall"}
    text = yaml.safe_dump_all(objects)
    for component, account in (("operator", "theirs"), ("planner", "other")):
        pods = one(objects, "Deployment", f"pointsman-{component}")["spec"]["template"]["spec"]
        assert pods["serviceAccountName"] == account
        bindings = [one(objects, "ClusterRoleBinding", f"pointsman-{component}")]
        bindings += [one(objects, "RoleBinding", f"pointsman-{component}-lease")]
        assert all(binding["subjects"][0]["name"] == account for binding in bindings)
        assert f"system:serviceaccount:pointsman-system:{account}'" in text, "the admission policies name it"
        assert f"system:serviceaccount:pointsman-system:pointsman-{component}" not in text


def test_a_platform_that_gives_rights_itself_is_asked_for_none(helm: Helm) -> None:
    kinds = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    others = [_without_secrets(item) for item in rendered(helm) if item["kind"] not in kinds]
    assert [_without_secrets(item) for item in rendered(helm, "rbac.create=false")] == others


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
    given = ("--set", "pointsman.podSecurityContext.runAsUser=null", "--set", "pointsman.images.registry=r.example.com")
    done = helm("template", "platform", str(tmp_path / "parent"), "--namespace", "pointsman-system", *given)
    assert done.returncode == 0, done.stderr
    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    for item in objects:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
        for value in item["metadata"].get("labels", {}).values():
            assert re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", value), item["metadata"]
    for name, spec in pod_templates(objects):
        assert "runAsUser" not in spec["securityContext"], name
    assert "r.example.com/worker:0.1.0_build.7" in {
        str(value) for value in environment(objects, "platform-pointsman").values()
    }
