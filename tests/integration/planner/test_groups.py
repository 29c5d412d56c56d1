"""The planner's process beside a real API server, and an elastic group whose gateway and manager a test writes."""

import asyncio

import pytest
from prometheus_client import Counter, Gauge

from integration.planner.live_loads import explained
from pointsman.api.protocol import metrics as named
from pointsman.api.protocol import names
from pointsman.api.v1alpha1.conditions import ConditionStatus
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.api.v1alpha1.plan import Plan
from pointsman.kube import resources
from pointsman.planner.health import health_of
from pointsman.serving.elastic.step_sums import TERMS, StepSums
from waiting import eventually

from .conftest import World

SLOTS = 20_000


class Manager:
    """Adds the manager's families to a page."""

    def __init__(self, world: World) -> None:
        registry = world.pages["manager"].registry
        slots, sums = named.ELASTIC_SLOTS, named.ELASTIC_DECODE_SUMS
        self.slots = Gauge(slots.name, slots.help, slots.labels, registry=registry)
        self.sums = Counter(sums.name, sums.help, sums.labels, registry=registry)
        Gauge("vllm:num_requests_waiting", "x", registry=registry).set(0)
        for state in ("total", "free"):
            self.slots.labels(state).set(SLOTS)

    def decode(self) -> None:
        """A step of one request and one of eight."""
        for requests in (1, 8):
            sums = StepSums.of_iteration(1, requests, 0.01 + 0.001 * requests)
            for term in TERMS:
                self.sums.labels(term).inc(getattr(sums, term))


async def group(world: World, **spec: object) -> None:
    """The group ``chat`` of one instance, which takes 1 ms a prompt token."""
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticGroup",
        "metadata": {"name": "chat", "namespace": world.namespace},
        "spec": {
            "model": {"source": "hf://test/tiny"},
            "instance": {"gpus": 0},
            "instances": {"replicas": 1, "maxReplicas": 4},
            "policyRef": {"name": "chat"},
            **spec,
        },
    }
    await world.kube.create(resources.ELASTIC_GROUPS, body)
    time = {
        "degree": 1, "alphaMs": 1, "betaMsPerToken": 1, "gammaMsPerSquaredToken": 0, "errorPercent": 1
    }  # fmt: skip
    status = {"status": {"latencyModel": [time]}}
    await world.kube.patch(resources.ELASTIC_GROUPS, "chat", world.namespace, status, subresource="status")
    of_group = {names.ELASTIC_GROUP_LABEL: "chat"}
    await world.pod("chat-0", 0, of_group, names.COMPONENT_INSTANCE)
    await world.pod("manager", 1, of_group, names.COMPONENT_WORKER)
    await world.pod("gateway", 2, of_group, names.COMPONENT_GATEWAY)


async def load(world: World, manager: Manager) -> None:
    """Ten requests a second of 200 tokens, however busy the computer: two instances' worth of prefills."""
    clock = asyncio.get_running_loop().time
    begin, done = clock(), 0
    while True:
        for _ in range(int((clock() - begin) / 0.1) + 1 - done):
            done += 1
            world.pages["gateway"].requests(1, prompt=200, output=8, ttft_s=0.4, tpot_s=0.02)
            manager.decode()
        await asyncio.sleep(0.1)  # the load's own pace, not a wait for something


async def test_more_requests_than_an_instance_can_do_are_planned_for_and_explained(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.policy(objectives={"ttftMs": 1000, "tpotMs": 50}, budget={"maxGpus": 4}, actions={})
    await group(world)
    manager = Manager(world)
    world.planner.start()
    loading = asyncio.create_task(load(world, manager))
    told = ""

    def enough() -> list[Plan]:
        return [plan for plan in world.layouts() if plan.spec.instances and plan.spec.instances.replicas >= 3]

    async def is_explained() -> bool:  # a plan is saved at the look after it
        nonlocal told
        told = await explained(world, capsys, "chat", "--inputs")
        return any(f"{plan.metadata.name} (" in told for plan in enough())

    try:
        await world.until(lambda: bool(enough()), "10 requests of 0.2 s each take two instances, and come unevenly")

        async def is_healthy() -> bool:
            found = await world.kube.get(resources.ELASTIC_GROUPS, "chat", world.namespace)
            said = health_of(ElasticGroup.model_validate(found).status.conditions)
            return said is not None and said.status is ConditionStatus.TRUE

        await eventually(is_healthy, "the group says that it is planned")
        workers = await world.exported("pointsman_planner_workers")
        await eventually(is_explained, "an explanation with the plan")
    finally:
        loading.cancel()
    plan = enough()[0]
    assert (plan.spec.service_ref.kind, plan.spec.reason) == ("ElasticGroup", "InstancesShort")
    assert {"ratePerSecond", "instancesNeeded"} <= {entry.name for entry in plan.spec.inputs}
    assert {sample.labels["role"] for sample in workers} == {"Instance"}
    assert "1 of 1 instance serves" in told
    assert "Inputs, by the names in spec.inputs of a plan" in told


async def test_a_manager_that_cannot_be_read_is_said_and_nothing_is_planned(world: World) -> None:
    await world.policy(actions={})
    await group(world)
    manager = Manager(world)
    world.pages["manager"].failing = True
    world.planner.start()
    loading = asyncio.create_task(load(world, manager))
    try:

        async def is_stale() -> bool:
            found = await world.kube.get(resources.ELASTIC_GROUPS, "chat", world.namespace)
            said = health_of(ElasticGroup.model_validate(found).status.conditions)
            return said is not None and said.reason == "StaleMetrics"

        await eventually(is_stale, "the group says that its metrics are not known")
        decided = await world.looked_again(5)
    finally:
        loading.cancel()
    assert set(decided) == {"StaleMetrics"}
    assert world.layouts() == []
