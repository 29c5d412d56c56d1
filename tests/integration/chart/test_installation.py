"""The chart on a real control plane: installed, upgraded, uninstalled with services in place."""

import base64
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.helm_release import HelmRelease
from pointsman.api.protocol.names import FINALIZER
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.local.control_plane import ControlPlane
from pointsman.local.errors import ControlPlaneFailed
from pointsman.operator import uninstall
from pointsman.operator.core.gateway import gateway_objects
from pointsman.operator.core.install import Install
from pointsman.operator.core.snapshot import Service
from waiting import until

# Its own: other tests may have a chart on the same control plane, and ClusterRoles have no namespace.
RELEASE = f"pointsman-{secrets.token_hex(2)}"


class Release(HelmRelease):
    """One release of the chart in a namespace that enforces the restricted profile."""

    def objects(self) -> list[dict[str, Any]]:
        return [item for item in yaml.safe_load_all(self.helm("get", "manifest", RELEASE)) if item]

    def hooks(self) -> list[dict[str, Any]]:
        return [item for item in yaml.safe_load_all(self.helm("get", "hooks", RELEASE)) if item]

    def may(self, account: str, verb: str, resource: str) -> bool:
        """What RBAC says to ``account`` of the release's namespace."""
        user = f"system:serviceaccount:{self.namespace}:{account}"
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": _attributes(verb, resource)},
        }
        answer = self.control_plane.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
        return bool(json.loads(answer)["status"]["allowed"])


def _attributes(verb: str, resource: str) -> dict[str, str]:
    plural, _, group = resource.partition(".")
    plural, _, subresource = plural.partition("/")
    return {
        "verb": verb,
        "resource": plural,
        "group": group,
        "subresource": subresource,
        "namespace": "default",
    }


@pytest.fixture(scope="module")
def release(control_plane: ControlPlane, binary: Callable[[str], Path]) -> Iterator[Release]:
    namespace = f"pointsman-{secrets.token_hex(2)}"
    control_plane.kubectl("create", "namespace", namespace)
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    release = Release(control_plane, binary("helm"), RELEASE, namespace)
    release.install()
    yield release
    # no node runs the hook here; what it does is tried below
    release.helm("uninstall", RELEASE, "--no-hooks", "--ignore-not-found")
    control_plane.kubectl("delete", "namespace", namespace, "--wait=false")


def test_the_notes_say_what_to_do_next(release: Release) -> None:
    notes = release.install()
    assert "kubectl apply" in notes
    assert "helm uninstall" in notes


def test_every_pod_passes_the_restricted_profile(release: Release) -> None:
    tried = []
    for item in (*release.objects(), *release.hooks()):
        template = item.get("spec", {}).get("template")
        if template is None:
            continue
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried"}, "spec": template["spec"]}
        pod["spec"].pop("serviceAccountName")
        release.control_plane.kubectl(
            "-n", release.namespace, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod)
        )
        tried.append(item["kind"])
    assert sorted(tried) == ["Deployment", "Deployment", "Job", "StatefulSet"]


def test_the_generated_password_outlives_an_upgrade_and_a_new_installation(release: Release) -> None:
    def password() -> bytes:
        secret = release.control_plane.get("secret", f"{RELEASE}-nats", release.namespace)
        return base64.b64decode(secret["data"]["nats-password"])

    def key() -> dict[str, bytes]:
        secret = release.control_plane.get("secret", f"{RELEASE}-nats-services", release.namespace)
        return {name: base64.b64decode(value) for name, value in secret["data"].items()}

    before, key_before = password(), key()
    assert len(before) == 40
    assert len(key_before["nats-service-key"]) == 40
    assert key_before["nats-earlier-versions"] == b"refused", "no pod of a new installation is of an earlier version"
    release.install("operator.logLevel=DEBUG")
    assert (password(), key()) == (before, key_before)
    release.helm("uninstall", RELEASE, "--no-hooks")
    release.install()
    assert (password(), key()) == (before, key_before), "workers that lived on have their logins in their environment"


