"""What the planner's loop uses of the API server."""

from dataclasses import dataclass, field
from typing import Any

from pointsman.kube.errors import Invalid, KubeError, Unreachable
from pointsman.kube.resources import Resource
from pointsman.planner.core.metrics.observe import Reading

KEY = ("default", "chat")
TICK_S = 2.5
READING = Reading({}, {}, TICK_S)


def manifest(kind: str, uid: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "chat", "namespace": "default", "uid": uid, "resourceVersion": "1", "generation": 1}
    return {"apiVersion": "pointsman.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


@dataclass
class Api:
    """What is written, and the ConfigMaps that are there."""

    writes: int = 0
    published: list[dict[str, Any]] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)
    applied: list[dict[str, Any]] = field(default_factory=list)
    config_maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    saves: int = 0
    refuses: bool = False
    routing_refusal: KubeError | None = None
    undeclared: frozenset[str] = frozenset()  # fields of routing that the CRD does not have

    async def find(self, _: Resource, name: str, __: str) -> dict[str, Any] | None:
        return self.config_maps.get(name)

    async def create(self, _: Resource, body: dict[str, Any]) -> dict[str, Any]:
        self.created.append(body)
        self.writes += 1
        return body

    async def apply(self, _: Resource, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        if self.refuses:
            raise Unreachable("the network")
        if self.routing_refusal is not None and "routing" in body.get("status", {}):
            raise self.routing_refusal
        undeclared = self.undeclared & body.get("status", {}).get("routing", {}).keys()
        if undeclared:
            raise Invalid(f".status.routing.{min(undeclared)}: field not declared in schema", status=500)
        self.writes += 1
        if "routing" in body.get("status", {}):
            self.published.append(body["status"]["routing"])
            return {**body, "metadata": {"resourceVersion": str(1 + len(self.published))}}  # the mirror shows 1
        if body["kind"] == "ConfigMap":
            self.config_maps[body["metadata"]["name"]] = body
            self.saves += 1
        else:
            self.applied.append(body)
        return body
