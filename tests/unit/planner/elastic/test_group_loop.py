"""The live loop of elastic groups with an API server that a test owns."""

import asyncio
import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.kube.errors import Unreachable
from pointsman.kube.resources import Resource
from pointsman.planner import group_loop, loops
from pointsman.planner.core.elastic.decide import GroupState
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.metrics.observe import Reading
from pointsman.planner.core.types import Observation, Reason
from pointsman.planner.group_loop import GroupPlanner
from pointsman.planner.metrics import PlannerMetrics
from pointsman.planner.source import Source, Unread
from unit.planner.hands import Hands
from unit.planner.loop_api import KEY, READING, Api, manifest
from unit.planner.own_metrics import shown
from unit.planner.plans import plan as finished_plan


class Forgetful(Api):
    """Fails to read what the planner remembers, so many times."""

    def __init__(self, failures: int, error: Exception) -> None:
        super().__init__()
        self.failures, self.error, self.reads = failures, error, 0
        self.said_after: list[int] = []  # reads before each condition
        self.recovered = asyncio.Event()

    async def find(self, kind: Resource, name: str, namespace: str) -> dict[str, Any] | None:
        self.reads += 1
        if self.reads <= self.failures:
            raise self.error
        return await super().find(kind, name, namespace)

    async def apply(self, _: Resource, body: dict[str, Any], **how: Any) -> dict[str, Any]:
        await super().apply(_, body, **how)
        if body["kind"] != "ConfigMap":
            self.said_after.append(self.reads)
            if self.reads > self.failures:
                self.recovered.set()
        return body


