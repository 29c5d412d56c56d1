"""Under overload: who can be in time goes past who cannot, nobody is lost, and the line has an end."""

import asyncio
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from multidict import CIMultiDictProxy

from fixtures.gateways import Entry, Gateway
from integration.gateway.conftest import ROUTING, Room, bounded, held
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
        """An answer that came to its end."""
        streamed = self.headers["Content-Type"].startswith("text/event-stream")
        return self.status == 200 and (not streamed or self.text.endswith("data: [DONE]\n\n"))


async def ask(gateway: Gateway, **more: Any) -> Answer:
    """One request to its end."""
    async with gateway.http.post(f"{gateway.of.url}/v1/completions", json=ASK | more) as answer:
        return Answer(answer.status, answer.headers, await answer.text())


@dataclass
class Running:
    """A request at a worker that ends when its test says so."""

    gate: asyncio.Event
    answer: "asyncio.Task[Answer]"

    async def end(self) -> None:
        """Let it end as a whole answer does."""
        self.gate.set()
        assert (await self.answer).whole


def later(gateway: Gateway, worker: StandInWorker, *, tokens: int = 2, **more: Any) -> Running:
    """A request that has ``tokens`` as soon as it gets to ``worker``, and no more until its test says so."""
    gate = asyncio.Event()
    worker.behaviours.append(Behaviour(tokens=tokens, gate=gate, finish=True))
    return Running(gate, asyncio.create_task(ask(gateway, **more)))


async def start(gateway: Gateway, worker: StandInWorker, *, tokens: int = 2, **more: Any) -> Running:
    """One that is there."""
    asked = len(worker.seen)
    running = later(gateway, worker, tokens=tokens, **more)
    await eventually(lambda: len(worker.seen) > asked, "the worker has the request")
    return running


