"""The planner's process plans the encode pool of a service from what gateways and encode workers count of images."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from integration.planner.live_loads import LIGHT, explained
from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plan import Plan
from pointsman.gateway.metrics import GatewayMetrics, ImagePath
from pointsman.workers.metrics import WorkerMetrics
from waiting import eventually

from .conftest import ONLY_SWITCHES, GatewayPage, World

IMAGES_EACH, IMAGE_S = 3, 0.1


async def images(gateway: GatewayMetrics, encoder: WorkerMetrics) -> None:
    """Ten requests a second with three images of a tenth of a second each, until cancelled.

    Counted as a gateway and an encode worker count them.
    """
    gateway.encode_in_flight.set(1)
    clock = asyncio.get_running_loop().time
    begin, done = clock(), 0
    while True:
        for _ in range(int((clock() - begin) / 0.1) + 1 - done):
            done += 1
            gateway.to_encode(IMAGES_EACH)
            for _ in range(IMAGES_EACH):
                gateway.image_went(ImagePath.ENCODE, "encoded")
            if done % 4 == 0:  # one worker does no more than this
                for _ in range(IMAGES_EACH):
                    encoder.encoded(IMAGE_S)
        await asyncio.sleep(0.1)  # the load's own pace, not a wait for something


async def test_images_that_wait_become_a_plan_for_more_encode_workers(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    actions = {**ONLY_SWITCHES, "scaleOut": {"leadSeconds": 2}, "roleSwitch": {"enabled": False}}
    await world.policy(budget={"maxGpus": 16}, actions=actions)
    pools = {
        "prefill": {"replicas": 2, "maxReplicas": 2},
        "decode": {"replicas": 3, "maxReplicas": 3},
        "encode": {"replicas": 1, "maxReplicas": 8},
    }
    gateway = GatewayPage()
    await world.service(gateway, encode={}, pools=pools)
    await world.pod("chat-e-0", 5, {names.ROLE_LABEL: Role.ENCODE.label, names.ROUTABLE_LABEL: "true"}, "worker")
    encoder = world.pages["chat-e-0"]
    encoder.registry = CollectorRegistry()
    world.planner.start()
    loads = [
        asyncio.create_task(world.load(**LIGHT)),
        asyncio.create_task(images(gateway.metrics, WorkerMetrics(encoder.registry))),
    ]
    told = ""

    def enough() -> list[Plan]:
        return [plan for plan in world.layouts() if plan.spec.target[2:] and 4 <= plan.spec.target[2] <= 8]

    async def is_explained() -> bool:  # a look is saved at the next one
        nonlocal told
        told = await explained(world, capsys, "chat")
        return "have images for encode workers, 3.0 of each" in told

    try:
        await world.until(lambda: bool(enough()), "three images a tenth of a second, ten times a second")
        await eventually(is_explained, "an explanation of a look that found the images")
    finally:
        for load in loads:
            load.cancel()
    plan = enough()[0]
    inputs = {entry.name: entry.value for entry in plan.spec.inputs}
    assert inputs["encodeWorkers"] == 1
    assert inputs["encodeMilliseconds"] == pytest.approx(100, rel=0.2)
    assert "% of the TTFT objective" in plan.spec.message
    assert "1 encode worker serves" in told
    workers = await world.exported("pointsman_planner_workers")
    assert any(s.labels["role"] == "Encode" and s.labels["condition"] == "Active" and s.value == 1 for s in workers)
