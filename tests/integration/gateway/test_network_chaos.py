"""Seeded network faults between gateways and workers: an answer is whole and right, or ends with one clear error.

Every connection is reset, ended, stalled or slowed within its first answers.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from fixtures.gateways import Entry, Gateway
from fixtures.tcp_faults import TcpProxy, chaos, healthy
from integration.gateway.conftest import Room
from integration.gateway.stand_in_worker import SERVED_NAME, StandInWorker
from waiting import eventually

WORKERS, GATEWAYS, CLIENTS, REQUESTS = 3, 2, 16, 80
MOST_BYTES = 12_000  # of answers that each connection lasts; one answer has 200 to 12 000
SECONDS = {  # a stall costs one of these
    "inactivity_timeout_seconds": 1,
    "first_token_timeout_seconds": 2,
    "answer_timeout_seconds": 2,
    "patience_seconds": 3,
    "suspect_seconds": 0.1,
}
REASONS = (
    "2 workers failed while answering this request",  # for all the gateway knows
    "attempts failed",
    "did not come in time",  # a connection stalled before the first token
    "did not come within 2 s",  # or in a whole answer
)
LONGEST_SECONDS = 30.0  # patience, first token, and silence at each of four workers, twice over


@dataclass(frozen=True)
class Request:
    """One request: a chat or a completion."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a client got: the text of each choice, and why they are not whole (None: they are)."""

    texts: tuple[str, ...]
    error: str | None


def drawn(rng: random.Random) -> Request:
    """Streamed or not, of one answer or two, of tokens (any worker continues it) or as it is (a worker repeats it)."""
    words = " ".join(rng.choice(("signal", "points", "danger", "clear")) for _ in range(rng.randrange(1, 9)))
    body: dict[str, Any] = {"model": SERVED_NAME, "max_tokens": rng.randrange(1, 25), "stream": rng.random() < 0.6}
    body |= rng.choice(({}, {}, {"n": 2}, {"stop": ["zz"]}))
    if rng.random() < 0.5:
        return Request("/v1/completions", body | {"prompt": words})
    content = rng.choice((words, [{"type": "text", "text": words}]))
    return Request("/v1/chat/completions", body | {"messages": [{"role": "user", "content": content}]})


def right_texts(worker: StandInWorker, request: Request) -> tuple[str, ...]:
    """What every worker answers."""
    body = request.body
    prompt = worker.rendered(body) if "messages" in body else worker.tokenizer(body["prompt"])["input_ids"]
    return tuple(
        str(worker.tokenizer.decode(worker.output(prompt, body["max_tokens"], choice)))
        for choice in range(body.get("n", 1))
    )


async def received(gateway: Gateway, request: Request) -> tuple[int, bytes]:
    """Status and body of the one HTTP answer that comes before the connection ends."""
    host, port = gateway.of.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(request.body).encode()
    writer.write(f"POST {request.path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n".encode())
    writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert b"\r\nx-request-id: " in head.lower(), head
    data = rest
    if b"transfer-encoding: chunked" in head.lower():
        data, size = b"", -1
        while size:
            line, _, rest = rest.partition(b"\r\n")
            size = int(line, 16)
            data, end, rest = data + rest[:size], rest[size : size + 2], rest[size + 2 :]
            assert end == b"\r\n", rest
        assert not rest, "more than one answer"
    else:
        assert b"content-length: %d\r\n" % len(data) in head.lower() + b"\r\n", (head, data)
    return int(head.split(b" ", 2)[1]), data


async def answered(gateway: Gateway, request: Request) -> Outcome:
    """What came of ``request``, of which every byte must be understood."""
    status, data = await received(gateway, request)
    choices = request.body.get("n", 1)
    if status != 200:
        assert status in (502, 503, 504), data
        return Outcome(("",) * choices, _error(json.loads(data)))
    if not request.body["stream"]:
        found = sorted(json.loads(data)["choices"], key=lambda choice: choice["index"])
        return Outcome(tuple(one["message"]["content"] if "message" in one else one["text"] for one in found), None)
    *lines, end = [line for line in data.decode().splitlines() if line]
    assert end == "data: [DONE]", data
    assert all(line.startswith("data: ") for line in lines), data
    events = [json.loads(line[6:]) for line in lines]
    error = _error(events.pop()) if "error" in events[-1] else None
    texts, ends = [""] * choices, [0] * choices
    for choice in (choice for event in events for choice in event["choices"]):
        assert not ends[choice["index"]], data
        texts[choice["index"]] += choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
        ends[choice["index"]] += choice["finish_reason"] is not None
    assert error is not None or all(ends), data
    return Outcome(tuple(texts), error)


