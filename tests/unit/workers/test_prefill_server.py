"""What a prefill worker counts of its engine's time, what it announces, and how it tells when a lease began."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import nats.errors
import pytest
from nats.aio.msg import Msg
from prometheus_client import CollectorRegistry

from pointsman.api.protocol.prefill import (
    PrefillBegun,
    PrefillPresence,
    PrefillReply,
    PrefillRequest,
    PrefillSignal,
    PrefillWait,
    SignalKind,
)
from pointsman.process.ending import end
from pointsman.workers.core.leases import LeaseLedger
from pointsman.workers.engine import Engine
from pointsman.workers.metrics import WorkerMetrics
from pointsman.workers.nats_link import NatsLink
from pointsman.workers.prefill_queue import PrefillPuller
from pointsman.workers.prefill_server import PrefillServer
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.types import EngineAnswer, EngineFacts
from waiting import eventually

SETTINGS = WorkerSettings(
    namespace="tests", service="small", service_uid="0123-uid", worker="prefill-0", kv_compatibility="same",
    block_size=16, model="/nowhere", served_name="small", control_token="a-token-of-the-tests",
    heartbeat_seconds=0.02,
)  # fmt: skip
DONE: Mapping[str, Any] = {"choices": [{"finish_reason": "length"}], "kv_transfer_params": {"handle": "h"}}
FAILED: Mapping[str, Any] = {"error": "out of memory"}


@dataclass
class HeldEngine:
    """Computes each prefill until the test says what becomes of it."""

    facts: EngineFacts = field(default_factory=EngineFacts)
    begun: dict[str, "asyncio.Future[EngineAnswer]"] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)

    async def post(self, path: str, body: Mapping[str, Any], *, request_id: str) -> EngineAnswer:
        name = request_id.removeprefix("prefill-")
        self.begun[name] = asyncio.get_running_loop().create_future()
        try:
            return await self.begun[name]
        except asyncio.CancelledError:
            for _ in range(50):  # it is told, and has to run for it
                await asyncio.sleep(0)
            self.aborted.append(name)
            raise


@dataclass
class Queue:
    """The prefill queue and its answers, without NATS."""

    requests: "asyncio.Queue[Msg]" = field(default_factory=asyncio.Queue)
    acknowledged: list[str] = field(default_factory=list)
    handlers: dict[str, Callable[[Msg], Awaitable[None]]] = field(default_factory=dict)
    connect: Callable[[Any], Awaitable[None]] | None = None
    published: list[tuple[str, bytes]] = field(default_factory=list)
    confirm: Callable[[PrefillBegun], Awaitable[PrefillWait]] | None = None

    async def pull(self) -> Msg:
        return await self.requests.get()

    async def subscribe(self, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> None:
        self.handlers[subject] = cb

    async def publish(self, subject: str, payload: bytes) -> None:
        """An answer, or a presence."""
        self.published.append((subject, payload))

    async def request(self, subject: str, payload: bytes, timeout: float) -> Msg:
        """What the decode worker is asked."""
        if self.confirm is None:
            raise nats.errors.NoRespondersError
        answer = await self.confirm(PrefillBegun.model_validate_json(payload))
        return cast(Msg, SimpleNamespace(data=answer.wire().encode()))

    @property
    def answers(self) -> list[PrefillReply]:
        """What decode workers were sent."""
        return [PrefillReply.model_validate_json(payload) for subject, payload in self.published if subject == "inbox"]


class Bench:
    """A prefill server at a clock that the test turns."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.heartbeats = 0
        self.engine, self.queue, self._registry = HeldEngine(), Queue(), CollectorRegistry()
        link = SimpleNamespace(ready=asyncio.Event(), client=self.queue, on_connected=self._on_connected)
        link.ready.set()
        self.server = PrefillServer(
            SETTINGS, cast(Engine, self.engine), cast(NatsLink, link), cast(PrefillPuller, self.queue),
            WorkerMetrics(self._registry), LeaseLedger(30.0),
            clock=lambda: self.now_s, on_engine_abort=lambda: None,
        )  # fmt: skip

    def _on_connected(self, callback: Callable[[Any], Awaitable[None]]) -> None:
        self.queue.connect = callback

    async def begins(self, name: str, at_s: float, **fields: Any) -> None:
        """A decode worker asks, and the engine has it."""
        self.asks(name, at_s, **fields)
        await eventually(lambda: name in self.engine.begun, f"{name} is computed")

    def asks(self, name: str, at_s: float, tokens: int = 3, delivered: int = 1, **fields: Any) -> None:
        """A decode worker asks; the queue has ``delivered`` it so often."""
        self.now_s = 1000.0 + at_s
        request = PrefillRequest(
            request_id=name, reply_to="inbox", model="small", block_size=16, kv_compatibility="same",
            decode_worker="decode-0", token_ids=(1,) * tokens, **fields,
        )  # fmt: skip

        async def ack() -> None:
            self.queue.acknowledged.append(name)

        async def in_progress() -> None:
            self.heartbeats += 1

        metadata = SimpleNamespace(num_delivered=delivered)
        delivery = SimpleNamespace(data=request.encode(), metadata=metadata, ack=ack, in_progress=in_progress)
        self.queue.requests.put_nowait(cast(Msg, delivery))

    async def beats(self, at_s: float) -> None:
        """Two heartbeats pass."""
        self.now_s = 1000.0 + at_s
        seen = self.heartbeats
        await eventually(lambda: self.heartbeats >= seen + 2, "heartbeats are sent")

    async def ends(self, name: str, at_s: float, answer: Mapping[str, Any] = DONE, status: int = 200) -> None:
        """The engine answers it."""
        self.now_s = 1000.0 + at_s
        self.engine.begun[name].set_result(EngineAnswer(status, answer))
        await self._is_over(name)

    async def is_cancelled(self, name: str, at_s: float) -> None:
        """Its decode worker does not wait for it any more."""
        self.now_s = 1000.0 + at_s
        await self.hears_of_the_end(name)
        await self._is_over(name)
        assert self.engine.begun[name].cancelled(), "the engine stopped it"

    async def hears_of_the_end(self, name: str) -> None:
        """The signal of its decode worker."""
        [hear] = self.queue.handlers.values()
        signal = PrefillSignal(request_id=name, kind=SignalKind.CANCELLED)
        await hear(cast(Msg, SimpleNamespace(data=signal.wire().encode())))

    async def _is_over(self, name: str) -> None:
        await eventually(lambda: name in self.queue.acknowledged, f"{name} is over")

    @property
    def counted(self) -> tuple[float, float]:
        """(seconds of the engine's time, prefills done) as the page shows them."""
        engine_s, done = (
            self._registry.get_sample_value(f"pointsman_worker_remote_prefill_{name}")
            for name in ("engine_seconds_total", "seconds_count")
        )
        assert engine_s is not None
        assert done is not None
        return engine_s, done


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    assert made.queue.connect is not None
    await made.queue.connect(made.queue)
    made.server.pulling = True
    serving = asyncio.create_task(made.server.run())
    yield made
    await end((serving,))
    await made.server.stop()


