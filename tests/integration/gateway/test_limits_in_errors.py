"""Whoever meets a limit reads in the error which field of the LLMService moves it."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from yarl import URL

from fixtures.gateways import Gateway, GatewayProcess, connected, gateway_process
from integration.gateway.conftest import Room
from integration.gateway.stand_in_worker import SERVED_NAME, TOKEN, Behaviour
from pointsman.api.v1alpha1.limits import gateway_limit

ASK = {"model": SERVED_NAME, "prompt": "hi", "max_tokens": 2}
SMALL = {
    "max_body_mib": 1,
    "max_header_kib": 8,
    "max_answers": 3,
    "max_in_flight_requests": 2,
    "max_in_flight_mib": 1,
    "max_attempts": 2,
    "max_moves": 1,
    "body_timeout_seconds": 1,
    "hold_seconds": 1,
    "patience_seconds": 1,
    "first_token_timeout_seconds": 2,
    "answer_timeout_seconds": 2,
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway with every limit small."""
    settings: dict[str, Any] = {"router": "round-robin", "suspect_seconds": 0, **SMALL}
    with gateway_process(tmp_path_factory.mktemp("gateway"), token=TOKEN, **settings) as running:
        yield running


async def gateway_of(room: Room, process: GatewayProcess, *workers: Any, **routing: int) -> Gateway:
    """The gateway over these workers."""
    gateway = await room.stack.enter_async_context(connected(process))
    gateway.write_endpoints(workers, routing={"maxLocalPrefillTokens": 9, "maxPrefillQueueSize": 1, **routing})
    await gateway.knows(*workers)
    return gateway


async def refused(gateway: Gateway, setting: str, status: int, body: Any = ASK, **sent: str) -> None:
    """A request gets ``status`` with an error that names the field of ``setting``, and an id."""
    async with gateway.http.post(gateway.of.url + "/v1/completions", json=body, headers=sent) as answer:
        found = await answer.json()
        assert answer.status == status, found
        assert answer.headers["X-Request-Id"]
    assert gateway_limit(setting) in found["error"]["message"]


@pytest.mark.parametrize(
    ("setting", "status", "body", "sent"),
    [
        ("max_body_mib", 413, ASK | {"user": "x" * 2**21}, {}),
        ("max_header_kib", 431, ASK, {"Authorization": "Bearer " + "x" * 9000}),
        ("max_answers", 400, ASK | {"n": 4}, {}),
    ],
)
async def test_a_request_that_is_too_large(
    room: Room, process: GatewayProcess, setting: str, status: int, body: Any, sent: Mapping[str, str]
) -> None:
    gateway = await gateway_of(room, process, *await room.workers(1))
    await refused(gateway, setting, status, body, **sent)


async def test_requests_that_are_too_many(room: Room, process: GatewayProcess) -> None:
    (worker,) = await room.workers(1)
    gateway = await gateway_of(room, process, worker, decodingPerDecodeWorker=1)
    gate = asyncio.Event()
    worker.behaviours.append(Behaviour(tokens=1, gate=gate, finish=True))
    stream = await gateway.client.completions.create(model=SERVED_NAME, prompt="hi", stream=True)
    await refused(gateway, "hold_seconds", 429)
    queued = asyncio.create_task(refused(gateway, "hold_seconds", 429))
    await asyncio.gather(queued, refused(gateway, "max_in_flight_requests", 429))
    gate.set()
    async for _chunk in stream:
        pass


async def test_bodies_that_take_too_much_memory_together(room: Room, process: GatewayProcess) -> None:
    (worker,) = await room.workers(1)
    gateway = await gateway_of(room, process, worker)
    gate = asyncio.Event()
    worker.behaviours.append(Behaviour(tokens=1, gate=gate, finish=True))
    stream = await gateway.client.completions.create(model=SERVED_NAME, prompt="hi", stream=True)
    await refused(gateway, "max_in_flight_mib", 429, ASK | {"prompt": [1] * 60_000})  # 2 MB as JSON that is decoded
    gate.set()
    async for _chunk in stream:
        pass


@pytest.mark.parametrize(
    ("setting", "stream"), [("first_token_timeout_seconds", True), ("answer_timeout_seconds", False)]
)
async def test_an_answer_that_takes_too_long(room: Room, process: GatewayProcess, setting: str, stream: bool) -> None:
    (worker,) = await room.workers(1)
    gateway = await gateway_of(room, process, worker)
    worker.behaviours.append(Behaviour(tokens=0, gate=asyncio.Event()))
    await refused(gateway, setting, 504, ASK | {"stream": stream})


async def test_a_request_that_no_worker_could_answer(room: Room, process: GatewayProcess) -> None:
    workers = await room.workers(3)
    gateway = await gateway_of(room, process, *workers)
    for worker in workers:
        worker.behaviours.append(Behaviour(status=500))
    await refused(gateway, "max_moves", 502)


async def test_a_request_that_too_many_workers_refused(room: Room, process: GatewayProcess) -> None:
    workers = await room.workers(3)
    gateway = await gateway_of(room, process, *workers)
    for worker in workers:
        worker.behaviours.append(Behaviour(status=503, retry="draining"))  # it did not begin, so it is no move
    await refused(gateway, "max_attempts", 502)


async def test_a_body_that_does_not_arrive(room: Room, process: GatewayProcess) -> None:
    gateway = await gateway_of(room, process, *await room.workers(1))
    url = URL(gateway.of.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: 100\r\n\r\n{")
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        message = await reader.readuntil(b"}}")
    writer.close()
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"x-request-id:" in head.lower()
    assert gateway_limit("body_timeout_seconds").encode() in message


async def test_a_request_that_found_no_worker(room: Room, process: GatewayProcess) -> None:
    gateway = await gateway_of(room, process, *await room.workers(1))
    gateway.write_endpoints([])
    await gateway.knows()
    await refused(gateway, "patience_seconds", 503)
