"""Clients that send what no client should, too much, too slowly, or that leave: what they get, what is left behind."""

import asyncio
import gzip
import json
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from fixtures.gateways import Gateway
from integration.gateway.conftest import Room
from integration.gateway.stand_in_worker import SERVED_NAME, Behaviour
from waiting import eventually

ASK: dict[str, Any] = {"model": SERVED_NAME, "prompt": "The signal is at danger.", "max_tokens": 4}
SECRET = "sk-secret-credential-"


async def code_count(gateway: Gateway, code: int, endpoint: str = "completions") -> float:
    """How many were answered so."""
    name = f'pointsman_gateway_requests_total{{code="{code}",endpoint="{endpoint}",service="chat"}}'
    return (await gateway.metrics()).get(name, 0.0)


async def refusal(answer: aiohttp.ClientResponse, status: int) -> dict[str, Any]:
    """The error of an answer with ``status``, in OpenAI's shape and with a request id."""
    text = await answer.text()
    assert answer.status == status, text
    assert answer.content_type == "application/json", text
    assert answer.headers["X-Request-Id"]
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


MALFORMED: dict[str, tuple[bytes, dict[str, str]]] = {
    "not JSON": (b"{", {}),
    "empty": (b"", {}),
    "UTF-16": (json.dumps(ASK).encode("utf-16"), {}),
    "nested": (b'{"model":"stand-in","messages":' + b"[" * 5000 + b"]" * 5000 + b"}", {}),
    "many lists": (b'{"model":"stand-in","prompt":[' + b"[]," * 300_000 + b"[]]}", {}),
    "no gzip": (json.dumps(ASK).encode(), {"Content-Encoding": "gzip"}),
    "half a gzip": (gzip.compress(json.dumps(ASK).encode())[:20], {"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_body_that_cannot_be_read_is_the_clients_mistake(room: Room, path: str) -> None:
    gateway = await room.gateway(await room.workers(1))
    endpoint = "chat" if "chat" in path else "completions"
    before = await code_count(gateway, 400, endpoint)
    for body, sent in MALFORMED.values():
        headers = {"Content-Type": "application/json", "X-Request-Id": "mine", **sent}
        async with gateway.http.post(gateway.of.url + path, data=body, headers=headers) as answer:
            error = await refusal(answer, 400)
            assert answer.headers["X-Request-Id"] == "mine"
            assert error["type"] == "invalid_request_error"
    assert await code_count(gateway, 400, endpoint) - before == len(MALFORMED)
    assert not gateway.of.logged("request failed with an internal error")


async def test_a_byte_order_mark_and_a_compressed_body_are_accepted(room: Room) -> None:
    gateway = await room.gateway(await room.workers(1))
    body = json.dumps(ASK).encode()
    for data, headers in ((b"\xef\xbb\xbf" + body, {}), (gzip.compress(body), {"Content-Encoding": "gzip"})):
        async with gateway.http.post(f"{gateway.of.url}/v1/completions", data=data, headers=headers) as answer:
            assert answer.status == 200, await answer.text()


async def test_a_large_credential_is_accepted_and_one_beyond_the_limit_is_nowhere_repeated(room: Room) -> None:
    gateway = await room.gateway(await room.workers(1))
    url = f"{gateway.of.url}/v1/completions"
    many = {f"X-Header-{number}": "value" for number in range(150)}
    for headers in ({"Authorization": "Bearer " + SECRET + "a" * 60_000}, many):
        async with gateway.http.post(url, json=ASK, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
    before = await code_count(gateway, 431, "other")
    two_halves = dict.fromkeys(("Authorization", "X-Other"), "Bearer " + SECRET + "a" * 40_000)
    too_many = {f"X-Header-{number}": SECRET for number in range(600)}
    too_large = ({"Authorization": "Bearer " + SECRET + "a" * 70_000}, two_halves, too_many)
    for headers in too_large:
        async with gateway.http.post(url, json=ASK, headers=headers) as answer:
            error = await refusal(answer, 431)
            assert "spec.gateway.limits.maxHeaderKiB" in error["message"]
            assert SECRET not in await answer.text()
    assert await code_count(gateway, 431, "other") - before == len(too_large)
    assert not [line for line in gateway.logs if SECRET in json.dumps(line)]


async def test_what_is_no_request_and_unknown_paths_are_refused_in_json(room: Room) -> None:
    gateway = await room.gateway(await room.workers(1))
    host, port = gateway.of.url.removeprefix("http://").split(":")
    garbage = {
        b"GET / HTTP/9.9\r\n\r\n": "its first line is wrong",
        b"\x16\x03\x01" + b"a" * 50 + b"\r\n\r\n": "its first line is wrong",
        b"POST / HTTP/1.1\r\nA b: a-secret\r\n\r\n": "valid HTTP request: Invalid header token.",
        b"POST / HTTP/1.1\r\nHost: a\r\nA: a-secret\x00\r\n\r\n": "Invalid header value char",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: a-secret\r\n\r\n": "Invalid character in Content-Length",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\na-secret\r\n": "Invalid character in chunk",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: zstd\r\nContent-Length: 2\r\n\r\n{}": "Content-Encoding",
    }
    for sent, part in garbage.items():
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        received = await reader.read()
        writer.close()
        assert received.split(b" ", 2)[1] == b"400", received
        error = json.loads(received.split(b"\r\n\r\n", 1)[1])["error"]
        assert error["code"] == "invalid_http"
        assert part in error["message"], error
        assert b"a-secret" not in received
        assert b"X-Request-Id" in received
    for method, path, status in (
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("PUT", "/health", 405),
    ):
        async with gateway.http.request(method, gateway.of.url + path) as answer:
            assert (await refusal(answer, status))["type"] == "invalid_request_error"
    async with gateway.http.post(gateway.of.url + "/v1/completions", headers={"Expect": "a miracle"}) as answer:
        await refusal(answer, 417)


async def test_a_request_that_no_handler_takes_is_found_by_its_id_and_counted(room: Room) -> None:
    gateway = await room.gateway(await room.workers(1))
    before = await gateway.metrics()
    asked = {"not_served": "/v1/nothing", "unauthorized": "/pointsman/v1/endpoints"}
    for code, path in asked.items():
        async with gateway.http.get(gateway.of.url + path, headers={"X-Request-Id": f"find-{code}"}) as answer:
            assert (await answer.json())["error"]["code"] == code
            assert answer.headers["X-Request-Id"] == f"find-{code}"
    after = await gateway.metrics()
    for code, reason in (("not_served", "invalid-request"), ("unauthorized", "unauthorized")):
        series = f'pointsman_gateway_failures_total{{reason="{reason}",service="chat"}}'
        assert after[series] - before.get(series, 0) == 1
        (line,) = await gateway.logged("request", request_id=f"find-{code}")
        assert line["path"] == asked[code]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413_with_the_limit_and_the_way_to_raise_it(room: Room, chunked: bool) -> None:
    gateway = await room.gateway(await room.workers(1), max_body_mib=1)
    body = json.dumps(ASK | {"user": "u" * 2**20}).encode()

    async def pieces() -> Any:
        yield body

    data = pieces() if chunked else body
    headers = {"X-Request-Id": "mine"}
    async with gateway.http.post(f"{gateway.of.url}/v1/completions", data=data, headers=headers) as answer:
        error = await refusal(answer, 413)
        assert answer.headers["X-Request-Id"] == "mine"
    assert "larger than 1 MiB" in error["message"]
    assert "spec.gateway.limits.maxBodyMiB" in error["message"]
    assert await code_count(gateway, 413) == 1
    (line,) = await gateway.logged("request", request_id="mine")
    assert (line["status"], line["outcome"]) == (413, "invalid-request")


async def test_a_credential_that_is_not_utf_8_is_a_wrong_one(room: Room) -> None:
    gateway = await room.gateway(await room.workers(1))
    defects = len(gateway.of.logged("request failed with an internal error"))
    host, port = gateway.of.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /pointsman/v1/endpoints HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \xff\r\n\r\n")
    received = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert received.startswith(b"HTTP/1.1 401"), received
    assert len(gateway.of.logged("request failed with an internal error")) == defects


async def test_a_client_that_sends_too_slowly_is_408_and_frees_its_place(room: Room) -> None:
    gateway = await room.gateway(await room.workers(1), body_timeout_seconds=0.5, max_in_flight_requests=1)
    host, port = gateway.of.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n{")
    received = await reader.readuntil(b"\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 408")
    writer.close()
    async with gateway.http.post(f"{gateway.of.url}/v1/completions", json=ASK) as answer:
        assert answer.status == 200


async def test_bodies_that_are_announced_and_do_not_come_keep_nobody_out(room: Room) -> None:
    gateway = await room.gateway(await room.workers(1), max_in_flight_mib=3, max_body_mib=2)
    host, port = gateway.of.url.removeprefix("http://").split(":")
    async with AsyncExitStack() as idle:
        connections = [await asyncio.open_connection(host, int(port)) for _ in range(8)]
        for _, writer in connections:
            idle.callback(writer.close)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n{" % 2**21)
        await eventually(lambda: _in_flight(gateway, 8), "they are counted")
        async with gateway.http.post(f"{gateway.of.url}/v1/completions", json=ASK) as answer:
            assert answer.status == 200, await answer.text()
    await eventually(lambda: _in_flight(gateway, 0), "they have left")


async def test_requests_in_flight_have_a_bound_without_any_policy(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker], max_in_flight_requests=2, max_in_flight_mib=1)
    url = f"{gateway.of.url}/v1/completions"
    gate = asyncio.Event()
    worker.behaviours.extend([Behaviour(tokens=2, gate=gate, finish=True)] * 2)

    async def ask(**more: Any) -> int:
        async with gateway.http.post(url, json=ASK | {"stream": True} | more) as answer:
            await answer.read()
            return answer.status

    first = asyncio.create_task(ask(user="u" * 700_000))
    await eventually(lambda: len(worker.seen) == 1, "the first is at the worker")
    assert await ask(user="u" * 700_000) == 429, "no room for the bytes"
    second = asyncio.create_task(ask())
    await eventually(lambda: len(worker.seen) == 2, "the second is at the worker")
    async with gateway.http.post(url, json=ASK) as answer:
        error = await refusal(answer, 429)
        assert answer.headers["Retry-After"] == "1"
        assert "spec.gateway.limits.maxInFlightRequests" in error["message"]
    gate.set()
    assert [await first, await second] == [200, 200]
    assert await ask(user="u" * 700_000) == 200


async def test_a_choice_that_fails_after_another_has_begun_ends_the_stream_with_an_error_event(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    gate = asyncio.Event()
    begun = Behaviour(tokens=2, gate=gate, finish=True)
    refused = Behaviour(tokens=0, gate=gate, error_event=False, cut=True)
    worker.behaviours.extend([begun, refused, *[Behaviour(status=400)] * 2])
    host, port = gateway.of.url.removeprefix("http://").split(":")
    body = json.dumps(ASK | {"stream": True, "prompt": [ASK["prompt"]] * 2}).encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n")
    writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    received = await reader.readuntil(b"data: ")
    gate.set()
    received += await reader.read()
    writer.close()
    assert received.count(b"HTTP/1.1") == 1, received
    events = [line for line in received.split(b"\n") if line.startswith(b"data: ")]
    assert json.loads(events[-2].removeprefix(b"data: "))["error"]
    assert events[-1].startswith(b"data: [DONE]")
    await eventually(lambda: _in_flight(gateway, 0), "nothing is in flight")


async def test_a_client_of_many_choices_that_stops_reading_and_leaves_leaves_nothing_behind(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    worker.behaviours.extend([Behaviour(tokens=2, flood=64, finish=True)] * 24)
    host, port = gateway.of.url.removeprefix("http://").split(":")
    body = json.dumps(ASK | {"stream": True, "prompt": [ASK["prompt"]] * 24}).encode()
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**10)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(b"data: ")
    await eventually(lambda: len(worker.seen) == 24, "all choices are asked for")
    writer.transport.abort()
    await eventually(lambda: _in_flight(gateway, 0), "nothing is in flight")
    assert not any(endpoint["inFlight"] for endpoint in (await gateway.report())["endpoints"])


async def test_a_client_that_reads_nothing_for_too_long_has_left(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker], write_timeout_seconds=0.5)
    worker.behaviours.extend([Behaviour(tokens=2, flood=64, finish=True)] * 24)
    host, port = gateway.of.url.removeprefix("http://").split(":")
    body = json.dumps(ASK | {"stream": True, "prompt": [ASK["prompt"]] * 24}).encode()
    _reader, writer = await asyncio.open_connection(host, int(port), limit=2**10)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await eventually(lambda: gateway.of.logged("request", outcome="client-stalled"), "it is given up")
    await eventually(lambda: _in_flight(gateway, 0), "nothing is in flight")
    writer.close()


async def _in_flight(gateway: Gateway, count: int) -> bool:
    return (await gateway.metrics())['pointsman_gateway_in_flight{service="chat"}'] == count
