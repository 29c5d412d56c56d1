"""The engine's endpoints beside chats and completions: passed on as they come, or refused in OpenAI's shape."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from aiohttp import web

from fixtures.gateways import Gateway
from integration.gateway.conftest import Room
from integration.gateway.stand_in_worker import SERVED_NAME, Seen, StandInWorker, running
from pointsman.api.protocol import headers
from pointsman.gateway.core.relayed import PATHS, RelayedEndpoint
from waiting import eventually

USAGE = {"input_tokens": 5, "output_tokens": 2}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class FullWorker(StandInWorker):
    """A stand-in that has the engine's other endpoints. ``cut`` breaks the next stream after its first event."""

    cut = False

    def application(self) -> web.Application:
        """Its HTTP application."""
        app = super().application()
        app.router.add_post("/v1/responses", self._responses)
        app.router.add_post("/v1/messages", self._messages)
        app.router.add_post("/detokenize", self._detokenize)
        return app

    async def _note(self, request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.seen.append(Seen(request.path, request.headers.copy(), body))
        return body

    async def _responses(self, request: web.Request) -> web.StreamResponse:
        body = await self._note(request)
        answer = {"id": "resp_1", "object": "response", "model": SERVED_NAME, "output": [], "usage": USAGE}
        if not body.get("stream"):
            return web.json_response(answer)
        return await self._stream(
            request,
            ("response.created", {"response": {**answer, "usage": None}}),
            ("response.output_text.delta", {"delta": "a"}),
            ("response.output_text.delta", {"delta": "b"}),
            ("response.completed", {"response": answer}),
        )

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        await self._note(request)
        return web.json_response(
            {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, status=400
        )

    async def _detokenize(self, request: web.Request) -> web.StreamResponse:
        await self._note(request)
        return web.json_response({"prompt": "ab"})

    async def _stream(self, request: web.Request, *events: tuple[str, dict[str, Any]]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for kind, data in events:
            await response.write(f"event: {kind}\ndata: {json.dumps({**data, 'type': kind})}\n\n".encode())
            if self.cut:
                assert request.transport is not None
                request.transport.abort()
                raise asyncio.CancelledError
        await response.write_eof()
        return response


@pytest.fixture
async def worker(room: Room) -> FullWorker:
    """The only worker."""
    made = FullWorker("decode-0", room.model_folder, room.tokenizer)
    await room.stack.enter_async_context(running(made))
    return made


@pytest.fixture
async def gateway(room: Room, worker: FullWorker) -> Gateway:
    """The shared gateway over that worker."""
    return await room.gateway([worker])


async def post(gateway: Gateway, path: str, body: Any, **sent: str) -> tuple[int, Mapping[str, str], dict[str, Any]]:
    async with gateway.http.post(gateway.of.url + path, json=body, headers=sent) as answer:
        return answer.status, answer.headers, await answer.json()


async def counted(gateway: Gateway, name: str, **labels: str) -> float:
    samples = await gateway.metrics()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(value for key, value in samples.items() if key.startswith(name + "{") and all(w in key for w in wanted))


async def test_a_response_is_passed_on_as_it_came_with_its_trace_and_counted(
    gateway: Gateway, worker: FullWorker
) -> None:
    before = await counted(gateway, "pointsman_gateway_requests_total", endpoint="responses", code="200")
    body = {"model": SERVED_NAME, "input": "hi", "reasoning": {"effort": "low"}}
    sent = {"X-Request-Id": "mine", "traceparent": TRACE, "X-Pointsman-Verification": "1"}
    status, found, answer = await post(gateway, "/v1/responses", body, **sent)
    assert (status, answer["id"], answer["usage"]) == (200, "resp_1", USAGE)
    assert found[headers.REQUEST_ID] == "mine"
    assert found[headers.WORKER] == worker.name
    (seen,) = worker.seen
    assert seen.body == body
    assert (seen.headers[headers.REQUEST_ID], seen.headers["traceparent"]) == ("mine", TRACE)
    assert headers.VERIFICATION not in seen.headers
    assert await counted(gateway, "pointsman_gateway_requests_total", endpoint="responses", code="200") == before + 1
    (line,) = gateway.of.logged("request", request_id="mine")
    assert (line["prompt_tokens"], line["output_tokens"], line["verbatim"]) == (5, 2, "responses")


async def test_the_official_client_streams_a_response(gateway: Gateway) -> None:
    stream = await gateway.client.responses.create(model=SERVED_NAME, input="hi", stream=True)
    kinds = [event.type async for event in stream]
    assert kinds == [
        "response.created", "response.output_text.delta", "response.output_text.delta", "response.completed",
    ]  # fmt: skip

    async def is_counted() -> bool:
        return any(
            line["ttft_ms"] is not None for line in gateway.of.logged("request", endpoint="responses", stream=True)
        )

    await eventually(is_counted, "its first token is timed")


async def test_a_stream_that_breaks_off_ends_with_an_error_event(gateway: Gateway, worker: FullWorker) -> None:
    worker.cut = True
    with pytest.raises(openai.APIError, match="broke off"):
        async for _event in await gateway.client.responses.create(model=SERVED_NAME, input="hi", stream=True):
            pass


@pytest.mark.parametrize("field", ["kv_transfer_params", "previous_response_id"])
async def test_what_reaches_into_workers_is_refused_and_never_sent(
    gateway: Gateway, worker: FullWorker, field: str
) -> None:
    body = {"model": SERVED_NAME, "input": "hi", field: {"remote_host": "10.0.0.9"}}
    status, found, answer = await post(gateway, "/v1/responses", body)
    assert (status, answer["error"]["param"]) == (400, field)
    assert found[headers.REQUEST_ID]
    assert worker.seen == []


async def test_the_engines_own_refusal_is_passed_on(gateway: Gateway) -> None:
    status, _found, answer = await post(gateway, "/v1/messages", {"model": SERVED_NAME, "messages": []})
    assert (status, answer["error"]["message"]) == (400, "no")


async def test_small_endpoints_need_no_model_and_are_no_arrivals(gateway: Gateway, worker: FullWorker) -> None:
    before = await counted(gateway, "pointsman_gateway_arrivals_total")
    status, _found, answer = await post(gateway, "/detokenize", {"tokens": [1, 2]})
    assert (status, answer) == (200, {"prompt": "ab"})
    status, _found, answer = await post(gateway, "/tokenize", {"prompt": "ab"})
    assert (status, answer["count"]) == (200, len(answer["tokens"]))
    assert await counted(gateway, "pointsman_gateway_arrivals_total") == before
    assert await counted(gateway, "pointsman_gateway_requests_total", endpoint="tokenize", code="200") >= 1


@pytest.mark.parametrize("endpoint", [RelayedEndpoint.EMBEDDINGS, RelayedEndpoint.RERANK, RelayedEndpoint.SCORE])
async def test_an_endpoint_that_the_engine_lacks_is_not_served(gateway: Gateway, endpoint: RelayedEndpoint) -> None:
    status, found, answer = await post(gateway, endpoint.path, {"model": SERVED_NAME, "input": "hi"})
    assert (status, answer["error"]["code"]) == (404, "not_served")
    assert endpoint.path in answer["error"]["message"]
    assert found[headers.REQUEST_ID]


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"])
async def test_adapters_are_not_loaded_at_run_time(gateway: Gateway, worker: FullWorker, path: str) -> None:
    status, _found, answer = await post(gateway, path, {"lora_name": "sql", "lora_path": "/models/sql"})
    assert (status, answer["error"]["code"]) == (404, "not_served")
    assert "spec.engine.args" in answer["error"]["message"]
    assert worker.seen == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/v1/files"),
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/invocations"),
        ("POST", "/pause"),
        ("POST", "/inference/v1/generate"),
        ("GET", "/v1/messages"),
    ],
)
async def test_a_path_that_is_not_served_says_in_openais_shape_what_is(
    gateway: Gateway, worker: FullWorker, method: str, path: str
) -> None:
    async with gateway.http.request(method, gateway.of.url + path, data=b"{}") as answer:
        error = (await answer.json())["error"]
        assert answer.status in (404, 405)
        assert answer.headers[headers.REQUEST_ID]
    assert error["type"] == "invalid_request_error"
    if answer.status == 404:
        assert all(served in error["message"] for served in ("/v1/chat/completions", *PATHS.values()))
    assert worker.seen == []


async def test_ping_and_version_answer_for_probes(gateway: Gateway) -> None:
    async with gateway.http.get(gateway.of.url + "/ping") as answer:
        assert answer.status == 200
    async with gateway.http.get(gateway.of.url + "/version") as answer:
        assert (await answer.json())["version"]


async def test_the_list_of_models_is_constant_has_an_id_and_is_counted(gateway: Gateway) -> None:
    before = await counted(gateway, "pointsman_gateway_requests_total", endpoint="models", code="200")
    found = []
    for number in range(2):
        sent = {headers.REQUEST_ID: f"list-{number}"}
        async with gateway.http.get(gateway.of.url + "/v1/models", headers=sent) as answer:
            assert answer.headers[headers.REQUEST_ID] == f"list-{number}"
            found.append(await answer.json())
    assert found[0] == found[1]
    assert await counted(gateway, "pointsman_gateway_requests_total", endpoint="models", code="200") == before + 2
    async with gateway.http.get(gateway.of.url + "/v1/models/gpt", headers={headers.REQUEST_ID: "mine"}) as answer:
        assert (answer.status, answer.headers[headers.REQUEST_ID]) == (404, "mine")
