"""An elastic group as its users have it."""

import json
from contextlib import suppress
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from pointsman.api.protocol import names
from pointsman.local.cluster import SYSTEM_NAMESPACE, LocalCluster


class Group:
    """The group as a user sees it."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """In its namespace."""
        return self.cluster.kubectl("-n", "default", *arguments, stdin=stdin)

    def get(self) -> dict[str, Any]:
        """The object."""
        found: dict[str, Any] = json.loads(self.kubectl("get", "eg", self.name, "-o", "json"))
        return found

    def instances(self) -> dict[str, Any]:
        """Its counts, which follow the present spec."""
        found = self.get()
        status = found.get("status", {})
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        return status.get("instances", {}) if current else {}

    def ready(self, instances: int) -> bool:
        """Whether so many instances work and all is as desired."""
        conditions = {each["type"]: each["status"] for each in self.get().get("status", {}).get("conditions", [])}
        counts = self.instances()
        settled = counts.get("existing") == counts.get("joined") == instances and counts.get("draining") == 0
        return settled and conditions.get("Ready") == "True"

    async def instances_of_manager(self) -> float | None:
        """How many instances the manager works with, as it says itself; None while it says nothing."""
        address = self.kubectl("get", "pod", f"{self.name}-manager-0", "-o", "jsonpath={.status.podIP}")
        url = f"{names.address_url('http', address, names.WORKER_METRICS_PORT)}/metrics"
        with suppress(aiohttp.ClientError):
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                for family in text_string_to_metric_families(await answer.text()):
                    if family.name == "pointsman_elastic_instances":
                        return family.samples[0].value
        return None

    def events(self) -> dict[str, str]:
        """The last note of each reason."""
        items = json.loads(self.kubectl("get", "events.events.k8s.io", "-o", "json"))["items"]
        return {item["reason"]: item["note"] for item in items if item["regarding"]["name"] == self.name}

    def kill(self, part: str) -> None:
        """kill -9 of an instance (by its ordinal), the manager or the operator."""
        self.cluster.kill_container(*self._pod(part))

    def starts(self, part: str) -> dict[str, int]:
        """How often the containers of that part were started again, by the pod's uid; empty while none is ready."""
        namespace, name = self._pod(part)
        found = self.cluster.kubectl("get", "pod", "-n", namespace, "--ignore-not-found", name, "-o", "json")
        if not found:
            return {}
        pod = json.loads(found)
        statuses = pod["status"].get("containerStatuses", [])
        ready = statuses and all(status["ready"] for status in statuses)
        return {pod["metadata"]["uid"]: sum(status["restartCount"] for status in statuses)} if ready else {}

    def replace(self, part: str) -> None:
        """Delete its pod, which another one follows."""
        namespace, name = self._pod(part)
        self.cluster.kubectl("delete", "pod", "-n", namespace, name)

    def _pod(self, part: str) -> tuple[str, str]:
        if part != "operator":
            return "default", f"{self.name}-{'manager-0' if part == 'manager' else part}"
        label = "app.kubernetes.io/component=operator"
        found = self.cluster.kubectl("get", "pods", "-n", SYSTEM_NAMESPACE, "-l", label, "-o", "name").split()
        return SYSTEM_NAMESPACE, (found or ["pod/none"])[0].removeprefix("pod/")

    def restarts(self) -> int:
        """Of all containers."""
        pods = json.loads(self.kubectl("get", "pods", "-l", f"pointsman.dev/service={self.name}", "-o", "json"))[
            "items"
        ]
        return sum(status["restartCount"] for pod in pods for status in pod["status"].get("containerStatuses", []))
