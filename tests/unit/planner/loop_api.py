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

    written: list[str] = field(default_factory=list)  # what each write was, Events too if a test notes them
    plans: list[Any] = field(default_factory=list)  # that can be deleted
    kept_routing: dict[str, Any] = field(default_factory=dict)  # numbers of another manager
    published: list[dict[str, Any]] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)
    applied: list[dict[str, Any]] = field(default_factory=list)
    config_maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    saves: int = 0
    refuses: bool = False
    refuses_saves: bool = False  # as beyond a quota
    routing_refusal: KubeError | None = None
    undeclared: frozenset[str] = frozenset()  # fields of routing that the CRD does not have

    @property
    def writes(self) -> int:
        return len(self.written)

    async def find(self, _: Resource, name: str, __: str) -> dict[str, Any] | None:
        return self.config_maps.get(name)

    async def create(self, _: Resource, body: dict[str, Any]) -> dict[str, Any]:
        self.created.append(body)
        self.written.append("plan")
        return body

    async def delete(self, _: Resource, name: str, *__: Any, **___: Any) -> None:
        self.plans[:] = [plan for plan in self.plans if plan.metadata.name != name]
        self.written.append("deletion")

    async def patch(self, _: Resource, __: str, ___: str, body: dict[str, Any], **____: Any) -> dict[str, Any]:
        for name in body["status"]["routing"]:
            del self.kept_routing[name]
        self.written.append("patch")
        return self._shown(self.published[-1])

    async def apply(self, _: Resource, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        if self.refuses or (self.refuses_saves and body["kind"] == "ConfigMap"):
            raise Unreachable("the network")
        if self.routing_refusal is not None and "routing" in body.get("status", {}):
            raise self.routing_refusal
        undeclared = self.undeclared & body.get("status", {}).get("routing", {}).keys()
        if undeclared:
            raise Invalid(f".status.routing.{min(undeclared)}: field not declared in schema", status=500)
        if "routing" in body.get("status", {}):
            self.published.append(body["status"]["routing"])
            self.written.append("publication")
            return self._shown(body["status"]["routing"])
        if body["kind"] == "ConfigMap":
            self.config_maps[body["metadata"]["name"]] = body
            self.saves += 1
            self.written.append("save")
        else:
            self.applied.append(body)
            self.written.append("condition")
        return body

    def _shown(self, routing: dict[str, Any]) -> dict[str, Any]:
        version = str(1 + self.writes)  # the mirror shows 1
        return {"metadata": {"resourceVersion": version}, "status": {"routing": {**self.kept_routing, **routing}}}
