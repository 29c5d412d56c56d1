"""The live loop of elastic groups with an API server that a test owns."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.kube.errors import Unreachable
from pointsman.kube.resources import Resource
from pointsman.planner import group_loop, loops
from pointsman.planner.group_loop import GroupPlanner
from pointsman.planner.metrics import PlannerMetrics
from unit.planner.hands import Hands
from unit.planner.loop_api import KEY, READING, Api, manifest
from unit.planner.own_metrics import shown


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


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), Unreachable("the network")])
async def test_a_group_whose_memory_cannot_be_read_says_so_from_the_third_look_until_it_can(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(loops, "LOOK_FOR_SERVICES_S", 0.001)
    monkeypatch.setattr(group_loop, "_LOOK_AGAIN_S", 0.001)
    spec = {"model": {"source": "hf://test/tiny"}, "instances": {"replicas": 1}, "policyRef": {"name": "chat"}}
    group = ElasticGroup.model_validate(manifest("ElasticGroup", "new", spec))
    policy = PlannerPolicy.model_validate(
        manifest("PlannerPolicy", "p", {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 8}})
    )
    cluster = SimpleNamespace(
        planned_groups=lambda: [(KEY, group, policy)], groups=SimpleNamespace(objects=lambda: [group]),
        gateways=lambda _: [], manager=lambda _: None, instances=lambda *_: (), plans_of_group=lambda _: (),
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
