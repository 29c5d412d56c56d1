"""The engine's endpoints beside chats and completions: passed on as they come, or refused in OpenAI's shape."""

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from aiohttp import web

from fixtures.gateways import Entry, Gateway
from integration.gateway.conftest import Room, bounded, held
from integration.gateway.stand_in_worker import SERVED_NAME, Seen, StandInWorker, running
from pointsman.api.protocol import headers
from pointsman.api.v1alpha1.limits import gateway_limit
from pointsman.gateway.core.relayed import PATHS, RelayedEndpoint
from pointsman.serving.ejection import FAILURES_IN_A_ROW
from waiting import eventually

USAGE = {"input_tokens": 5, "output_tokens": 2}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class FullWorker(StandInWorker):
    """A stand-in that has the engine's other endpoints.

    ``cut`` breaks each stream after its first event. ``pauses``: for each stream, in order, what it waits for before
    an event.
    """

    cut = False
    error_event = False  # each stream reports that the engine failed
    usage = USAGE

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.pauses: deque[dict[int, asyncio.Event]] = deque()

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
        answer = {"id": "resp_1", "object": "response", "model": SERVED_NAME, "output": [], "usage": self.usage}
        if not body.get("stream"):
            return web.json_response(answer)
        return await self._stream(
            request,
            ("response.created", {"response": {**answer, "usage": None}}),
            ("response.output_text.delta", {"delta": "a"}),
            ("response.output_text.delta", {"delta": "b"}),
            ("error", {"message": "died"}) if self.error_event else ("response.completed", {"response": answer}),
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
        gates = self.pauses.popleft() if self.pauses else {}
        for number, (kind, data) in enumerate(events):
            if number in gates:
                await gates[number].wait()
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
    sent = {"X-Request-Id": "of-this-response", "traceparent": TRACE, "X-Pointsman-Verification": "1"}
    status, found, answer = await post(gateway, "/v1/responses", body, **sent)
    assert (status, answer["id"], answer["usage"]) == (200, "resp_1", USAGE)
    assert found[headers.REQUEST_ID] == "of-this-response"
    assert found[headers.WORKER] == worker.name
    (seen,) = worker.seen
    assert seen.body == body
    assert (seen.headers[headers.REQUEST_ID], seen.headers["traceparent"]) == ("of-this-response", TRACE)
    assert headers.VERIFICATION not in seen.headers
    assert await counted(gateway, "pointsman_gateway_requests_total", endpoint="responses", code="200") == before + 1
    (line,) = await gateway.logged("request", request_id="of-this-response")
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


@dataclass
class Reader:
    """A client of a stream: the kinds of the events so far."""

    gateway: Gateway
    kinds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.done = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in await self.gateway.client.responses.create(model=SERVED_NAME, input="hi", stream=True):
            self.kinds.append(event.type)

    async def has(self, kind: str) -> None:
        """Wait until it has an event of this kind."""
        await eventually(lambda: kind in self.kinds, f"the client has {kind}")

    async def whole(self) -> None:
        """Wait for its end."""
        await self.done
        assert self.kinds[-1] == "response.completed"


async def test_a_stream_has_a_pending_prompt_until_its_first_token_and_then_decodes(
    gateway: Gateway, worker: FullWorker
) -> None:
    prefill = Entry("prefill-0", worker.url, "Prefill")
    await bounded(gateway, [worker, prefill], pendingTokensPerPrefillWorker=1, decodingPerDecodeWorker=3)
    token, end = asyncio.Event(), asyncio.Event()
    worker.pauses.extend([{1: token, 2: end}, {2: end}, {2: end}])
    readers = [Reader(gateway)]
    await readers[0].has("response.created")
    readers.append(Reader(gateway))
    await held(gateway, 1)  # the prompt of the first one is not computed
    token.set()
    await readers[1].has("response.output_text.delta")
    readers.append(Reader(gateway))
    await readers[2].has("response.output_text.delta")
    readers.append(Reader(gateway))
    await held(gateway, 1)  # three decode
    end.set()
    for reader in readers:
        await reader.whole()


async def test_the_wait_for_the_first_token_of_a_stream_is_not_bounded_by_the_inactivity_limit(
    room: Room, worker: FullWorker
) -> None:
    gateway = await room.gateway([worker], inactivity_timeout_seconds=0.5)
    token = asyncio.Event()
    worker.pauses.extend([{1: token}, {2: asyncio.Event()}])
    waits = Reader(gateway)
    await waits.has("response.created")
    falls_silent = Reader(gateway)
    limit = gateway_limit("inactivity_timeout_seconds")
    with pytest.raises(openai.APIError, match=f"the worker sent no data in time; the limit is {limit} ") as broken:
        await falls_silent.done
    assert broken.value.code == "stream_broken"
    token.set()  # it has been silent for longer than that
    await waits.whole()


async def test_a_stream_without_a_first_token_in_time_ends_with_an_error_event_and_its_worker_is_no_suspect(
    room: Room, worker: FullWorker
) -> None:
    gateway = await room.gateway([worker], first_token_timeout_seconds=0.5, suspect_seconds=60)
    worker.pauses.append({1: asyncio.Event()})
    with pytest.raises(openai.APIError, match="first token did not come in time") as late:
        await Reader(gateway).done
    assert late.value.code == "timed_out"
    assert not any(endpoint["suspect"] for endpoint in (await gateway.report())["endpoints"])


async def test_a_worker_that_breaks_a_stream_is_left_alone(room: Room, worker: FullWorker) -> None:
    gateway = await room.gateway([worker], suspect_seconds=60)
    worker.cut = True
    with pytest.raises(openai.APIError, match="broke off"):
        await Reader(gateway).done
    (found,) = (await gateway.report())["endpoints"]
    assert (found["suspect"], found["ejections"]) == (True, 1)


async def test_a_worker_that_ends_five_streams_with_an_error_event_is_left_alone(
    room: Room, worker: FullWorker
) -> None:
    gateway = await room.gateway([worker], suspect_seconds=60)
    worker.error_event = True
    for number in range(FAILURES_IN_A_ROW):
        assert not (await gateway.report())["endpoints"][0]["suspect"], f"{number} failures"
        reader = Reader(gateway)
        await reader.done
        assert reader.kinds[-1] == "error"  # the engine's own
    ended = {name: n for name, n in (await gateway.metrics()).items() if "gateway_ended_total{" in name and n}
    assert ended == {'pointsman_gateway_ended_total{service="chat",tpot="failed",ttft="unknown"}': FAILURES_IN_A_ROW}
    (found,) = (await gateway.report())["endpoints"]
    assert (found["suspect"], found["ejections"]) == (True, 1)


async def test_a_defect_in_a_stream_that_has_begun_is_an_error_event_and_no_second_answer(
    gateway: Gateway, worker: FullWorker
) -> None:
    worker.usage = {"input_tokens": 10**400, "output_tokens": 2}  # no metric can count so many
    body = {"model": SERVED_NAME, "input": "hi", "stream": True}
    async with gateway.http.post(f"{gateway.of.url}/v1/responses", json=body) as answer:
        assert answer.status == 200
        text = await answer.text()
    assert "HTTP/1.1" not in text
    *_events, last = text.split("\n\n")[:-1]
    kind, data = last.split("\n")
    assert kind == "event: error"
    told = json.loads(data.removeprefix("data: "))
    assert (told["type"], told["message"]) == ("error", "The gateway failed on this request.")
    assert told["sequence_number"] == 4
    request_id = answer.headers[headers.REQUEST_ID]
    assert await gateway.logged("stream failed with an internal error", request_id=request_id)
    (line,) = await gateway.logged("request", request_id=request_id)
    assert (line["status"], line["outcome"]) == (200, "internal")


@pytest.mark.parametrize("field", ["kv_transfer_params", "previous_response_id"])
async def test_what_reaches_into_workers_is_refused_and_never_sent(
    gateway: Gateway, worker: FullWorker, field: str
) -> None:
    body = {"model": SERVED_NAME, "input": "hi", field: {"remote_host": "10.0.0.9"}}
    status, found, answer = await post(gateway, "/v1/responses", body)
    assert (status, answer["error"]["param"]) == (400, field)
    assert found[headers.REQUEST_ID]
    assert worker.seen == []


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "input_image", "image_url": "data:image/png;base64,AAAA", "uuid": "0" * 64}, "uuid"),
        ({"type": "input_image", "image_url": "http://169.254.169.254/latest/meta-data"}, "image_url"),
    ],
)
@pytest.mark.parametrize(("path", "where"), [("/v1/responses", "input"), ("/v1/messages", "messages")])
async def test_media_that_the_engine_would_fetch_or_that_clients_name_are_refused_and_never_sent(
    gateway: Gateway, worker: FullWorker, path: str, where: str, part: dict[str, Any], field: str
) -> None:
    body = {"model": SERVED_NAME, where: [{"role": "user", "content": [part]}]}
    status, _found, answer = await post(gateway, path, body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert answer["error"]["param"] == f"{where}[0].content[0].{field}"
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
