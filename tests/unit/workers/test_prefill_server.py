"""What a prefill worker counts of its engine's time, whatever becomes of the prefills."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.msg import Msg
from prometheus_client import CollectorRegistry

from pointsman.api.protocol.prefill import PrefillRequest, PrefillSignal, SignalKind
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
)  # fmt: skip
DONE: Mapping[str, Any] = {"choices": [{"finish_reason": "length"}], "kv_transfer_params": {"handle": "h"}}
FAILED: Mapping[str, Any] = {"error": "out of memory"}


@dataclass
class HeldEngine:
    """Computes each prefill until the test says what becomes of it."""

    facts: EngineFacts = field(default_factory=EngineFacts)
    begun: dict[str, "asyncio.Future[EngineAnswer]"] = field(default_factory=dict)

    async def post(self, path: str, body: Mapping[str, Any], *, request_id: str) -> EngineAnswer:
        name = request_id.removeprefix("prefill-")
        self.begun[name] = asyncio.get_running_loop().create_future()
        return await self.begun[name]


@dataclass
class Queue:
    """The prefill queue and its answers, without NATS."""

    requests: "asyncio.Queue[Msg]" = field(default_factory=asyncio.Queue)
    acknowledged: list[str] = field(default_factory=list)
    handlers: dict[str, Callable[[Msg], Awaitable[None]]] = field(default_factory=dict)
    connect: Callable[[Any], Awaitable[None]] | None = None

    async def pull(self) -> Msg:
        return await self.requests.get()

    async def subscribe(self, subject: str, cb: Callable[[Msg], Awaitable[None]]) -> None:
        self.handlers[subject] = cb

    async def publish(self, subject: str, payload: bytes) -> None:
        """An answer; nobody waits for it."""


class Bench:
    """A prefill server at a clock that the test turns."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.engine, self.queue, self._registry = HeldEngine(), Queue(), CollectorRegistry()
        link = SimpleNamespace(ready=asyncio.Event(), client=self.queue, on_connected=self._on_connected)
        link.ready.set()
        self.server = PrefillServer(
            SETTINGS, cast(Engine, self.engine), cast(NatsLink, link), cast(PrefillPuller, self.queue),
            WorkerMetrics(self._registry), LeaseLedger(30.0),
            clock=lambda: self.now_s, unix=lambda: 0.0, on_engine_abort=lambda: None,
        )  # fmt: skip

    def _on_connected(self, callback: Callable[[Any], Awaitable[None]]) -> None:
        self.queue.connect = callback

    async def begins(self, name: str, at_s: float) -> None:
        """A decode worker asks, and the engine has it."""
        self.now_s = 1000.0 + at_s
        request = PrefillRequest(
            request_id=name, reply_to="inbox", model="small", block_size=16, kv_compatibility="same",
            decode_worker="decode-0", token_ids=(1, 2, 3),
        )  # fmt: skip

        async def ack() -> None:
            self.queue.acknowledged.append(name)

        delivery = SimpleNamespace(data=request.encode(), metadata=SimpleNamespace(num_delivered=1), ack=ack)
        self.queue.requests.put_nowait(cast(Msg, delivery))
        await eventually(lambda: name in self.engine.begun, f"{name} is computed")

    async def ends(self, name: str, at_s: float, answer: Mapping[str, Any] = DONE) -> None:
        """The engine answers it."""
        self.now_s = 1000.0 + at_s
        self.engine.begun[name].set_result(EngineAnswer(200, answer))
        await self._is_over(name)

    async def is_cancelled(self, name: str, at_s: float) -> None:
        """Its decode worker does not wait for it any more."""
        self.now_s = 1000.0 + at_s
        [hear] = self.queue.handlers.values()
        signal = PrefillSignal(request_id=name, kind=SignalKind.CANCELLED)
        await hear(cast(Msg, SimpleNamespace(data=signal.wire().encode())))
        await self._is_over(name)
        assert self.engine.begun[name].cancelled(), "the engine stopped it"

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