async def test_a_prefill_that_is_cancelled_while_it_runs_is_neither_counted_nor_busy_for_ever(bench: Bench) -> None:
    await bench.begins("left", 0.0)
    await bench.is_cancelled("left", 5.0)
    assert bench.counted == (0.0, 0.0)
    await bench.begins("next", 100.0)
    await bench.ends("next", 102.0)
    assert bench.counted == (2.0, 1.0)


async def test_beside_one_that_is_cancelled_only_the_others_time_is_counted(bench: Bench) -> None:
    await bench.begins("left", 0.0)
    await bench.begins("stays", 4.0)
    await bench.is_cancelled("left", 5.0)
    await bench.ends("stays", 6.0)
    assert bench.counted == (2.0, 1.0), "not the four seconds before it"
    await bench.begins("beside", 10.0)
    await bench.begins("leaves", 11.0)
    await bench.is_cancelled("leaves", 12.0)
    await bench.ends("beside", 13.0)
    assert bench.counted == (5.0, 2.0)


async def test_a_prefill_that_fails_is_not_counted_either(bench: Bench) -> None:
    await bench.begins("fails", 0.0)
    await bench.ends("fails", 7.0, FAILED)
    await bench.begins("next", 8.0)
    await bench.ends("next", 9.0)
    assert bench.counted == (1.0, 1.0)


def _waits(at_s: float, *, waiting: bool = True) -> Callable[[PrefillBegun], Awaitable[PrefillWait]]:
    async def confirm(begun: PrefillBegun) -> PrefillWait:
        return PrefillWait(request_id=begun.request_id, waiting=waiting, clock_seconds=at_s)

    return confirm


async def test_a_reply_says_when_its_lease_began_on_the_decode_workers_clock(bench: Bench) -> None:
    bench.queue.confirm = _waits(77_041.0)  # it published 41 s before, when its clock said 77 000
    await bench.begins("long", 0.0, asked_at_seconds=77_000.0, wait_seconds=300.0)
    await bench.beats(50.0)
    await bench.ends("long", 51.0)
    [reply] = bench.queue.answers
    assert reply.lease_began_seconds == 77_041.0 + 50.0
    assert reply.lease_seconds == SETTINGS.lease_seconds


async def test_a_prefill_whose_decode_worker_does_not_wait_is_stopped(bench: Bench) -> None:
    bench.queue.confirm = _waits(5.0, waiting=False)
    await bench.begins("over", 0.0, asked_at_seconds=1.0, wait_seconds=300.0)
    await bench._is_over("over")
    assert bench.engine.begun["over"].cancelled()
    assert bench.queue.answers == []