def test_an_installation_from_before_the_services_had_logins_lets_its_pods_in_after_an_upgrade(
    release: Release,
) -> None:
    kubectl = release.control_plane.kubectl
    kubectl("-n", release.namespace, "delete", "secret", f"{RELEASE}-nats-services")
    release.install()
    secret = release.control_plane.get("secret", f"{RELEASE}-nats-services", release.namespace)
    assert base64.b64decode(secret["data"]["nats-earlier-versions"]) == b"accepted"
    assert len(base64.b64decode(secret["data"]["nats-service-key"])) == 40


def annotations(release: Release, kind: str, name: str) -> dict[str, str]:
    """Of the pod template: a change of one replaces the pods."""
    found: dict[str, str] = release.control_plane.get(kind, name, release.namespace)["spec"]["template"]["metadata"][
        "annotations"
    ]
    return found


def test_pods_are_replaced_when_their_secret_changes_and_not_else(release: Release) -> None:
    workloads = [("deployment", f"{RELEASE}-operator"), ("statefulset", f"{RELEASE}-nats")]
    own = f"nats.auth.existingSecret={RELEASE}-own"
    kubectl = release.control_plane.kubectl
    literals = ["--from-literal=nats-user=u", "--from-literal=nats-password=p"]
    kubectl("-n", release.namespace, "create", "secret", "generic", f"{RELEASE}-own", *literals)
    release.install(own)
    before = [annotations(release, *each) for each in workloads]
    release.install(own)
    assert [annotations(release, *each) for each in workloads] == before
    kubectl("-n", release.namespace, "patch", "secret", f"{RELEASE}-own", '--patch={"stringData": {"nats-user": "v"}}')
    release.install(own)
    after = [annotations(release, *each) for each in workloads]
    assert all(old["checksum/secret"] != new["checksum/secret"] for old, new in zip(before, after, strict=True))
    release.install("nats.auth.existingSecret=")


def volumes(release: Release) -> tuple[list[str], list[str]]:
    """Claims of the StatefulSet's template and of its pods; and where NATS keeps its streams."""
    spec = release.control_plane.get("statefulset", f"{RELEASE}-nats", release.namespace)["spec"]
    pod = spec["template"]["spec"]
    claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates") or ()]
    claims += [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
    stores = [item["value"] for item in pod["initContainers"][0]["env"] if item["name"] == "POINTSMAN_NATS_STORE"]
    return claims, stores


def test_persistence_is_switched_on_and_off_by_an_upgrade(release: Release) -> None:
    """A StatefulSet's volumeClaimTemplates cannot be changed, so an upgrade that changes them is refused."""
    on, off = "nats.persistence.enabled=true", "nats.persistence.enabled=false"
    assert volumes(release) == ([], [])
    release.install(on)
    assert volumes(release) == ([f"{RELEASE}-nats-data"], ["/data"])
    release.install(off)
    assert volumes(release) == ([], [])
    # The same from an installation that began with a volume.
    release.control_plane.kubectl("-n", release.namespace, "delete", "statefulset", f"{RELEASE}-nats")
    release.install(on)
    assert volumes(release) == (["data"], ["/data"])
    release.install(on, "nats.persistence.size=3Gi")
    release.install(off)
    assert volumes(release) == (["data"], []), "the template stays, and nothing is mounted"
    release.install(on)
    assert volumes(release) == (["data"], ["/data"])
    release.control_plane.kubectl("-n", release.namespace, "delete", "statefulset", f"{RELEASE}-nats")
    release.install(off)


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("patch", "llmservices.pointsman.dev", True),
        ("patch", "llmservices/status.pointsman.dev", True),
        ("delete", "llmservices.pointsman.dev", False),
        ("create", "pods", True),
        ("create", "pods/exec", False),
        ("list", "secrets", False),
        ("create", "clusterroles.rbac.authorization.k8s.io", False),
        ("get", "nodes", False),
    ],
)
def test_the_operator_may_do_what_it_needs_and_no_more(
    release: Release, verb: str, resource: str, allowed: bool
) -> None:
    assert release.may(f"{RELEASE}-operator", verb, resource) is allowed