async def test_who_waits_for_room_to_decode_goes_in_order_and_says_how_long_it_waited(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    await bounded(gateway, [worker], decodingPerDecodeWorker=2, slackMilliseconds=60_000)
    first, second = [await start(gateway, worker) for _ in range(2)]
    waiting = later(gateway, worker)
    await held(gateway, 1)
    newcomer = asyncio.create_task(ask(gateway))
    await held(gateway, 2)
    await first.end()
    await held(gateway, 0)  # who has no first token yet does not decode: there is room for both
    await second.end()
    answer = await newcomer
    assert answer.whole
    assert int(answer.headers["X-Pointsman-Held-Ms"]) > 0
    await waiting.end()
    asked = answer.headers["X-Request-Id"]
    (line,) = await gateway.logged("request", request_id=asked)
    assert line["held_ms"] == pytest.approx(int(answer.headers["X-Pointsman-Held-Ms"]), abs=1)
    assert line["ttft_ms"] >= line["held_ms"]


async def test_who_is_in_time_passes_those_that_are_late_and_they_go_when_there_is_room(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    await bounded(gateway, [worker], decodingPerDecodeWorker=3, slackMilliseconds=1)
    first, second, third = [await start(gateway, worker) for _ in range(3)]
    late = asyncio.create_task(ask(gateway))
    await held(gateway, 1)  # asking so takes longer than it may wait
    await first.end()
    in_time = await ask(gateway)  # two decode: in time, but no room for one that is late anyway
    assert in_time.whole
    assert "X-Pointsman-Held-Ms" not in in_time.headers
    assert not late.done()
    await second.end()
    assert (await late).whole
    await third.end()


async def test_prompts_on_their_way_to_a_first_token_hold_back_by_their_tokens(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    prompt_tokens = len(worker.tokenizer(ASK["prompt"])["input_ids"])
    prefill = Entry("prefill-0", worker.url, "Prefill")
    bounds = {"pendingTokensPerPrefillWorker": prompt_tokens + 1}
    await bounded(gateway, [worker, prefill], **bounds)
    whole = await start(gateway, worker, stream=False)  # its first token is not seen, so it cannot count
    first, second = [await start(gateway, worker, tokens=0) for _ in range(2)]
    late = asyncio.create_task(ask(gateway))
    await held(gateway, 1)
    joined = len(gateway.of.logged("worker joined", worker="prefill-1"))
    gateway.write_endpoints([worker, prefill, Entry("prefill-1", worker.url, "Prefill")], routing=ROUTING | bounds)
    await eventually(lambda: len(gateway.of.logged("worker joined", worker="prefill-1")) > joined, "one more prefills")
    assert (await ask(gateway)).whole  # what two can do is in time; what is late waits for room
    assert not late.done()
    await first.end()
    await second.end()
    assert (await late).whole
    await whole.end()


async def test_a_held_client_that_leaves_is_taken_out_and_no_worker_hears_of_it(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    await bounded(gateway, [worker], decodingPerDecodeWorker=1)
    running = await start(gateway, worker)
    left = len(gateway.of.logged("request", status=499))
    leaving = asyncio.create_task(ask(gateway))
    await held(gateway, 1)
    staying = asyncio.create_task(ask(gateway))
    await held(gateway, 2)
    leaving.cancel()
    await held(gateway, 1)
    await running.end()
    assert (await staying).whole
    assert len(worker.seen) == 2
    await eventually(lambda: len(gateway.of.logged("request", status=499)) > left, "who left is logged")
    assert gateway.of.logged("request", status=499)[-1]["held_ms"] > 0


async def test_a_full_line_and_a_long_wait_are_429_with_the_time_to_try_again(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker], max_held=1, hold_seconds=1)
    await bounded(gateway, [worker], decodingPerDecodeWorker=1)
    running = await start(gateway, worker)
    waiting = asyncio.create_task(ask(gateway))
    await held(gateway, 1)
    with pytest.raises(openai.RateLimitError) as refused:
        await gateway.client.completions.create(**ASK)
    assert (refused.value.code, refused.value.type) == ("overloaded", "server_error")
    assert int(refused.value.response.headers["Retry-After"]) >= 1
    assert "X-Pointsman-Held-Ms" not in refused.value.response.headers
    late = await waiting
    assert late.status == 429
    assert int(late.headers["Retry-After"]) >= 1
    assert int(late.headers["X-Pointsman-Held-Ms"]) >= 1000
    await running.end()
    samples = await gateway.metrics()
    for reason in ("overloaded", "held-too-long"):
        assert samples[f'pointsman_gateway_failures_total{{reason="{reason}",service="chat"}}'] == 1
    assert samples['pointsman_gateway_holds_total{service="chat"}'] == 1
    assert samples['pointsman_gateway_hold_seconds_count{service="chat"}'] == 1
    counts = {'accepted_total{service="chat"}': 3, 'accepted_refused_total{service="chat"}': 1}
    prompts = {
        'prompt_tokens_count{service="chat"}': 3, 'accepted_refused_prompt_tokens_count{service="chat"}': 1,
    }  # fmt: skip
    expected = {f"pointsman_gateway_{name}": value for name, value in (counts | prompts).items()}
    assert {name: samples[name] for name in expected} == expected, "the planner subtracts the one without a place"
    ended = {name: value for name, value in samples.items() if name.startswith("pointsman_gateway_ended_total{")}
    assert ended['pointsman_gateway_ended_total{service="chat",tpot="failed",ttft="unknown"}'] == 1, "waited in vain"
    assert sum(ended.values()) == 2, "and the answered one"


async def test_bounds_that_change_or_go_act_on_those_that_are_held(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    await bounded(gateway, [worker], decodingPerDecodeWorker=1)
    running = await start(gateway, worker)
    gates = []
    for count in range(1, 4):
        gates.append(later(gateway, worker))
        await held(gateway, count)
    await bounded(gateway, [worker], decodingPerDecodeWorker=5)
    await held(gateway, 0)
    await eventually(lambda: len(worker.seen) == 4, "all are there")
    await bounded(gateway, [worker], decodingPerDecodeWorker=1)
    gates.append(later(gateway, worker))
    await held(gateway, 1)
    await bounded(gateway, [worker])
    await held(gateway, 0)
    for one in (running, *gates):
        await one.end()


async def test_a_worker_that_dies_while_others_are_held_costs_nobody_an_answer(room: Room) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers)
    await bounded(gateway, workers, decodingPerDecodeWorker=1)
    dying, living = workers
    death, end = asyncio.Event(), asyncio.Event()
    dying.behaviours.append(Behaviour(tokens=2, gate=death, cut=True))
    living.behaviours.append(Behaviour(tokens=2, gate=end, finish=True))
    streams = [asyncio.create_task(ask(gateway)) for _ in workers]
    await eventually(lambda: dying.seen and living.seen, "each has one")
    waiting = [asyncio.create_task(ask(gateway)) for _ in range(4)]
    await held(gateway, 4)
    gateway.write_endpoints([living], routing=ROUTING | {"decodingPerDecodeWorker": 1})
    await gateway.knows(living)
    death.set()
    await eventually(lambda: len(living.seen) == 2, "the broken stream went on here at once, past the bound")
    end.set()
    answers = await asyncio.gather(*streams, *waiting)
    assert all(answer.whole for answer in answers)
    assert [("X-Pointsman-Held-Ms" in answer.headers) for answer in answers] == [False] * 2 + [True] * 4
    assert len(living.seen) == 1 + 1 + 4


async def test_who_is_held_outlives_the_loss_of_all_workers(room: Room) -> None:
    first, second = await room.workers(2)
    gateway = await room.gateway([first])
    await bounded(gateway, [first], decodingPerDecodeWorker=1)
    running = await start(gateway, first)
    waiting = asyncio.create_task(ask(gateway))
    await held(gateway, 1)
    gateway.write_endpoints([], routing=ROUTING | {"decodingPerDecodeWorker": 1})
    await gateway.knows()
    await running.end()
    await held(gateway, 1)
    gateway.write_endpoints([second], routing=ROUTING | {"decodingPerDecodeWorker": 1})
    assert (await waiting).whole
    assert len(second.seen) == 1


async def test_sigterm_sends_those_that_have_room_and_tells_the_others_before_the_end(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker], shutdown_seconds=8)
    one_prompt_at_a_time = {"decodingPerDecodeWorker": 1, "pendingTokensPerPrefillWorker": 1}
    await bounded(gateway, [worker], **one_prompt_at_a_time, slackMilliseconds=60_000)
    running = await start(gateway, worker)
    going = later(gateway, worker)
    await held(gateway, 1)
    staying = asyncio.create_task(ask(gateway))
    await held(gateway, 2)
    gateway.of.process.terminate()
    await eventually(lambda: gateway.of.logged("stopping"), "the gateway stops")
    await running.end()
    told = await staying  # while the one before it is being answered
    assert (told.status, told.headers["Connection"]) == (429, "close")
    await going.end()
    assert await asyncio.to_thread(gateway.of.process.wait, 120) == 0