def _error(body: dict[str, Any]) -> str:
    assert set(body["error"]) >= {"message", "type", "param", "code"}, body
    return str(body["error"]["message"])


async def survived(gateways: Sequence[Gateway], workers: Sequence[StandInWorker], seed: int) -> Counter[str]:
    """``REQUESTS`` requests while the network fails; how many ended in which way."""
    rng = random.Random(seed)
    ended: Counter[str] = Counter(moved=-sum([await moves(gateway) for gateway in gateways]))
    async with AsyncExitStack() as stack:
        networks = [await stack.enter_async_context(TcpProxy(worker.url)) for worker in workers]
        seen = [Entry(worker.name, network.url) for worker, network in zip(workers, networks, strict=True)]
        for gateway in gateways:
            gateway.write_endpoints(seen)
            await gateway.knows(*seen)
        for network in networks:
            network.use(chaos(rng.randrange(2**32), most_bytes=MOST_BYTES))
        requests = [(rng.choice(gateways), drawn(rng)) for _ in range(REQUESTS)]

        async def client() -> None:
            while requests:
                gateway, request = requests.pop()
                async with asyncio.timeout(LONGEST_SECONDS):
                    outcome = await answered(gateway, request)
                right = right_texts(workers[0], request)
                if outcome.error is None:
                    assert outcome.texts == right, (seed, request)
                else:
                    assert all(map(str.startswith, right, outcome.texts)), (seed, request, outcome)
                    assert any(reason in outcome.error for reason in REASONS), (seed, request, outcome)
                kind = "stream" if request.body["stream"] else "whole"
                ended[f"{kind} {'answered' if outcome.error is None else 'failed'}"] += 1

        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(client())
        ended["moved"] += sum([await moves(gateway) for gateway in gateways])
        for network in networks:
            network.use(healthy)
        await eventually(lambda: not any(worker.running for worker in workers), "no worker generates")
        for gateway in gateways:
            await eventually(partial(nothing_left, gateway), "nothing is left in flight")
            request = drawn(rng)
            right = Outcome(right_texts(workers[0], request), None)

            async def works(of: Gateway = gateway, request: Request = request, right: Outcome = right) -> bool:
                return await answered(of, request) == right

            await eventually(works, "the next request is answered")
            assert not gateway.of.logged("attempt failed", reason="malformed"), "workers send no wrong events"
            assert "Traceback" not in json.dumps(gateway.logs)
    return ended


async def moves(gateway: Gateway) -> int:
    """How often a request went to another worker."""
    return int(sum(value for key, value in (await gateway.metrics()).items() if "gateway_retries_total{" in key))


async def nothing_left(gateway: Gateway) -> bool:
    """No request is in flight, by its own count and in what it tells the operator."""
    endpoints = (await gateway.report())["endpoints"]
    metrics = await gateway.metrics()
    gauges = [metrics[f'pointsman_gateway_{name}{{service="chat"}}'] for name in ("in_flight", "held")]
    return not any(gauges) and not any(endpoint["inFlight"] for endpoint in endpoints)


async def of_seeds(room: Room, seeds: Sequence[int]) -> Counter[str]:
    """``survived`` of each, at the same gateways and workers."""
    workers = await room.workers(WORKERS)
    gateways = [await room.gateway([], **SECONDS) for _ in range(GATEWAYS)]
    ended: Counter[str] = Counter()
    for seed in seeds:
        ended += await survived(gateways, workers, seed)
    print(dict(ended))
    return ended


async def test_answers_are_right_or_end_with_one_error_while_the_network_fails(room: Room) -> None:
    ended = await of_seeds(room, range(3))
    assert ended["moved"] > 20, "the faults were met"
    assert ended["stream answered"] + ended["whole answered"] > 0.7 * 3 * REQUESTS


@pytest.mark.verify
@pytest.mark.verify_path
async def test_twenty_seeds_of_network_faults(room: Room, findings: dict[str, object]) -> None:
    findings.update(await of_seeds(room, range(20)), seeds=list(range(20)))