async def test_the_engine_aborts_a_prefill_that_is_stopped_for_two_reasons_at_once(bench: Bench) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def waits_no_more(begun: PrefillBegun) -> PrefillWait:
        asked.set()
        await left.wait()
        return PrefillWait(request_id=begun.request_id, waiting=False, clock_seconds=5.0)

    bench.queue.confirm = waits_no_more
    await bench.begins("left", 0.0, asked_at_seconds=1.0, wait_seconds=300.0)
    await asked.wait()
    await bench.hears_of_the_end("left")
    await asyncio.sleep(0)
    left.set()
    await bench._is_over("left")
    assert bench.engine.aborted == ["left"]


async def test_a_prefill_whose_decode_worker_is_gone_is_stopped(bench: Bench) -> None:
    await bench.begins("gone", 0.0, asked_at_seconds=1.0, wait_seconds=300.0)
    await bench._is_over("gone")
    assert bench.engine.begun["gone"].cancelled()


async def test_a_request_of_an_earlier_version_is_computed_and_answered_without_a_clock(bench: Bench) -> None:
    await bench.begins("earlier", 0.0)
    await bench.ends("earlier", 1.0)
    [reply] = bench.queue.answers
    assert reply.lease_began_seconds is None
    assert "leaseBeganSeconds" not in reply.wire()


async def test_a_request_that_waits_longer_in_the_workers_hands_than_its_decode_worker_does_is_dropped(
    bench: Bench,
) -> None:
    bench.server.budget_tokens = 10
    await bench.begins("first", 0.0, tokens=8)
    bench.asks("second", 1.0, tokens=8, wait_seconds=5.0)
    await eventually(lambda: bench.server.queued == 1, "the second waits")
    await bench.ends("first", 7.0)
    await bench._is_over("second")
    assert "second" not in bench.engine.begun
    assert bench.queue.answers[-1].outcome == "expired"


@pytest.mark.parametrize(("deaths", "delivered"), [(0, 3), (1, 2)])
async def test_a_request_that_may_have_killed_two_workers_is_refused(bench: Bench, deaths: int, delivered: int) -> None:
    await bench.begins("second", 0.0, delivered=delivered - 1, deaths=deaths)
    await bench.ends("second", 1.0)
    bench.asks("third", 2.0, delivered=delivered, deaths=deaths)
    await bench._is_over("third")
    assert [answer.outcome for answer in bench.queue.answers] == ["done", "refused"]
    assert "third" not in bench.engine.begun


@pytest.mark.parametrize(("message", "died"), [("EngineCore encountered an issue", True), ("out of memory", False)])
async def test_an_answer_says_whether_the_engine_died(bench: Bench, message: str, died: bool) -> None:
    await bench.begins("fails", 0.0)
    await bench.ends("fails", 1.0, {"error": {"message": message, "type": "InternalServerError"}})
    [answer] = bench.queue.answers
    assert (answer.outcome, answer.engine_died) == ("failed", died)


async def test_a_request_that_the_engine_refuses_is_no_failure_of_the_engine(bench: Bench) -> None:
    for number in range(10):
        await bench.begins(f"refused-{number}", 0.0)
        await bench.ends(f"refused-{number}", 0.0, FAILED, status=400)
    assert not bench.server._health.failures


async def test_after_a_pause_one_prompt_tests_the_engine(bench: Bench) -> None:
    for number in range(6):  # the last of them comes with a pull that was out when the pause began
        await bench.begins(f"fails-{number}", 0.0)
        await bench.ends(f"fails-{number}", 0.0, FAILED, status=500)
    assert bench.server._health.ejected(bench.now_s)
    bench.asks("trial", 2.1)
    bench.asks("after", 2.1)
    bench.server._changed.set()
    await eventually(lambda: "trial" in bench.engine.begun, "the pause is over")
    assert not bench.server._health.ejected(bench.now_s), "it serves, or nobody waits for the trial"
    await bench.beats(2.2)
    assert "after" not in bench.engine.begun
    await bench.ends("trial", 2.3)
    await eventually(lambda: "after" in bench.engine.begun, "the engine works again")
    await bench.ends("after", 2.4)


async def test_presence_carries_what_the_worker_has_taken_and_what_of_it_waits(bench: Bench) -> None:
    bench.server.budget_tokens = 10
    await bench.begins("first", 0.0, tokens=8)
    bench.asks("second", 1.0, tokens=8)
    await eventually(lambda: bench.server.queued == 1, "the second waits")
    announcing = asyncio.create_task(bench.server.announce())
    try:
        await eventually(lambda: any(s.startswith("pointsman.presence") for s, _ in bench.queue.published), "heard")
    finally:
        await end((announcing,))
    presence = PrefillPresence.model_validate_json(
        next(payload for subject, payload in bench.queue.published if subject.startswith("pointsman.presence"))
    )
    assert (presence.in_progress, presence.in_progress_tokens, presence.waiting) == (2, 16, 1)


async def test_a_budget_that_is_lowered_makes_what_was_taken_beyond_it_wait(bench: Bench) -> None:
    await bench.begins("first", 0.0, tokens=8)
    await bench.begins("second", 0.0, tokens=8)
    assert bench.server._limits().waiting(bench.server.in_progress) == 0
    bench.server.budget_tokens = 10
    assert bench.server._limits().waiting(bench.server.in_progress) == 1
