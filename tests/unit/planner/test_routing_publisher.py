"""What publishing routing numbers writes: with fields that the API server does not know, and with a second owner."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.kube.errors import Invalid
from pointsman.kube.resources import Resource
from pointsman.planner.core.routing.publication import KEPT_PUBLICATIONS
from pointsman.planner.core.types import Reason, RoutingNumbers
from pointsman.planner.routing_publisher import FIELD_MANAGER, RoutingPublisher
from pointsman.serving.flow_control import FlowBounds

NOW = datetime(2026, 11, 27, 12, 0, 0, 250_000, tzinfo=UTC)
NUMBERS, FREE = RoutingNumbers(512, 32, FlowBounds(1000, 12, 800)), RoutingNumbers(512, 32)


@dataclass
class Api:
    """An API server with one service. ``unknown``: fields of routing that its CRD does not have."""

    unknown: tuple[str, ...] = ()
    routing: dict[str, Any] = field(default_factory=dict)  # that others own
    applied: dict[str, Any] = field(default_factory=dict)  # by the planner
    version: int = 7
    patches: list[Any] = field(default_factory=list)
    refuses_patches: bool = False

    async def apply(self, _: Resource, body: dict[str, Any], *, subresource: str, field_manager: str) -> dict[str, Any]:
        assert (subresource, field_manager) == ("status", FIELD_MANAGER)
        assert body["metadata"] == {"name": "chat", "namespace": "default", "uid": "u"}, "of this service, and no other"
        fields = body["status"]["routing"]
        for name in self.unknown:  # the API server names the first of them
            if name in fields:
                text = f"failed to create typed patch object: .status.routing.{name}: field not declared in schema"
                raise Invalid(text, status=500)
        self.applied = dict(fields)
        return self.answer()

    async def patch(self, _: Resource, name: str, namespace: str, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        if self.refuses_patches:
            raise Invalid("no", status=422)
        self.patches.append(body)
        for key in body["status"]["routing"]:
            self.routing.pop(key, None)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        self.version += 1
        routing = {**self.routing, **self.applied}
        return {"metadata": {"resourceVersion": str(self.version)}, "status": {"routing": routing}}


def publisher(api: Api) -> RoutingPublisher:
    return RoutingPublisher(api, ("default", "chat"), "u")  # type: ignore[arg-type]


def mirrored(version: int) -> LLMService:
    """The service as the mirror has it: with numbers of earlier days."""
    metadata = {"name": "chat", "namespace": "default", "uid": "u", "resourceVersion": str(version), "generation": 1}
    status = {"routing": {"maxLocalPrefillTokens": 64, "maxPrefillQueueSize": 1}}
    return LLMService.model_validate(
        {"metadata": metadata, "spec": {"model": {"source": "hf://test/tiny"}}, "status": status}
    )


async def test_an_older_crd_gets_the_numbers_without_what_it_does_not_know() -> None:
    api = Api(unknown=("reason", "updatedAt"))
    await publisher(api).publish(FREE, NUMBERS, Reason.FLOW_CONTROL, NOW)
    assert api.applied["decodingPerDecodeWorker"] == 12
    assert "reason" not in api.applied


async def test_a_number_that_somebody_else_owns_too_is_taken_away_by_a_write_of_its_own() -> None:
    api = Api(routing={"decodingPerDecodeWorker": 12, "objectives": {"ttftMs": 1000, "tpotMs": 50}})
    made = publisher(api)
    await made.publish(NUMBERS, FREE, Reason.FLOW_CONTROL, NOW)
    assert api.patches == [], "one publication is one write"
    assert (in_force := made.in_force(mirrored(7))) and in_force.decoding_per_decode_worker is None
    assert await made.remove_leftovers()
    assert api.patches == [{"status": {"routing": {"decodingPerDecodeWorker": None}}}]
    assert not await made.remove_leftovers(), "there is none any more"
    await made.publish(FREE, NUMBERS, Reason.FLOW_CONTROL, NOW)
    assert not await made.remove_leftovers()
    assert len(api.patches) == 1


async def test_a_refusal_to_take_a_number_away_does_not_block_later_publications() -> None:
    api = Api(routing={"decodingPerDecodeWorker": 12}, refuses_patches=True)
    made = publisher(api)
    await made.publish(NUMBERS, FREE, Reason.FLOW_CONTROL, NOW)
    with pytest.raises(Invalid):
        await made.remove_leftovers()
    assert not await made.remove_leftovers()
    await made.publish(NUMBERS, FREE, Reason.FLOW_CONTROL, NOW)
    api.refuses_patches = False
    assert await made.remove_leftovers(), "found again by the next publication"


async def test_published_numbers_are_in_force_before_the_mirror_shows_them() -> None:
    api = Api(version=9)
    made = publisher(api)
    await made.publish(FREE, NUMBERS, Reason.FLOW_CONTROL, NOW)  # becomes version 10
    for version, tokens in ((9, 512), (10, 64), (9, 64)):
        in_force = made.in_force(mirrored(version))
        assert in_force is not None
        assert in_force.max_local_prefill_tokens == tokens, f"the mirror has version {version}"
    assert api.applied["updatedAt"] == "2026-11-27T12:00:00.250Z"


async def test_the_history_is_bounded() -> None:
    made = publisher(Api())
    for number in range(1, KEPT_PUBLICATIONS + 5):
        await made.publish(FREE, RoutingNumbers(number, 32), Reason.THRESHOLD, NOW)
    assert [each.after.max_local_prefill_tokens for each in made.history] == list(range(5, KEPT_PUBLICATIONS + 5))