def planned() -> tuple[ElasticGroup, PlannerPolicy]:
    spec = {"model": {"source": "hf://test/tiny"}, "instances": {"replicas": 1}, "policyRef": {"name": "chat"}}
    metrics = {"intervalSeconds": 0.001}
    policy = {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 8}, "metrics": metrics}
    return (
        ElasticGroup.model_validate(manifest("ElasticGroup", "new", spec)),
        PlannerPolicy.model_validate(manifest("PlannerPolicy", "p", policy)),
    )


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), Unreachable("the network")])
async def test_a_group_whose_memory_cannot_be_read_says_so_from_the_third_look_until_it_can(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(loops, "LOOK_FOR_SERVICES_S", 0.001)
    monkeypatch.setattr(group_loop, "_LOOK_AGAIN_S", 0.001)
    group, policy = planned()
    cluster = SimpleNamespace(
        planned_groups=lambda: [(KEY, group, policy)], groups=SimpleNamespace(objects=lambda: [group]),
        gateways=lambda *_: [], manager=lambda _: None, instances=lambda *_: (), plans_of_group=lambda _: (),
        group_start_s=lambda _: None,
    )  # fmt: skip

    async def nothing(*_: Any) -> None:
        return None

    scraper = SimpleNamespace(
        scrape=nothing, keep=lambda *_: None, reading=lambda _: READING, failed=lambda _: False, age_s=lambda _: 0.0
    )
    api, metrics = Forgetful(5, error), PlannerMetrics()
    parts: dict[str, Any] = {"kube": api, "cluster": cluster, "scraper": scraper}
    events: Any = SimpleNamespace(record=lambda *_: None)
    planner = GroupPlanner(**parts, events=events, metrics=metrics, leads=lambda: True, clock=Hands())
    task = asyncio.create_task(planner.run())
    try:
        async with asyncio.timeout(30):
            await api.recovered.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    conditions = [body["status"]["conditions"][0] for body in api.applied]
    failed, *others = conditions
    assert (failed["status"], failed["reason"]) == ("False", "EvaluationFailed")
    assert str(error) in failed["message"]
    assert api.said_after[0] == loops.LOOKS_FAILED, "one failure may be an answer of the API server that was lost"
    assert {each["reason"] for each in others[-1:]} == {"StaleMetrics"}, "it was read again"
    assert shown(metrics, "healthy") == {("StaleMetrics",): 0.0}


Decide = Callable[[GroupState, GroupObservation], GroupDecision]


async def looked_at(monkeypatch: pytest.MonkeyPatch, api: Api, decided: Decide, looks: int, added_after: int) -> None:
    """Plan for a group until it was looked at so often. The gateway g1 is added then, and can never be read."""
    seen, hands, over = 0, Hands(), asyncio.Event()
    group, policy = planned()

    def target(name: str) -> Any:
        return SimpleNamespace(
            key=name, url="", pod=SimpleNamespace(metadata=SimpleNamespace(name=name)), is_ready=True
        )

    def decide(state: GroupState, observed: GroupObservation, *_: Any) -> tuple[GroupState, GroupDecision]:
        nonlocal seen
        hands.go(2.5)
        seen += 1
        if seen > looks:
            over.set()
        return state, decided(state, observed)

    def reading(name: str) -> Reading | None:
        return None if name.endswith("g1") else READING

    async def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(group_loop, "decide", decide)
    cluster = SimpleNamespace(
        planned_groups=lambda: [(KEY, group, policy)], groups=SimpleNamespace(objects=lambda: [group]),
        gateways=lambda *_: [target("g0"), target("g1")] if seen > added_after else [target("g0")],
        manager=lambda _: target("m"), instances=lambda *_: (), plans_of_group=lambda _: api.plans,
        group_start_s=lambda _: None,
    )  # fmt: skip
    scraper = SimpleNamespace(
        scrape=nothing, keep=lambda *_: None, reading=reading, failed=lambda name: name.endswith("g1"),
        age_s=lambda name: math.inf if name.endswith("g1") else 0.0,
    )  # fmt: skip
    parts: dict[str, Any] = {"kube": api, "cluster": cluster, "scraper": scraper}
    events: Any = SimpleNamespace(record=lambda *_: api.written.append("Event"))
    planner = GroupPlanner(**parts, events=events, metrics=PlannerMetrics(), leads=lambda: True, clock=hands)
    task = asyncio.create_task(planner.run())
    try:
        async with asyncio.timeout(30):
            await over.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_gateway_that_is_added_and_never_read_freezes_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is new for as long as metrics may be old, then it is named."""
    seen: list[Observation] = []

    def decided(_: GroupState, observed: GroupObservation) -> GroupDecision:
        seen.append(observed.seen)
        return GroupDecision(Reason.STEADY, "1 instance is enough", 1)

    api = Api()
    await looked_at(monkeypatch, api, decided, looks=30, added_after=4)
    assert all(each.age_s == 0 for each in seen)
    assert [(each.new_gateways, each.unreadable_gateways) for each in seen[3:]][:12] == [
        (0, ()), (0, ()), *[(1, ())] * 9, (0, ("g1",)),
    ]  # fmt: skip
    assert all(each.unread == 1 for each in seen[5:]), "so that no instance is removed"
    said = [body["status"]["conditions"][0] for body in api.applied]
    assert [each["reason"] for each in said] == ["Planning", "GatewayUnreadable"]
    assert "The metrics of g1 cannot be read" in said[1]["message"]


def test_a_groups_only_gateway_that_is_replaced_is_a_first_look() -> None:
    of_nothing: Any = None
    source = Source("", of_nothing, of_nothing, 2.0, of_nothing)
    page = Reading({}, {}, 2.5)

    def unread(at_s: float, **readings: Reading | None) -> Unread:
        return source.unread(readings, at_s, 20.0, "m", lost_s={})

    assert unread(0.0, m=page, g0=page) == Unread()
    assert unread(2.5, m=page, g1=None) == Unread(first=("g1",), gone=1)
    assert unread(5.0, m=page, g1=page) == Unread()
    assert unread(7.5, m=None, g1=page) == Unread(first=("m",))
    assert unread(10.0, m=page, g1=page, g2=None) == Unread(new=("g2",))


async def test_a_look_at_a_group_makes_at_most_three_writes_and_deletes_old_plans_only_without_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, before = Api(), list[int]()  # writes, at each look
    api.plans = [finished_plan(sequence=number, phase="Completed") for number in range(1, 131)]

    def decided(*_: Any) -> GroupDecision:
        before.append(len(api.written))
        if len(before) in (1, 20):
            instances = 1 + len(before)
            return GroupDecision(Reason.INSTANCES_SHORT, "more are needed", instances, changes_layout=True)
        return GroupDecision(Reason.STEADY, "1 instance is enough", 1)

    await looked_at(monkeypatch, api, decided, looks=40, added_after=4)
    looks = [api.written[earlier:later] for earlier, later in itertools.pairwise(before)]
    assert max(map(len, looks)) == 3
    assert looks[:2] == [["save", "plan", "Event"], ["save", "condition"]]
    assert ["condition"] in looks, "of the gateway that cannot be read"
    assert ["plan", "Event"] in looks
    deletions = [look for look in looks if "deletion" in look]
    assert all(set(look) == {"deletion"} for look in deletions), "with nothing else"
    assert [len(look) for look in deletions] == [3] * 26 + [2], "80 of 130 ended plans are beyond the history"
