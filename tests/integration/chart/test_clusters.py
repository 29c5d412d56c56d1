"""Clusters with taints, quotas and Pod Security: the API server admits the chart's pods, the scheduler places them."""

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fixtures.helm_release import HelmRelease
from pointsman.local.control_plane import ControlPlane
from waiting import until

LIMITS: Final = (
    "operator.resources.limits.cpu=1",
    "planner.resources.limits.cpu=1",
    "nats.resources.limits.cpu=1",
    "nats.authorizer.resources.limits.cpu=500m",
)
"""The chart limits memory only: a limit of CPU makes everything slow that comes in bursts."""


@pytest.fixture
def platform(control_plane: ControlPlane, binary: Callable[[str], Path]) -> Iterator[HelmRelease]:
    """A release to install: ``restricted`` namespace, a quota that asks for requests and limits, one tainted node."""
    name = f"pointsman-{secrets.token_hex(2)}"
    apply = control_plane.apply
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": restricted}})
    hard = {"requests.cpu": "8", "limits.cpu": "8", "requests.memory": "16Gi", "limits.memory": "16Gi"}
    apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "all"}, "spec": {"hard": hard}},
        namespace=name,
    )
    room = {"cpu": "8", "memory": "16Gi", "pods": "20"}
    node: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"pool": name}},
        "spec": {"taints": [{"key": "pool", "value": name, "effect": "NoSchedule"}]},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "StandIn"}],
        },
    }
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps(node))
    until(lambda: _used(control_plane, name), "the quota is enforced")
    release = HelmRelease(control_plane, binary("helm"), name, name)
    yield release
    release.helm("uninstall", name, "--no-hooks", "--ignore-not-found")
    control_plane.kubectl("delete", "namespace", name, "--wait=false")
    control_plane.kubectl("delete", "node", name, "--wait=false")


def _used(control_plane: ControlPlane, namespace: str) -> dict[str, str]:
    found: dict[str, str] = control_plane.get("resourcequota", "all", namespace)["status"].get("used", {})
    return found


def refusal(release: HelmRelease) -> str:
    """Why the operator's pod is not made."""
    status = release.control_plane.get("deployment", f"{release.name}-operator", release.namespace)["status"]
    return "".join(each["message"] for each in status.get("conditions", ()) if each["type"] == "ReplicaFailure")


def placed(release: HelmRelease) -> set[str]:
    """The components whose pods have the node."""
    listed = json.loads(release.control_plane.kubectl("get", "pods", "-n", release.namespace, "-o", "json"))["items"]
    return {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for pod in listed
        if pod["spec"].get("nodeName") == release.name
    }


@pytest.mark.parametrize("limits_of_the_namespace", [False, True], ids=["limits by values", "limits by a LimitRange"])
def test_every_pod_of_the_chart_is_admitted_and_placed(platform: HelmRelease, limits_of_the_namespace: bool) -> None:
    control_plane, namespace = platform.control_plane, platform.namespace
    settings = [f"{component}.nodeSelector.pool={platform.name}" for component in ("operator", "planner", "nats")]
    for component in ("operator", "planner", "nats"):
        settings += [f"{component}.tolerations[0].key=pool", f"{component}.tolerations[0].operator=Exists"]
    if limits_of_the_namespace:
        limits = {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}
        limit_range = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "all"}, "spec": limits}
        control_plane.apply(limit_range, namespace=namespace)
    else:
        platform.install()
        until(lambda: "must specify limits.cpu for: operator" in refusal(platform), "the defaults are refused")
        settings += LIMITS
    platform.install(*settings)
    until(lambda: placed(platform) == {"operator", "planner", "nats"}, "operator, planner and NATS have a node")

    # The hook by itself: nothing runs here, so that helm would wait for it.
    hooks = [item for item in yaml.safe_load_all(platform.helm("get", "hooks", platform.name)) if item]
    control_plane.apply(*hooks, namespace=namespace)
    until(lambda: "uninstall" in placed(platform), "the uninstall hook has a node")
    control_plane.kubectl("delete", "-f", "-", "--wait=false", stdin=yaml.safe_dump_all(hooks))
