"""The planner, the operator and an ElasticGroup of real engines: the load grows and goes, instances come and leave."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import takewhile
from typing import Any

import pytest
import yaml

from engine.product.elastic_service import Group
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.traffic import Endpoint, Mix, Record, closed_loop, prompts
from waiting import eventually

NAME = "growing"
LONG = Mix(lengths=[range(700, 1000)], max_tokens=range(4, 9), vocabulary=range(94), token_ids_share=1.0)
SHORT = Mix(lengths=[range(10, 40)], max_tokens=range(4, 9), vocabulary=range(94), token_ids_share=1.0)

POLICY = {
    "apiVersion": "pointsman.dev/v1alpha1",
    "kind": "PlannerPolicy",
    "metadata": {"name": NAME},
    "spec": {
        "mode": "Active",
        "objectives": {"ttftMs": 1500, "tpotMs": 1000, "attainment": 0.9},
        "budget": {"maxGpus": 2},  # an instance on CPU counts as one
        "actions": {"scaleOut": {"leadSeconds": 10}, "scaleIn": {"stabilizationSeconds": 10}},
        "metrics": {"intervalSeconds": 1.5},
    },
}


@pytest.fixture
async def group(cluster: LocalCluster) -> AsyncIterator[Group]:
    """One instance, whose prefill of a long prompt takes some tenths of a second; a policy that may add one."""
    manifest: dict[str, Any] = {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "ElasticGroup",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"source": f"file://{ensure_model(cluster.environment, ModelSize.SMALL)}", "servedName": NAME},
            "engine": {"args": ["--dtype=float32", "--max-model-len=4096"]},
            "instance": {"gpus": 0, "kvTokens": 8000},
            "instances": {"replicas": 1, "maxReplicas": 3},
            "parallelism": {"maxDegree": 1},
            "policyRef": {"name": NAME},
            "drain": {"timeoutSeconds": 30},
        },
    }
    running = Group(cluster, NAME)
    running.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([POLICY, manifest]))
    await eventually(lambda: running.ready(1), "one instance works")
    yield running
    running.kubectl("delete", "eg,ppol", NAME, "--wait=false")
    await eventually(lambda: not running.kubectl("get", "pods", "-l", f"pointsman.dev/service={NAME}"), "it is gone")


def plans(group: Group) -> list[Plan]:
    """Those that change the number of instances, the oldest first."""
    items = json.loads(group.kubectl("get", "plans", "-l", f"pointsman.dev/service={NAME}", "-o", "json"))["items"]
    found = sorted((Plan.model_validate(item) for item in items), key=lambda plan: plan.spec.sequence)
    return [plan for plan in found if plan.spec.changes_layout]


async def crowded(endpoint: Endpoint, until: asyncio.Task[None]) -> list[Record]:
    """Long prompts of six clients, without a break until that has come: more than one instance can compute in time."""
    asked = takewhile(lambda _: not until.done(), prompts(LONG, seed=1))
    records = await closed_loop(endpoint, asked, clients=6)
    await until
    return records


async def quiet(endpoint: Endpoint, until: asyncio.Task[None]) -> list[Record]:
    """A short prompt a second until that has come."""
    records, asked = [], prompts(SHORT, seed=1)
    while not until.done():
        records.append(await endpoint.send(next(asked)))
        await asyncio.sleep(1)  # the load's own pace, not a wait for something
    await until
    return records


@pytest.mark.verify
@pytest.mark.verify_elastic
async def test_instances_come_with_the_load_and_leave_after_it_without_a_lost_answer(group: Group) -> None:
    url = group.cluster.gateway_url(NAME)
    assert url is not None

    def instances_work(count: int, said: str) -> asyncio.Task[None]:
        return asyncio.create_task(eventually(lambda: group.ready(count), said, timeout_s=150))

    async with Endpoint(url, NAME, timeout_seconds=120) as endpoint:
        records = await crowded(endpoint, instances_work(2, "a second instance works"))
        records += await quiet(endpoint, instances_work(1, "the second instance has left"))
    assert [record.error for record in records if not record.served] == []
    out, back, *_ = plans(group)
    print(out.spec.message, back.spec.message, sep="\n")
    assert (out.spec.reason, out.spec.target) == ("InstancesShort", (2,))
    assert (back.spec.reason, back.spec.target) == ("SpareCapacity", (1,))
    assert {out.status.phase, back.status.phase} == {PlanPhase.COMPLETED}
    conditions = {each["type"]: each["status"] for each in group.get()["status"]["conditions"]}
    assert conditions["PlannerHealthy"] == "True"
    assert group.restarts() == 0
