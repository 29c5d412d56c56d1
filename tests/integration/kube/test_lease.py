"""Leader election on the real API server, each candidate behind a network of its own."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from fixtures.fault_proxy import Delay, Fault, FaultProxy, LoseAnswer, Plan, Refuse, Reply, Request, healthy
from pointsman.kube.client import Kube
from pointsman.kube.lease import Elector
from pointsman.kube.resources import LEASES
from pointsman.local.control_plane import ControlPlane

DEADLINE_S = 60
HANDOVER_S = 20


class Candidate:
    """A process that stands again whenever it has lost."""

    def __init__(self, name: str, proxy: FaultProxy, namespace: str, leading: "Leading") -> None:
        self.name = name
        self.proxy = proxy
        self.namespace = namespace
        self.leading = leading
        self.starts = 0
        self.elector: Elector | None = None

    async def run(self) -> None:
        async with await Kube.connect(self.proxy.kubeconfig) as kube:
            while True:
                self.starts += 1
                self.elector = elector = Elector(
                    kube,
                    namespace=self.namespace,
                    name="leader",
                    identity=f"{self.name}-{self.starts}",
                    lease_duration_s=2,
                    on_lost=lambda why: self.leading.lost(self, why),
                )
                async with asyncio.TaskGroup() as group:
                    election = group.create_task(elector.run())
                    watching = group.create_task(self._tell(elector))
                    await election
                    watching.cancel()

    def may_write(self) -> bool:
        return self.elector is not None and self.elector.still_leader()

    async def _tell(self, elector: Elector) -> None:
        await elector.elected.wait()
        self.leading.elected(self)


class Leading:
    """Who leads, kept at each change; two at a time is an error that the test sees.

    Two lead at a time if both may write, by what each asks before a write. That the loss was told is not asked: it is
    told late by a process that stood still.
    """

    def __init__(self) -> None:
        self.now: dict[str, Candidate] = {}
        self.history: list[str] = []
        self.changed = asyncio.Event()
        self.errors: list[str] = []

    def elected(self, candidate: Candidate) -> None:
        others = [name for name, each in self.now.items() if each is not candidate and each.may_write()]
        if others:
            self.errors.append(f"{candidate.name} leads beside {others}")
        self.now[candidate.name] = candidate
        self.history.append(candidate.name)
        self.changed.set()

    def lost(self, candidate: Candidate, why: str) -> None:
        self.now.pop(candidate.name, None)
        self.changed.set()

    async def until_led(self, by: set[str] | None = None) -> str:
        async with asyncio.timeout(DEADLINE_S):
            while not self.now or (by is not None and not by & set(self.now)):
                self.changed.clear()
                await self.changed.wait()
        return next(iter(self.now))


@pytest.fixture
async def election(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> AsyncIterator[tuple[Leading, dict[str, Candidate]]]:
    leading = Leading()
    async with AsyncExitStack() as stack:
        candidates: dict[str, Candidate] = {}
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            proxy = await stack.enter_async_context(FaultProxy(control_plane.kubeconfig, tmp_path / name))
            candidates[name] = Candidate(name, proxy, namespace, leading)
        tasks = [asyncio.create_task(candidate.run()) for candidate in candidates.values()]
        yield leading, candidates
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
    assert leading.errors == []


async def test_when_the_leader_is_cut_off_it_stops_and_then_the_other_leads(
    election: tuple[Leading, dict[str, Candidate]],
) -> None:
    leading, candidates = election
    first = await leading.until_led()
    candidates[first].proxy.silence()
    second = await leading.until_led(set(candidates) - {first})
    elector = candidates[first].elector
    assert elector is not None
    assert not elector.still_leader()
    # What was held back arrives now, long after: it must not give the old leader the Lease back.
    candidates[first].proxy.resume()
    candidates[second].proxy.plan = lambda _: Refuse()
    candidates[second].proxy.cut()
    assert await leading.until_led({first}) == first


async def test_a_clean_exit_hands_over_without_waiting_for_the_lease_to_expire(kube: Kube, namespace: str) -> None:
    def elector(identity: str) -> Elector:
        return Elector(
            kube,
            namespace=namespace,
            name="handover",
            identity=identity,
            lease_duration_s=HANDOVER_S + 1,
        )

    first, second = elector("first"), elector("second")
    one = asyncio.create_task(first.run())
    async with asyncio.timeout(HANDOVER_S):  # a Lease that is taken so early was handed over
        await first.elected.wait()
        two = asyncio.create_task(second.run())
        one.cancel()
        await second.elected.wait()
    assert not first.still_leader()
    lease = await kube.get(LEASES, "handover", namespace)
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("second", 1)
    two.cancel()
    with suppress(asyncio.CancelledError):
        await two
    assert (await kube.get(LEASES, "handover", namespace))["spec"]["holderIdentity"] == ""


async def test_a_leader_whose_lease_is_deleted_leads_no_more(kube: Kube, namespace: str) -> None:
    elector = Elector(kube, namespace=namespace, name="deleted", identity="a", lease_duration_s=2)
    running = asyncio.create_task(elector.run())
    async with asyncio.timeout(DEADLINE_S):
        await elector.elected.wait()
        await kube.delete(LEASES, "deleted", namespace)
        await elector.lost.wait()
        await running
    assert not elector.still_leader()
    assert await kube.find(LEASES, "deleted", namespace) is None


@pytest.mark.parametrize("seed", [1, 2])
async def test_never_two_leaders_whatever_the_network_does(
    election: tuple[Leading, dict[str, Candidate]], seed: int
) -> None:
    print(f"seed {seed}")
    leading, candidates = election
    rng = random.Random(seed)

    def weather(badness: float) -> Plan:
        def plan(_: Request) -> Fault | None:
            if rng.random() >= badness:
                return None
            faults: list[Fault] = [Refuse(), LoseAnswer(), Delay(rng.uniform(0, 3)), Reply(500), Reply(429, 0)]
            return rng.choice(faults)

        return plan

    async with asyncio.timeout(DEADLINE_S):
        while len(leading.history) < 3:
            leader = await leading.until_led()
            candidates[leader].proxy.plan = weather(rng.choice([0.9, 1.0]))
            if rng.random() < 0.5:
                candidates[leader].proxy.cut()
            for name in set(candidates) - {leader}:
                candidates[name].proxy.plan = weather(rng.choice([0.0, 0.4]))
            terms = len(leading.history)
            while len(leading.history) == terms:
                leading.changed.clear()
                await leading.changed.wait()
    for candidate in candidates.values():
        candidate.proxy.plan = healthy
    await leading.until_led()
    assert leading.errors == []
    async with asyncio.timeout(DEADLINE_S):  # each loss is told, however late
        while [each for each in leading.now.values() if not each.may_write()] or len(leading.now) != 1:
            leading.changed.clear()
            await leading.changed.wait()
