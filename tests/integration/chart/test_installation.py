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
from pointsman.local.control_plane import ControlPlane
from pointsman.local.errors import ControlPlaneError
from pointsman.operator import uninstall
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

    before = password()
    assert len(before) == 40
    release.install("operator.logLevel=DEBUG")
    assert password() == before
    release.helm("uninstall", RELEASE, "--no-hooks")
    release.install()
    assert password() == before, "workers that lived on have it in their environment"


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
        except ControlPlaneError as error:
            return str(error)
        return ""

    said = until(refusal, "the planner's account is refused")
    assert "spec.approval.decision is Approved" in said
    assert "a person does" in said

    kubectl("create", planner, "-f", "-", stdin=plan(namespace))
    kubectl("-n", namespace, "create", "rolebinding", "ed", "--clusterrole=edit", "--user=ed")
    approve = ("patch", "plan", "chat-1", "--type=merge", '--patch={"spec": {"approval": {"decision": "Approved"}}}')
    with pytest.raises(ControlPlaneError, match="forbidden"):
        kubectl("-n", namespace, *approve, planner)

    def approved() -> bool:
        """The aggregated role reaches ``edit`` a moment after it was installed."""
        try:
            kubectl("-n", namespace, *approve, "--as=ed")
        except ControlPlaneError:
            return False
        return True

    until(approved, "a person who may edit approves")


def test_the_operator_can_give_a_gateway_its_role_and_no_greater_one(release: Release, namespace: str) -> None:
    def binding(role: str) -> str:
        return json.dumps(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "RoleBinding",
                "metadata": {"name": "given", "namespace": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
            }
        )

    operator = f"--as=system:serviceaccount:{release.namespace}:{RELEASE}-operator"
    kubectl = release.control_plane.kubectl
    kubectl("create", "--dry-run=server", operator, "-f", "-", stdin=binding(f"{RELEASE}-gateway"))
    with pytest.raises(ControlPlaneError, match="attempting to grant RBAC permissions not currently held"):
        kubectl("create", "--dry-run=server", operator, "-f", "-", stdin=binding("admin"))


def test_people_who_may_edit_a_namespace_may_serve_models_in_it(release: Release, namespace: str) -> None:
    kubectl = release.control_plane.kubectl
    kubectl("-n", namespace, "create", "rolebinding", "ed", "--clusterrole=edit", "--user=ed")

    def may(verb: str, resource: str, *flags: str) -> bool:
        try:
            answer = kubectl("-n", namespace, "auth", "can-i", verb, resource, "--as=ed", *flags)
        except ControlPlaneError:  # kubectl says no by its exit status
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

    assert "go on serving" in capsys.readouterr().out
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
