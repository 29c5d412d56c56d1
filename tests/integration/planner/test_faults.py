"""What goes wrong around the planner: it freezes or goes on safely, and says which."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from integration.planner.live_loads import LONG, SHORT, healthy
from pointsman.api.protocol import names
from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.kube import resources
from pointsman.kube.events import EventRecorder
from pointsman.planner.cluster import Cluster
from pointsman.planner.loop import Planner
from pointsman.planner.metrics import PlannerMetrics
from pointsman.planner.scraper import Scraper
from pointsman.process.clock import SystemClock
from waiting import eventually

from .conftest import World


@asynccontextmanager
async def loaded(world: World, **load: float) -> AsyncIterator[None]:
    """Under a load."""
    task = asyncio.create_task(world.load(**load))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def condition(world: World) -> Condition:
    return next(c for s in world.services.objects() for c in s.status.conditions if c.type == "PlannerHealthy")


async def phase(world: World, plan: str, phase: PlanPhase) -> None:
    """What the operator says of a plan."""
    status = {"status": {"phase": phase.value}}
    await world.kube.patch(resources.PLANS, plan, world.namespace, status, subresource="status")


async def test_half_of_the_workers_unreachable_freezes_everything_and_the_condition_says_so(world: World) -> None:
    await world.policy()
    await world.service()
    world.planner.start()
    async with loaded(world, **SHORT):
        await healthy(world, ConditionStatus.TRUE)
        for name in ("chat-2", "chat-3", "chat-4"):
            world.pages[name].failing = True
        await healthy(world, ConditionStatus.FALSE)
    assert condition(world).reason == "StaleMetrics"
    before = len(world.layouts())
    await world.load(3, **LONG)  # ten ticks of a load that is answered by a plan as soon as it is seen
    assert len(world.layouts()) == before
    for name in ("chat-2", "chat-3", "chat-4"):
        world.pages[name].failing = False
    async with loaded(world, **LONG):
        await healthy(world, ConditionStatus.TRUE)
        await world.until(lambda: len(world.layouts()) > before, "a plan, now that the workers are seen again")


async def test_a_planner_killed_in_the_middle_of_a_plan_awaits_its_end(world: World) -> None:
    await world.policy()
    await world.service()
    world.planner.start()
    async with loaded(world, **LONG):
        await world.until(lambda: bool(world.layouts()), "a first plan")
        [first] = world.layouts()
        await phase(world, first.metadata.name, PlanPhase.EXECUTING)
        world.planner.kill()
        said = len(world.planner.log)
        world.planner.start()

        async def awaits() -> bool:
            return "the plan that is being executed" in world.planner.log[said:]

        await eventually(awaits, "the new planner sees the plan of the old one")
        await world.load(3, **LONG)
        [kept] = world.layouts()
        assert kept.spec == first.spec, "nothing beside it"
        assert kept.status.phase is PlanPhase.EXECUTING, "it is the operator's to end"
        await healthy(world, ConditionStatus.TRUE)
        assert (condition(world).reason, condition(world).observed_generation) == ("Planning", 1)
        for switch in first.spec.switches:
            for number in range(switch.count):
                moved = f"chat-{4 - number}" if switch.to_role == "Prefill" else f"chat-{number}"
                role = {"metadata": {"labels": {names.ROLE_LABEL: switch.to_role.label}}}
                await world.kube.patch(resources.PODS, moved, world.namespace, role)
        await phase(world, first.metadata.name, PlanPhase.COMPLETED)
        await world.until(
            lambda: any(p.spec == first.spec and p.status.phase is PlanPhase.COMPLETED for p in world.layouts()),
            "the plan of the old planner has ended as the operator said",
        )
        await healthy(world, ConditionStatus.TRUE)
    assert condition(world).reason == "Planning"
    sequences = [plan.spec.sequence for plan in world.plans.objects()]
    assert len(sequences) == len(set(sequences)), "no number was used twice"


class SetClock(SystemClock):
    """A wall clock that somebody sets."""

    def __init__(self) -> None:
        self.set_by = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.set_by


async def test_a_wall_clock_that_is_set_neither_moves_workers_nor_blinds_the_planner(world: World) -> None:
    await world.policy(objectives={"ttftMs": 1000, "tpotMs": 8.5})  # 20 sequences a decode worker, of 80
    await world.service()
    clock = SetClock()
    cluster = Cluster(world.kube, world.namespace)
    events = EventRecorder(world.kube, controller="pointsman.dev/planner", instance="under-test")
    async with Scraper(2.0, clock) as scraper:
        planner = Planner(
            kube=world.kube, cluster=cluster, scraper=scraper, events=events, metrics=PlannerMetrics(),
            leads=lambda: True, clock=clock,
        )  # fmt: skip
        tasks = [asyncio.create_task(work) for work in (cluster.run(), events.run())]
        await cluster.synced()
        tasks.append(asyncio.create_task(planner.run()))
        try:
            async with loaded(world, **SHORT):
                await world.until(lambda: bool(world.layouts()), "a switch, which is remembered with its time")
                [first] = world.layouts()
                before = [first.metadata.name]
                assert [(switch.to_role, switch.count) for switch in first.spec.switches] == [("Decode", 1)]
                role = {"metadata": {"labels": {names.ROLE_LABEL: "decode"}}}
                await world.kube.patch(resources.PODS, "chat-0", world.namespace, role)
                await phase(world, first.metadata.name, PlanPhase.COMPLETED)
                await healthy(world, ConditionStatus.TRUE)
                for jump in (timedelta(hours=1), timedelta(hours=-1)):
                    clock.set_by = jump
                    await asyncio.wait(tasks, timeout=3)
                    assert [plan.metadata.name for plan in world.layouts()] == before, f"{jump}: a clock is no load"
                    assert condition(world).status == ConditionStatus.TRUE, jump
            async with loaded(world, **LONG):
                back = "the other way: no switch is one of the future"
                await world.until(lambda: len(world.layouts()) > len(before), back)
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