def plan(namespace: str, **approval: str) -> str:
    return json.dumps(
        {
            "apiVersion": "pointsman.dev/v1alpha1",
            "kind": "Plan",
            "metadata": {"name": "chat-1", "namespace": namespace},
            "spec": {
                "serviceRef": {"name": "chat"},
                "sequence": 1,
                "mode": "Approve",
                "observedAt": "2026-01-01T00:00:00Z",
                "expiresAt": "2026-01-01T00:15:00Z",
                "pools": {"prefill": {"replicas": 2}, "decode": {"replicas": 1}},
                "routing": {"maxLocalPrefillTokens": 512, "maxPrefillQueueSize": 8},
                "changesLayout": True,
                "reason": "PrefillShort",
                "message": "prompts wait",
                "approval": {"required": True, **approval},
            },
        }
    )


def test_the_planner_cannot_approve_its_own_plan_and_a_person_can(release: Release, namespace: str) -> None:
    kubectl = release.control_plane.kubectl
    planner = f"--as=system:serviceaccount:{release.namespace}:{RELEASE}-planner"

    def refusal() -> str:
        """The admission policy is in force a moment after it was installed."""
        try:
            kubectl("create", "--dry-run=server", planner, "-f", "-", stdin=plan(namespace, decision="Approved"))
        except ControlPlaneFailed as error:
            return str(error)
        return ""

    # Before the policy is in force it may be the role that is not.
    until(lambda: "spec.approval.decision is Approved" in refusal(), "the planner's account is refused")
    assert "a person does" in refusal()

    kubectl("create", planner, "-f", "-", stdin=plan(namespace))
    kubectl("-n", namespace, "create", "rolebinding", "ed", "--clusterrole=edit", "--user=ed")
    approve = ("patch", "plan", "chat-1", "--type=merge", '--patch={"spec": {"approval": {"decision": "Approved"}}}')
    with pytest.raises(ControlPlaneFailed, match="forbidden"):
        kubectl("-n", namespace, *approve, planner)

    def approved() -> bool:
        """The aggregated role reaches ``edit`` a moment after it was installed."""
        try:
            kubectl("-n", namespace, *approve, "--as=ed")
        except ControlPlaneFailed:
            return False
        return True

    until(approved, "a person who may edit approves")


def until_refused(release: Release, account: str, *command: str, why: str, stdin: str = "") -> None:
    """Wait until an account of the release may not do something for that reason.

    Roles and policies are in force a moment after the installation, each at its own time.
    """

    def refusal() -> bool:
        try:
            release.control_plane.kubectl(*command, f"--as={account}", stdin=stdin or None)
        except ControlPlaneFailed as error:
            return why in str(error)
        return False

    until(refusal, f"{account} is refused: {command}: {why}")


def test_whoever_approves_a_plan_is_named_as_who_they_are_or_not_at_all(release: Release, namespace: str) -> None:
    kubectl = release.control_plane.kubectl
    kubectl("create", "-f", "-", stdin=plan(namespace))
    kubectl("-n", namespace, "create", "rolebinding", "ann", "--clusterrole=edit", "--user=ann")

    def approve(by: str) -> tuple[str, ...]:
        patch = json.dumps({"spec": {"approval": {"decision": "Approved", "by": by}}})
        return ("-n", namespace, "patch", "plan", "chat-1", "--type=merge", f"--patch={patch}", "--dry-run=server")

    until_refused(release, "ann", *approve("bob"), why="spec.approval.by is bob: it must be the user")
    kubectl(*approve("ann"), "--as=ann")
    forged = json.loads(plan(namespace, decision="Denied", by="bob"))
    forged["metadata"]["name"] = "chat-2"
    with pytest.raises(ControlPlaneFailed, match="must be the user"):
        kubectl("create", "-f", "-", stdin=json.dumps(forged))


def config_map(namespace: str, name: str) -> str:
    metadata = {"name": name, "namespace": namespace}
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "b"}})


