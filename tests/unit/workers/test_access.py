"""What strangers can do to a worker's server: paths, tokens and bodies, over a small engine."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping

import pytest

from fixtures.asgi_engine import Answer, Call, answer_to
from fixtures.workers import AUTHORIZED, Worker, settings, worker
from pointsman.api.protocol import control
from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import Role
from pointsman.gateway.core.relayed import RelayedEndpoint
from pointsman.workers.core.body_memory import BodyMemory
from pointsman.workers.core.paths import Access, access
from pointsman.workers.engine import Message
from pointsman.workers.middleware import MAX_CONTROL_BODY_BYTES
from waiting import eventually

PROMPT = list(range(1, 41))
MIB = 1 << 20


@pytest.fixture
async def fresh() -> AsyncIterator[Worker]:
    """A decode worker with 1 MiB for bodies."""
    async with worker(settings("worker-0", body_memory_mib=1), role=Role.DECODE) as running:
        yield running


class Client:
    """One request whose body comes in pieces; a piece that is None waits for ``more``."""

    def __init__(self, to: Worker, path: str, pieces: Iterable[bytes | None], **headers: str) -> None:
        self.answer = Answer()
        self.read_bytes = 0
        self.more = asyncio.Event()
        self._pieces = list(pieces)
        sent = [(name.lower().replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": path, "headers": sent, "query_string": b""}
        self.task = asyncio.ensure_future(to.app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._pieces and self._pieces[0] is None:
            await self.more.wait()
            self._pieces.pop(0)
        if not self._pieces:
            await asyncio.Event().wait()
        piece = self._pieces.pop(0) or b""
        self.read_bytes += len(piece)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
            self.answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message.get("body"):
            self.answer.chunks.append(message["body"])

    async def whole(self) -> Answer:
        """The answer when it is complete."""
        async with asyncio.timeout(30):
            await self.task
        return self.answer


def padded(size_bytes: int) -> bytes:
    """A completions request of about so many bytes."""
    return b'{"prompt": %s, "user": "%s"}' % (str(PROMPT).encode(), b"x" * size_bytes)


def test_every_path_that_gateways_operator_planner_and_kubelet_use_is_served() -> None:
    for endpoint in RelayedEndpoint:
        assert access("POST", endpoint.path) in (Access.WORK, Access.TOKENS)
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert access("POST", path) is Access.WORK
    for path in ("/health", "/metrics", "/version", "/v1/models"):
        assert access("GET", path) is Access.PAGE
    for path in (control.STATE_PATH, control.KV_EVENTS_PATH, f"{control.PREFILL_CHATS_PATH}/x"):
        assert access("GET", path) is Access.CONTROL


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/invocations"),
        ("POST", "/ping"),
        ("POST", "/cohere/v2/chat"),
        ("POST", "/generative_scoring"),
        ("POST", "/inference/v1/generate"),
        ("POST", "/scale_elastic_ep"),
        ("POST", "/v1/chat/completions/batch"),
        ("POST", "/v1/chat/completions/render"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/completions/"),
        ("POST", "//v1/completions"),
        ("POST", "/V1/completions"),
        ("POST", "/tokenize/../invocations"),
        ("PUT", "/v1/completions"),
        ("POST", "/metrics"),
        ("GET", "/metrics/x"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/server_info"),
        ("GET", "/v1/completions"),
        ("GET", "/pointsman/v1"),
    ],
)
@pytest.mark.parametrize("role", [Role.DECODE, None])
async def test_a_path_that_nobody_needs_does_not_exist(
    fresh: Worker, role: Role | None, method: str, path: str
) -> None:
    await fresh.take_role(role)
    body = {"prompt": PROMPT, "kv_transfer_params": {"do_remote_prefill": True, "handle": "mine"}}
    answer = await Call(fresh.app, path, body, method=method).whole()
    assert (answer.status, answer.body["error"]["message"]) == (404, f"a worker has no path {method} {path}")
    assert fresh.engine.seen == []


async def test_a_worker_has_no_websockets(fresh: Worker) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def never() -> Message:
        raise AssertionError("a websocket is read")

    await fresh.app({"type": "websocket", "path": "/v1/realtime", "headers": []}, never, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize("path", [control.ROLE_PATH, control.VERIFY_PATH, "/pointsman/v1/nothing"])
async def test_nothing_of_a_control_request_without_the_token_is_read(fresh: Worker, path: str) -> None:
    stranger = Client(fresh, path, [b"x" * MIB, None])
    assert (await stranger.whole()).status == 401
    assert stranger.read_bytes == 0


async def test_nothing_of_a_request_that_the_worker_does_not_take_is_read(fresh: Worker) -> None:
    await fresh.control("POST", control.DRAIN_PATH, {"reason": "a test"})
    client = Client(fresh, "/v1/completions", [b"x" * MIB, None])
    answer = await client.whole()
    assert (answer.status, answer.headers["x-pointsman-retry"]) == (503, "draining")
    verifier = Client(fresh, "/v1/completions", [b"x" * MIB, None], X_Pointsman_Verification="decode-leg")
    assert (await verifier.whole()).status == 401, "it has no token"
    assert client.read_bytes == verifier.read_bytes == 0


async def test_a_control_request_has_a_small_body(fresh: Worker) -> None:
    pieces = [b"x" * 1024] * (2 * MAX_CONTROL_BODY_BYTES // 1024)
    big = Client(fresh, control.ROLE_PATH, pieces, **AUTHORIZED)
    assert (await big.whole()).status == 413
    assert big.read_bytes <= MAX_CONTROL_BODY_BYTES + 1024


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/tokenize"])
async def test_a_body_that_announces_too_much_is_refused_unread(fresh: Worker, path: str) -> None:
    client = Client(fresh, path, [None], Content_Length=str(2 * MIB))
    answer = await client.whole()
    assert (answer.status, answer.body["error"]["type"]) == (413, "RequestTooLarge")
    assert client.read_bytes == 0


@pytest.mark.parametrize("headers", [{}, {"Content_Length": "7"}, {"Content_Length": "many"}])
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
async def test_a_body_is_read_up_to_the_limit_whatever_it_announces(
    fresh: Worker, path: str, headers: Mapping[str, str]
) -> None:
    client = Client(fresh, path, [b"x" * (MIB // 4)] * 40, **headers)
    assert (await client.whole()).status == 413
    assert client.read_bytes <= MIB + MIB // 4
    assert (await fresh.call({"prompt": PROMPT}).whole()).token_ids == answer_to(PROMPT, 16), "its memory is free"


async def test_bodies_together_take_no_more_than_their_memory_and_the_gateway_is_sent_elsewhere(fresh: Worker) -> None:
    first = Client(fresh, "/v1/completions", [padded(MIB * 3 // 4), None, b""])
    await eventually(lambda: first.read_bytes > 0, "the first body is here")
    second = await Client(fresh, "/v1/completions", [padded(MIB // 2)]).whole()
    assert (second.status, second.headers["x-pointsman-retry"]) == (503, "bodies-full")
    assert (await fresh.call({"prompt": PROMPT}).whole()).status == 200, "a small one fits beside it"
    first.more.set()
    assert (await first.whole()).token_ids == answer_to(PROMPT, 16)
    third = await Client(fresh, "/v1/completions", [padded(MIB // 2)]).whole()
    assert third.token_ids == answer_to(PROMPT, 16)


async def test_a_body_that_never_ends_is_given_up(fresh: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.workers.middleware.BODY_TIMEOUT_S", 0.01)
    client = Client(fresh, "/v1/completions", [padded(MIB * 3 // 4), None])
    assert (await client.whole()).status == 408
    assert (await Client(fresh, "/v1/completions", [padded(MIB // 2)]).whole()).status == 200
    assert fresh.state.phase is WorkerPhase.SERVING


def test_memory_is_taken_whole_or_not_at_all() -> None:
    memory = BodyMemory(10)
    assert memory.take(6)
    assert not memory.take(5)
    assert memory.used_bytes == 6
    assert memory.take(4)
    memory.give_back(6)
    assert memory.take(6)
