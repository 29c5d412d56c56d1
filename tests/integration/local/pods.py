"""Pods for these tests, and looking at them."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pointsman.local.control_plane import ControlPlane
from waiting import until

Object = dict[str, Any]


def pod(name: str, script: str, *, image: str = "host", **container: Any) -> Object:
    """A pod with one container ``main`` that runs a shell script; ``restartPolicy`` and the like go to the spec."""
    spec = {
        key: container.pop(key)
        for key in ("restartPolicy", "terminationGracePeriodSeconds", "volumes", "initContainers", "readinessGates")
        if key in container
    }
    main = {"name": "main", "image": image, "command": ["sh", "-c", script], **container}
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [main], **spec}}


class Pods:
    """The pods of one namespace."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane = control_plane
        self.namespace = namespace

    def run(self, *objects: Mapping[str, Any]) -> None:
        """Create them."""
        self.control_plane.apply(*objects, namespace=self.namespace)

    def kubectl(self, *arguments: str) -> str:
        """kubectl in this namespace."""
        return self.control_plane.kubectl(*arguments, "-n", self.namespace)

    def get(self, name: str) -> Object:
        """The pod as it is."""
        return self.control_plane.get("pod", name, self.namespace)

    def status(self, name: str) -> Object:
        """Its status."""
        status: Object = self.get(name).get("status", {})
        return status

    def container(self, name: str) -> Object:
        """Status of its first container; empty before the node wrote one."""
        statuses: list[Object] = self.status(name).get("containerStatuses") or [{}]
        return statuses[0]

    def logs(self, name: str, *arguments: str) -> str:
        """What it printed."""
        return self.kubectl("logs", name, *arguments)

    def until(self, name: str, condition: Callable[[Object], Any], what: str) -> Any:
        """Wait for a condition on the pod's first container status."""
        return until(lambda: condition(self.container(name)), f"pod {name}: {what}")

    def until_phase(self, name: str, phase: str) -> Object:
        """Wait for a phase; the status."""
        until(lambda: self.status(name).get("phase") == phase, f"pod {name} is {phase}")
        return self.status(name)

    def until_ready(self, *names: str) -> None:
        """Wait until pods are Ready."""
        for name in names:
            until(partial(self._is_ready, name), f"pod {name} is Ready")

    def _is_ready(self, name: str) -> bool:
        return condition(self.status(name), "Ready") == "True"

    def until_gone(self, name: str) -> None:
        """Wait until the API has no such pod."""
        until(lambda: not self.kubectl("get", "pod", name, "--ignore-not-found"), f"pod {name} is gone")

    def events(self, name: str) -> list[str]:
        """``reason: note`` of the pod's Events, oldest first."""
        found = json.loads(self.kubectl("get", "events.events.k8s.io", "-o", "json"))["items"]
        mine = [event for event in found if event["regarding"]["name"] == name]
        return [f"{event['reason']}: {event['note']}" for event in mine]


def condition(status: Mapping[str, Any], kind: str) -> str | None:
    """Status of one condition."""
    return next((c["status"] for c in status.get("conditions") or () if c["type"] == kind), None)


def waiting_reason(container: Mapping[str, Any]) -> str | None:
    """Why a container does not run; None if it does, or did."""
    reason: str | None = container.get("state", {}).get("waiting", {}).get("reason")
    return reason