def test_the_planner_writes_no_config_map_but_its_memory_of_services(release: Release, namespace: str) -> None:
    planner = f"system:serviceaccount:{release.namespace}:{RELEASE}-planner"
    kubectl = release.control_plane.kubectl
    create = ("create", "--dry-run=server", "-f", "-")
    why = "the planner may not write"
    until_refused(release, planner, *create, why=f"{why} ConfigMap coredns", stdin=config_map(namespace, "coredns"))
    kubectl("create", "-f", "-", stdin=config_map(namespace, "theirs"))
    patch = ("-n", namespace, "patch", "configmap", "theirs", '--patch={"data": {"a": "c"}}')
    until_refused(release, planner, *patch, why=why)
    apply = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
    until_refused(release, planner, *apply, why=why, stdin=config_map(namespace, "theirs"))
    kubectl(*apply, f"--as={planner}", stdin=config_map(namespace, "chat-planner-state"))


def owned(kind: str, namespace: str, name: str, *, owner: bool) -> str:
    """A Secret, or another object, with or without an owner of Pointsman's."""
    group = {"Secret": "v1", "Service": "v1", "Deployment": "apps/v1", "PodDisruptionBudget": "policy/v1"}
    reference = {"apiVersion": "pointsman.dev/v1alpha1", "kind": "LLMService", "name": "chat", "uid": "u"}
    pods = {"matchLabels": {"a": "b"}}
    container = {"name": "c", "image": "i"}
    specs: dict[str, dict[str, Any]] = {
        "Secret": {"stringData": {"a": "b"}},
        "Service": {"spec": {"ports": [{"port": 80}]}},
        "PodDisruptionBudget": {"spec": {"minAvailable": 1, "selector": pods}},
        "Deployment": {
            "spec": {
                "selector": pods,
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}},
            }
        },
    }
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if owner:
        metadata["ownerReferences"] = [reference]
    return json.dumps({"apiVersion": group[kind], "kind": kind, "metadata": metadata, **specs[kind]})


@pytest.mark.parametrize("kind", ["Secret", "Service", "Deployment", "PodDisruptionBudget"])
def test_the_operator_writes_and_deletes_only_what_belongs_to_pointsman(
    release: Release, namespace: str, kind: str
) -> None:
    operator = f"system:serviceaccount:{release.namespace}:{RELEASE}-operator"
    kubectl = release.control_plane.kubectl
    create = ("create", "--dry-run=server", "-f", "-")
    made = owned(kind, namespace, "made", owner=False)
    until_refused(release, operator, *create, why="it belongs to no object of pointsman.dev", stdin=made)
    kubectl(*create, f"--as={operator}", stdin=owned(kind, namespace, "made", owner=True))
    kubectl("create", "-f", "-", stdin=owned(kind, namespace, "theirs", owner=False))
    delete = ("-n", namespace, "delete", kind, "theirs", "--dry-run=server")
    until_refused(release, operator, *delete, why="belongs to no object")
    apply = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
    # An object is not taken over by naming an owner.
    taken = owned(kind, namespace, "theirs", owner=True)
    until_refused(release, operator, *apply, why="belongs to no object", stdin=taken)
    kubectl("-n", namespace, "delete", kind, "theirs")


