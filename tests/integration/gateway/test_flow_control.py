"""Under overload: who can be in time goes past who cannot, nobody is lost, and the line has an end."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from multidict import CIMultiDictProxy

from fixtures.gateways import Entry, Gateway
from integration.gateway.conftest import ROUTING, Room
from integration.gateway.stand_in_worker import SERVED_NAME, Behaviour, StandInWorker
from waiting import eventually

ASK: dict[str, Any] = {"model": SERVED_NAME, "prompt": "The signal is at danger.", "max_tokens": 4, "stream": True}


@dataclass
class Answer:
    """What a client got."""

    status: int
    headers: CIMultiDictProxy[str]
    text: str

    @property
    def whole(self) -> bool:
        """A stream that came to its end."""
        return self.status == 200 and self.text.endswith("data: [DONE]\n\n")


async def ask(gateway: Gateway, **more: Any) -> Answer:
    """One request to its end."""
    async with gateway.http.post(f"{gateway.of.url}/v1/completions", json=ASK | more) as answer:
        return Answer(answer.status, answer.headers, await answer.text())


async def bounded(gateway: Gateway, workers: Sequence[StandInWorker | Entry], **bounds: int) -> None:
    """These workers and bounds are in force."""
    seen = len(gateway.of.logged("flow control"))
    gateway.write_endpoints(workers, routing=ROUTING | bounds)
    await eventually(lambda: len(gateway.of.logged("flow control")) > seen, "the bounds are known")


async def held(gateway: Gateway, count: int) -> None:
    """Wait until exactly so many are held."""

    async def holds() -> bool:
        return (await gateway.metrics())['pointsman_gateway_held{service="chat"}'] == count

    await eventually(holds, f"{count} requests are held")


@dataclass
class Running:
    """A request at a worker that ends when its test says so."""

    gate: asyncio.Event
    answer: "asyncio.Task[Answer]"

    async def end(self) -> None:
        """Let it end as a whole answer does."""
        self.gate.set()
        assert (await self.answer).whole


async def start(gateway: Gateway, worker: StandInWorker, *, tokens: int = 2, **more: Any) -> Running:
    """A request that has ``tokens`` so far, at ``worker``."""
    asked, gate = len(worker.seen), asyncio.Event()
    worker.behaviours.append(Behaviour(tokens=tokens, gate=gate, finish=True))
    running = Running(gate, asyncio.create_task(ask(gateway, **more)))
    await eventually(lambda: len(worker.seen) > asked, "the worker has the request")
    return running


async def test_who_is_in_time_passes_those_that_are_held_and_they_go_when_there_is_room(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    await bounded(gateway, [worker], inFlightPerDecodeWorker=3)
    first, second, third = [await start(gateway, worker) for _ in range(3)]
    late = asyncio.create_task(ask(gateway))
    await held(gateway, 1)
    await first.end()
    in_time = await ask(gateway)  # two in flight: in time, but no room for one that is late anyway
    assert in_time.whole
    assert "X-Pointsman-Held-Ms" not in in_time.headers
    assert not late.done()
    await second.end()
    answer = await late
    assert answer.whole
    assert int(answer.headers["X-Pointsman-Held-Ms"]) > 0
    await third.end()
    await held(gateway, 0)
    (line,) = [line for line in gateway.of.logged("request") if line["request_id"] == answer.headers["X-Request-Id"]]
    assert line["held_ms"] == pytest.approx(int(answer.headers["X-Pointsman-Held-Ms"]), abs=1)
    assert line["ttft_ms"] >= line["held_ms"]
