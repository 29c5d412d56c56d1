"""Leader election against a simulated API server that delays, loses and answers late, over simulated minutes."""

import asyncio
import copy
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fakes.clock import FakeClock
from pointsman.kube.errors import AlreadyExists, Conflict, NotFound, Unreachable
from pointsman.kube.lease import Elector
from pointsman.kube.resources import Resource

Object = dict[str, Any]


class Network:
    """The way to the API server: how late a request arrives, how late its answer; None is never."""

    def __init__(self) -> None:
        self.there: Callable[[], float | None] = lambda: 0.001
        self.back: Callable[[], float | None] = lambda: 0.001


class LeaseServer:
    """One Lease with a resourceVersion, as the API server keeps it."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.lease: Object | None = None
        self._version = 0

    def client(self, network: Network) -> Any:
        """In place of a Kube: the four verbs that an Elector uses."""
        return LeaseClient(self, network)

    def read(self) -> Object:
        if self.lease is None:
            raise NotFound("no lease", status=404)
        return copy.deepcopy(self.lease)

    def write(self, body: Object, *, create: bool) -> Object:
        if create and self.lease is not None:
            raise AlreadyExists("there is one", status=409)
        if not create:
            if self.lease is None:
                raise NotFound("no lease", status=404)
            if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                raise Conflict("changed meanwhile", status=409)
        self._version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self._version)
        return self.read()


class LeaseClient:
    """What an Elector uses of Kube. A request whose client has given up still arrives."""

    def __init__(self, server: LeaseServer, network: Network) -> None:
        self.server = server
        self.network = network

    async def get(self, _: Resource, name: str, namespace: str, *, timeout_s: float) -> Object:
        return await self._request(self.server.read, timeout_s)

    async def find(self, _: Resource, name: str, namespace: str, *, timeout_s: float) -> Object | None:
        try:
            return await self._request(self.server.read, timeout_s)
        except NotFound:
            return None

    async def create(self, _: Resource, body: Object, *, timeout_s: float) -> Object:
        return await self._request(lambda: self.server.write(body, create=True), timeout_s)

    async def replace(self, _: Resource, body: Object, *, timeout_s: float) -> Object:
        return await self._request(lambda: self.server.write(body, create=False), timeout_s)

    async def _request(self, execute: Callable[[], Object], timeout_s: float) -> Object:
        clock = self.server.clock
        answer: asyncio.Future[Object] = asyncio.get_running_loop().create_future()

        def arrive() -> None:
            try:
                result: Object | Exception = execute()
            except (AlreadyExists, Conflict, NotFound) as error:
                result = error
            back_s = self.network.back()
            if back_s is not None:
                clock.call_later(back_s, lambda: give(result))

        def give(result: Object | Exception) -> None:
            if answer.done():
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        there_s = self.network.there()
        if there_s is not None:
            clock.call_later(there_s, arrive)
        timeout = clock.call_later(timeout_s, lambda: give(Unreachable("timed out")))
        try:
            return await answer
        finally:
            timeout.cancel()


class Candidate:
    """A process: it stands for election, and is started again when it has lost."""

    def __init__(self, server: LeaseServer, name: str) -> None:
        self.server = server
        self.name = name
        self.network = Network()
        self.starts = 0
        self.terms = 0
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.starts += 1
            self.elector = Elector(
                self.server.client(self.network),
                namespace="n",
                name="l",
                identity=f"{self.name}-{self.starts}",
                clock=self.server.clock,
            )
            await self.elector.run()
            self.terms += 1

    @property
    def leads(self) -> bool:
        return hasattr(self, "elector") and self.elector.still_leader()


@pytest.fixture
async def clock() -> AsyncIterator[FakeClock]:
    clock = FakeClock()
    yield clock
    clock.after_step = lambda: None
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await clock.advance(60)  # a leader that is cancelled releases the Lease first
    assert all(task.done() for task in tasks)


async def start(clock: FakeClock, names: str) -> tuple[LeaseServer, list[Candidate]]:
    server = LeaseServer(clock)
    candidates = [Candidate(server, name) for name in names]

    def at_most_one() -> None:
        leaders = [candidate.elector.identity for candidate in candidates if candidate.leads]
        assert len(leaders) <= 1, f"at {clock.monotonic_s():.3f} s two lead: {leaders}"

    clock.after_step = at_most_one
    return server, candidates


async def test_one_of_several_leads_and_keeps_the_lease(clock: FakeClock) -> None:
    server, candidates = await start(clock, "abc")
    await clock.advance(3)
    [leader] = [candidate for candidate in candidates if candidate.leads]
    await clock.advance(300)
    assert leader.leads
    assert leader.terms == 0
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 0


async def test_a_leader_that_cannot_reach_the_server_stops_before_another_starts(clock: FakeClock) -> None:
    _, candidates = await start(clock, "ab")
    await clock.advance(3)
    [leader] = [candidate for candidate in candidates if candidate.leads]
    leader.network.there = lambda: None
    await clock.advance(9)
    assert leader.leads, "the deadline is 10 s after the last renewal"
    await clock.advance(1.1)
    assert not any(candidate.leads for candidate in candidates)
    await clock.advance(9)
    [other] = [candidate for candidate in candidates if candidate.leads]
    assert other is not leader


async def test_a_leader_whose_writes_succeed_but_are_never_answered_stops_too(clock: FakeClock) -> None:
    _, candidates = await start(clock, "a")
    await clock.advance(3)
    [leader] = candidates
    assert leader.leads
    leader.network.back = lambda: None
    await clock.advance(10.1)
    assert not leader.leads


async def test_the_deadline_counts_from_before_the_request_not_from_its_answer(clock: FakeClock) -> None:
    _, [leader] = await start(clock, "a")
    await clock.advance(3)
    slow, lost = iter([4.0]), iter([0.001])
    leader.network.back = lambda: next(slow, None)
    leader.network.there = lambda: next(lost, None)
    sent_s = clock.monotonic_s()
    while leader.leads:
        await clock.advance(0.1)
    assert clock.monotonic_s() - sent_s <= 12.2  # one retry period of 2 s may pass before the slow request
    assert clock.monotonic_s() - sent_s > 9


async def test_one_lost_answer_does_not_cost_the_lease(clock: FakeClock) -> None:
    _, [leader] = await start(clock, "a")
    await clock.advance(3)
    lost = iter([None])
    leader.network.back = lambda: next(lost, 0.001)
    await clock.advance(30)
    assert leader.leads
    assert leader.terms == 0


async def test_a_clean_exit_hands_over_at_once(clock: FakeClock) -> None:
    server, candidates = await start(clock, "ab")
    await clock.advance(3)
    [leader] = [candidate for candidate in candidates if candidate.leads]
    leader.task.cancel()
    await clock.advance(0.1)
    assert not leader.leads
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == ""
    await clock.advance(3)
    assert [candidate for candidate in candidates if candidate.leads] == [c for c in candidates if c is not leader]


async def test_cancelled_without_leading_it_leaves_the_lease_alone(clock: FakeClock) -> None:
    server, candidates = await start(clock, "ab")
    await clock.advance(3)
    [standby] = [candidate for candidate in candidates if not candidate.leads]
    standby.task.cancel()
    await clock.advance(3)
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] != ""


async def test_a_lease_that_was_deleted_ends_the_leadership_and_others_wait_it_out(clock: FakeClock) -> None:
    server, candidates = await start(clock, "ab")
    await clock.advance(3)
    [leader] = [candidate for candidate in candidates if candidate.leads]
    leader.network.there = lambda: None
    server.lease = None
    await clock.advance(14)
    assert not any(candidate.leads for candidate in candidates)
    await clock.advance(5)
    assert [candidate.leads for candidate in candidates if candidate is not leader] == [True]


async def test_loss_is_told_once_with_its_reason(clock: FakeClock) -> None:
    server = LeaseServer(clock)
    reasons: list[str] = []
    elector = Elector(
        server.client(Network()),
        namespace="n",
        name="l",
        identity="a",
        on_lost=reasons.append,
        clock=clock,
    )
    running = asyncio.create_task(elector.run())
    await clock.advance(1)
    assert elector.elected.is_set()
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = "thief"
    server.lease["metadata"]["resourceVersion"] = "stolen"
    await clock.advance(10)
    assert reasons == ["thief holds the lease"]
    assert elector.lost.is_set()
    assert not elector.still_leader()
    assert running.done()


async def test_a_bug_in_the_election_is_a_loss_too(clock: FakeClock) -> None:
    server = LeaseServer(clock)
    network = Network()
    elector = Elector(server.client(network), namespace="n", name="l", identity="a", clock=clock)
    running = asyncio.create_task(elector.run())
    await clock.advance(1)
    assert elector.still_leader()

    def break_down() -> float:
        raise ZeroDivisionError

    network.there = break_down
    await clock.advance(3)
    assert elector.lost.is_set()
    assert not elector.still_leader()
    assert isinstance(running.exception(), ZeroDivisionError)


async def test_the_lease_says_at_least_the_time_we_rely_on(clock: FakeClock) -> None:
    server = LeaseServer(clock)
    client = server.client(Network())
    elector = Elector(client, namespace="n", name="l", identity="a", clock=clock, lease_duration_s=2.4)
    running = asyncio.create_task(elector.run())
    await clock.advance(1)
    assert server.lease is not None
    assert server.lease["spec"]["leaseDurationSeconds"] == 3
    running.cancel()


@pytest.mark.parametrize("lease_duration_s", [1.1, 15, 600])
async def test_a_leader_stops_well_before_another_may_begin_whatever_the_duration(
    clock: FakeClock, lease_duration_s: float
) -> None:
    network = Network()
    client = LeaseServer(clock).client(network)
    elector = Elector(client, namespace="n", name="l", identity="a", clock=clock, lease_duration_s=lease_duration_s)
    running = asyncio.create_task(elector.run())
    await clock.advance(lease_duration_s)
    assert elector.still_leader()
    network.there = lambda: None
    await clock.advance(lease_duration_s * 0.5)
    assert elector.still_leader(), "one request that is lost does not end it"
    await clock.advance(lease_duration_s * 0.17)
    assert not elector.still_leader()
    running.cancel()


@pytest.mark.parametrize("seed", range(10))
async def test_never_two_leaders_on_a_bad_network_and_one_again_when_it_heals(clock: FakeClock, seed: int) -> None:
    print(f"seed {seed}")
    random.seed(seed)  # how long candidates wait between tries is random too
    rng = random.Random(seed)
    _, candidates = await start(clock, "abc")

    def weather(badness: float) -> Callable[[], float | None]:
        def delay_s() -> float | None:
            if rng.random() >= badness:
                return rng.uniform(0, 0.05)
            return rng.choice([None, rng.uniform(0, 3), rng.uniform(0, 30)])

        return delay_s

    for _ in range(25):
        for candidate in candidates:
            badness = rng.choice([0, 0.3, 0.8, 1])
            candidate.network.there, candidate.network.back = weather(badness), weather(badness)
        await clock.advance(rng.uniform(1, 15))
    for candidate in candidates:
        candidate.network.there = candidate.network.back = weather(0)
    await clock.advance(45)
    assert sum(candidate.leads for candidate in candidates) == 1
    print("terms", [candidate.terms for candidate in candidates])
    assert sum(candidate.terms for candidate in candidates) > 1, "the weather was too good to prove anything"