def test_the_operator_can_give_a_gateway_its_role_and_no_greater_one(release: Release, namespace: str) -> None:
    """Its role and binding are objects of the service: they stay when the chart goes."""
    operator = f"--as=system:serviceaccount:{release.namespace}:{RELEASE}-operator"
    kubectl = release.control_plane.kubectl
    spec = {"model": {"source": "hf://test/tiny"}}
    owner = {"apiVersion": "pointsman.dev/v1alpha1", "kind": "LLMService", "spec": spec}
    owner["metadata"] = {"name": "chat", "namespace": namespace}
    # The garbage collector deletes what belongs to a service that does not exist.
    uid = kubectl("create", "-f", "-", "-o", "jsonpath={.metadata.uid}", stdin=json.dumps(owner)).strip()
    wanted = LLMServiceSpec.model_validate(spec)
    served = Service(namespace=namespace, name="chat", uid=uid, generation=1, spec=wanted)
    install = Install(worker_image="w", gateway_image="g", nats_url="nats://n:4222")
    role, binding = (
        next(item for item in gateway_objects(served, install) if item["kind"] == kind)
        for kind in ("Role", "RoleBinding")
    )
    kubectl("create", operator, "-f", "-", stdin=json.dumps(role))

    def bound() -> bool:
        """The authorizer hears of a new Role a moment after it was made; the operator tries again, too."""
        try:
            kubectl("create", operator, "-f", "-", stdin=json.dumps(binding))
        except ControlPlaneFailed as error:
            assert "not found" in str(error)
            return False
        return True

    until(bound, "the operator binds the Role")

    def gateway_may(*question: str) -> bool:
        try:
            return kubectl("-n", namespace, "auth", "can-i", *question, f"--as={account}").strip() == "yes"
        except ControlPlaneFailed:  # kubectl says no by its exit status
            return False

    account = f"system:serviceaccount:{namespace}:chat-gateway"
    assert until(lambda: gateway_may("watch", "pods"), "the gateway may follow its workers")
    assert gateway_may("list", "llmservices.pointsman.dev/chat")
    assert not gateway_may("list", "llmservices.pointsman.dev")
    assert not gateway_may("delete", "pods")
    greater = {**role, "metadata": {**role["metadata"], "name": "greater"}}
    for rule in (
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]},
    ):
        with pytest.raises(ControlPlaneFailed, match="attempting to grant RBAC permissions not currently held"):
            kubectl("create", "--dry-run=server", operator, "-f", "-", stdin=json.dumps({**greater, "rules": [rule]}))
    admin = {**binding, "roleRef": {**binding["roleRef"], "kind": "ClusterRole", "name": "admin"}}
    admin["metadata"] = {**binding["metadata"], "name": "admin"}
    with pytest.raises(ControlPlaneFailed, match="attempting to grant RBAC permissions not currently held"):
        kubectl("create", "--dry-run=server", operator, "-f", "-", stdin=json.dumps(admin))


def test_people_who_may_edit_a_namespace_may_serve_models_in_it(release: Release, namespace: str) -> None:
    kubectl = release.control_plane.kubectl
    kubectl("-n", namespace, "create", "rolebinding", "ed", "--clusterrole=edit", "--user=ed")

    def may(verb: str, resource: str, *flags: str) -> bool:
        try:
            answer = kubectl("-n", namespace, "auth", "can-i", verb, resource, "--as=ed", *flags)
        except ControlPlaneFailed:  # kubectl says no by its exit status
            return False
        return answer.strip() == "yes"

    assert until(lambda: may("create", "llmservices.pointsman.dev"), "the aggregated role reaches edit")
    assert may("update", "workerpools.pointsman.dev", "--subresource=scale")
    assert not may("create", "workerpools.pointsman.dev")


def test_uninstalling_frees_the_services_and_deletes_none(
    release: Release, namespace: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service = {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "chat", "namespace": namespace, "finalizers": ["example.com/theirs", FINALIZER]},
        "spec": {"model": {"source": "file:///m"}},
    }
    release.control_plane.apply(service, namespace=namespace)
    # as the hook's service account, with the rights the chart gives it
    hook = release.helm("get", "hooks", RELEASE)
    rights = [item for item in yaml.safe_load_all(hook) if item and item["kind"] != "Job"]
    (job,) = (item for item in yaml.safe_load_all(hook) if item and item["kind"] == "Job")
    release.control_plane.apply(*rights, namespace=release.namespace)
    account = f"system:serviceaccount:{release.namespace}:{job['spec']['template']['spec']['serviceAccountName']}"
    monkeypatch.setenv("KUBECONFIG", str(release.control_plane.kubeconfig_for(account)))
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]

    assert command[:3] == ["python", "-m", "pointsman.operator.uninstall"]
    assert uninstall.main(command[3:]) == 0

    said = capsys.readouterr()
    assert "continue to serve" in said.out
    assert f"finalizer removed service={namespace}/chat" in said.err
    kept = release.control_plane.get("llms", "chat", namespace)
    assert kept["metadata"]["finalizers"] == ["example.com/theirs"]
    assert release.control_plane.get("deployment", f"{RELEASE}-operator", release.namespace)["spec"]["replicas"] == 0
    release.control_plane.kubectl(
        "-n",
        namespace,
        "patch",
        "llms",
        "chat",
        "--type=json",
        "-p",
        '[{"op": "remove", "path": "/metadata/finalizers"}]',
    )
    release.control_plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(rights))
