"""Objects that a newer version wrote, after a rollback: of each kind that is mirrored one blocks no other."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any, Final

import pytest

from fakes.clock import FakeClock
from pointsman.api.protocol.names import API_VERSION, SERVICE_LABEL
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.gateway.discovery.kubernetes import Service, discovered
from pointsman.kube.mirror import Mirror
from pointsman.kube.pods import Pod
from pointsman.kube.resources import (
    ELASTIC_GROUPS,
    LLM_SERVICES,
    PLANNER_POLICIES,
    PLANS,
    PODS,
    ROLE_SWITCHES,
    Resource,
)
from pointsman.planner.cluster import Cluster
from pointsman.serving.local_remote import RoutingRule

MODEL: Final = {"model": {"source": "hf://test/tiny"}}
GROUP: Final = {**MODEL, "instances": {"replicas": 2}}
SWITCH: Final = {"serviceRef": {"name": "chat"}, "from": "Decode", "to": "Prefill"}
POLICY: Final = {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 4}}
PLAN: Final = {
    "serviceRef": {"name": "chat"},
    "sequence": 1,
    "mode": "Active",
    "observedAt": "2026-01-01T00:00:00Z",
    "expiresAt": "2026-01-01T01:00:00Z",
    "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}},
    "changesLayout": False,
    "reason": "Steady",
    "message": "nothing changes",
}

# (resource, spec, and what a newer version might have written instead)
KINDS: Final[list[tuple[Resource, dict[str, Any], dict[str, Any]]]] = [
    (PODS, {}, {"status": {"podIP": ["10.0.0.1", "fd00::1"]}}),
    (ROLE_SWITCHES, SWITCH, {"status": {"phase": "Switching", "way": "Restart"}}),
    (PLANS, PLAN, {"status": {"phase": "Paused"}}),
    (PLANNER_POLICIES, POLICY, {"spec": {**POLICY, "mode": "Canary"}}),
    (LLM_SERVICES, MODEL, {"spec": {**MODEL, "engine": {"type": "SGLang"}}}),
    (ELASTIC_GROUPS, GROUP, {"spec": {**GROUP, "instances": {"replicas": "Auto"}}}),
]


def stored(resource: Resource, name: str, spec: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    """An object as the API server has it."""
    labels = {SERVICE_LABEL: "chat"}
    metadata = {"name": name, "namespace": "n", "uid": f"u-{name}", "resourceVersion": "5", "labels": labels}
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "spec": spec, **newer}


class Stored:
    """What a mirror uses of Kube: each collection has a readable object and one of a newer version."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def list_page(self, resource: Resource, namespace: str | None, query: object) -> bytes:
        spec, newer = next((spec, newer) for kind, spec, newer in KINDS if kind == resource)
        items = [stored(resource, "newer", spec, newer), stored(resource, "chat", spec, {})]
        return json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode()

    async def watch_lines(
        self, resource: Resource, namespace: str | None, query: object, **_: Any
    ) -> AsyncGenerator[bytes, None]:
        spec, newer = next((spec, newer) for kind, spec, newer in KINDS if kind == resource)
        event = {"type": "ADDED", "object": stored(resource, "another", spec, newer)}
        yield json.dumps(event).encode()
        await self.changed.wait()


@pytest.mark.parametrize(
    ("resource", "model"),
    [
        (PODS, Pod),
        (ROLE_SWITCHES, RoleSwitch),
        (PLANS, Plan),
        (PLANNER_POLICIES, PlannerPolicy),
        (LLM_SERVICES, LLMService),
        (ELASTIC_GROUPS, ElasticGroup),
    ],
    ids=lambda value: value.kind if isinstance(value, Resource) else "",
)
async def test_one_of_a_newer_version_is_left_out_and_the_others_are_followed(
    resource: Resource, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kube: Any = Stored()
    mirror: Mirror[Any] = Mirror(kube, resource, model, clock=(clock := FakeClock()))
    following = asyncio.create_task(mirror.run())
    await clock.settle()
    assert mirror.synced.is_set()
    assert [item.metadata.name for item in mirror.objects()] == ["chat"]
    assert {item.metadata.name for item in mirror.unreadable()} == {"newer", "another"}
    assert all(item.metadata.labels == {SERVICE_LABEL: "chat"} for item in mirror.unreadable())
    assert "mirror interrupted" not in caplog.text
    following.cancel()


async def test_the_planner_begins_beside_objects_of_a_newer_version() -> None:
    kube: Any = Stored()
    cluster = Cluster(kube, "n")
    following = asyncio.create_task(cluster.run())
    async with asyncio.timeout(60):
        await cluster.synced()
    assert [key for key, _ in cluster.unplanned()] == [("n", "chat")]
    assert cluster.policies.why_unreadable("newer", "n") is not None
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize(
    ("status", "rule"),
    [
        ({"routing": {"maxLocalPrefillTokens": 700, "maxPrefillQueueSize": 3, "slackMilliseconds": "1s"}}, (700, 3)),
        ({"routing": {"maxLocalPrefillTokens": {"short": 700}, "maxPrefillQueueSize": 3}}, None),
        ({"routing": [{"maxLocalPrefillTokens": 700}]}, None),
        ({"routing": None}, None),
        ([], None),
        (None, None),
    ],
)
def test_a_gateway_reads_of_a_service_what_it_can(status: Any, rule: tuple[int, int] | None) -> None:
    manifest = stored(LLM_SERVICES, "chat", MODEL, {"status": status})
    found = discovered([], Service.model_validate(manifest))
    assert found.service_uid == "u-chat"
    assert found.rule == (None if rule is None else RoutingRule(*rule))


def test_every_mirrored_kind_is_one_of_these() -> None:
    kube: Any = None
    mirrored = {str(mirror.resource) for mirror in vars(Cluster(kube, None)).values() if isinstance(mirror, Mirror)}
    assert mirrored == {str(resource) for resource, _, _ in KINDS}
    assert {resource.api_version for resource, _, _ in KINDS} == {API_VERSION, "v1"}
