"""The planner's process plans the encode pool of a service from what gateways and encode workers count of images."""

import asyncio
from typing import Any

import pytest
from prometheus_client import Counter, Gauge, Histogram

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role

from .conftest import AT_ONCE, Page, World
from .test_live_loop import LIGHT, NO_ROUTING, explained

IMAGES_EACH, IMAGE_S = 3, 0.1


class Images:
    """What a gateway and an encode worker count of images, on their pages."""

    def __init__(self, gateway: Page, encoder: Page) -> None:
        def of_gateway(kind: Any, metric: named.Metric) -> Any:
            return kind(metric.name, metric.help, metric.labels, registry=gateway.registry)

        self.paths = of_gateway(Counter, named.GATEWAY_IMAGES)
        for path in ("encode", "local"):
            self.paths.labels("chat", path, "x")
        self.requests = of_gateway(Counter, named.GATEWAY_ENCODE_REQUESTS).labels("chat")
        self.squared = of_gateway(Counter, named.GATEWAY_ENCODE_IMAGES_SQUARED).labels("chat")
        of_gateway(Gauge, named.GATEWAY_ENCODE_IN_FLIGHT).labels("chat").set(1)
        took = named.WORKER_ENCODE_SECONDS
        self.seconds = Histogram(took.name, took.help, took.labels, registry=encoder.registry)

    async def load(self) -> None:
        """Ten requests a second with three images of a tenth of a second each, until cancelled."""
        clock = asyncio.get_running_loop().time
        begin, done = clock(), 0
        while True:
            for _ in range(int((clock() - begin) / 0.1) + 1 - done):
                done += 1
                self.requests.inc()
                self.squared.inc(IMAGES_EACH**2)
                self.paths.labels("chat", "encode", "x").inc(IMAGES_EACH)
                if done % 4 == 0:  # one worker does no more than this
                    for _ in range(IMAGES_EACH):
                        self.seconds.observe(IMAGE_S)
            await asyncio.sleep(0.1)  # the load's own pace, not a wait for something


async def test_images_that_wait_become_a_plan_for_more_encode_workers(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    actions = {**AT_ONCE, **NO_ROUTING, "scaleOut": {"leadSeconds": 2}, "roleSwitch": {"enabled": False}}
    await world.policy(budget={"maxGpus": 16}, actions=actions)
    pools = {
        "prefill": {"replicas": 2, "maxReplicas": 2},
        "decode": {"replicas": 3, "maxReplicas": 3},
        "encode": {"replicas": 1, "maxReplicas": 8},
    }
    await world.service(encode={}, pools=pools)
    await world.pod("chat-e-0", 5, {names.ROLE_LABEL: Role.ENCODE.label, names.ROUTABLE_LABEL: "true"}, "worker")
    images = Images(world.pages["gateway"], world.pages["chat-e-0"])
    world.planner.start()
    loads = [asyncio.create_task(world.load(60, **LIGHT)), asyncio.create_task(images.load())]
    try:
        await world.until(
            lambda: any(plan.spec.target[2:] and plan.spec.target[2] > 1 for plan in world.layouts()),
            "a plan with more encode workers",
        )
    finally:
        for load in loads:
            load.cancel()
    plan = world.layouts()[-1]
    assert plan.spec.pools is not None
    assert plan.spec.pools.encode is not None
    assert 4 <= plan.spec.pools.encode.replicas <= 8, "three images a tenth of a second, ten times a second"
    inputs = {entry.name: entry.value for entry in plan.spec.inputs}
    assert inputs["encodeWorkers"] == 1
    assert inputs["encodeMilliseconds"] == pytest.approx(100, rel=0.2)
    assert "% of the TTFT objective" in plan.spec.message
    told = await explained(world, capsys, "chat")
    assert "1 encode workers serve" in told
    assert "have images for encode workers, 3.0 of each" in told
    workers = await world.exported("pointsman_planner_workers")
    assert any(s.labels["role"] == "Encode" and s.labels["condition"] == "Active" and s.value == 1 for s in workers)
