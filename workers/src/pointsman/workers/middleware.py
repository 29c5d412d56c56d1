"""Pointsman inside the engine's server: an ASGI middleware for vLLM's ``--middleware``.

It answers the control API, refuses paths that nobody needs and work that is not this worker's, has long prompts
prefilled by other workers before the engine sees the request, and passes answers through, chunk by chunk.

Order of the checks: path, then token or role, then the size of the body. Only then is the body read.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from pointsman.api.protocol import headers as names
from pointsman.api.protocol.control import MAX_DEATHS, RetryReason, WorkerPhase, authorized
from pointsman.api.protocol.names import Role
from pointsman.api.protocol.resume import RESUME_FIELD, Resume
from pointsman.process.ending import end
from pointsman.process.errors import BadSettings
from pointsman.serving.local_remote import PrefillReason, RoutingRule
from pointsman.workers.answer_times import AnswerTime, timed
from pointsman.workers.control import ControlApi
from pointsman.workers.core.bodies import as_utf8, dump, json_object, with_fields
from pointsman.workers.core.body_memory import BodyMemory
from pointsman.workers.core.paths import Access, access
from pointsman.workers.core.prompts import CHAT_PATH, COMPLETIONS_PATH, without_client_transfer_params
from pointsman.workers.core.usage import prompt_usage, with_cached_tokens
from pointsman.workers.engine import AsgiApp, AsgiEngine, Message, Receive, Scope, Send
from pointsman.workers.errors import BodiesFull, BodyRefused
from pointsman.workers.metrics import WorkerMetrics
from pointsman.workers.metrics_server import MetricsServer
from pointsman.workers.remote_prefill import REMOTE_SHARE_OF_DEADLINE
from pointsman.workers.request_prefill import Prompts, RequestPrefill, cached_tokens
from pointsman.workers.resumption import resume_of, resuming
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.sidecar import ClientRequest, Sidecar
from pointsman.workers.streaming import stream_answer
from pointsman.workers.types import PrefillPath, RemoteKv

log = logging.getLogger(__name__)

RETRY_AFTER_S = "1"
MAX_CONTROL_BODY_BYTES: Final = 1 << 16
BODY_TIMEOUT_S: Final = 300.0
_PREFILLABLE = frozenset({COMPLETIONS_PATH, CHAT_PATH})


class PointsmanMiddleware:
    """Wraps ``app``. ``make_sidecar`` gets it and the host application; by default settings are the environment's."""

    def __init__(self, app: AsgiApp, make_sidecar: Callable[[AsgiApp, Any], Sidecar] | None = None) -> None:
        self._app = app
        self._make_sidecar = make_sidecar or _sidecar_from_environment
        self._sidecar: Sidecar | None = None
        self._control: ControlApi | None = None
        self._bodies = BodyMemory(0)
        self._metrics: MetricsServer | None = None

    def make_control(self, sidecar: Sidecar, host: Any) -> ControlApi:
        """The control API of this worker; ``host``: the engine's application."""
        return ControlApi(sidecar)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection; the lifespan one starts and stops everything."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "http" and self._sidecar is not None and self._control is not None:
            await self._http(self._sidecar, self._control, scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "a worker has no websockets"})
        else:  # the server takes requests after the lifespan has begun only
            await _respond_error(send, HTTPStatus.SERVICE_UNAVAILABLE, "ServiceUnavailable", "the worker is starting")

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_when_started(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._sidecar = self._make_sidecar(self._app, scope.get("app"))
                self._control = self.make_control(self._sidecar, scope.get("app"))
                self._bodies = BodyMemory(self._sidecar.settings.body_memory_mib << 20)
                await self._serve_metrics(self._sidecar, scope.get("app"))
                await self._sidecar.start()
            await send(message)

        async def receive_after_stopping() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown" and self._sidecar is not None:
                await self._sidecar.stop()
                if self._metrics is not None:
                    await self._metrics.stop()
            return message

        await self._app(scope, receive_after_stopping, send_when_started)

    async def _serve_metrics(self, sidecar: Sidecar, host: Any) -> None:
        port = sidecar.settings.metrics_port
        if port is None:
            return
        self._metrics = MetricsServer(self._app, host, sidecar.settings.bind_host, port)
        if await self._metrics.start():
            sidecar.metrics_port = port

    async def _http(self, sidecar: Sidecar, control: ControlApi, scope: Scope, receive: Receive, send: Send) -> None:
        found = access(scope["method"], scope["path"])
        if found is None:
            message = f"a worker has no path {scope['method']} {scope['path']}"
            await _respond_error(send, HTTPStatus.NOT_FOUND, "NotFoundError", message)
            return
        if found is Access.PAGE:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        request = _Request(scope, send, headers, _Client(receive, headers, self._bodies))
        try:
            match found:
                case Access.CONTROL:
                    await self._control_request(sidecar, control, request)
                case Access.WORK:
                    await self._work(sidecar, request)
                case Access.TOKENS:
                    await self._tokens(request)
        except BodiesFull:
            await _refuse(send, sidecar.settings.worker, RetryReason.BODIES_FULL)
        except BodyRefused as error:
            await _respond_error(send, error.status, error.reason, str(error))
        finally:
            request.client.forget_body()

    async def _control_request(self, sidecar: Sidecar, control: ControlApi, request: "_Request") -> None:
        method, path = request.scope["method"], request.scope["path"]
        answer = control.refusal(method, path, request.headers)
        if answer is None:
            body = await request.client.read_body(MAX_CONTROL_BODY_BYTES)
            if body is None:
                return
            answer = await control.handle(method, path, body)
        if answer.stream is None:
            await _respond(request.send, answer.status, answer.content, answer.content_type)
            return
        try:
            await stream_answer(request.scope, request.send, request.client.gone, answer.stream, answer.content_type)
        finally:
            await request.client.close()

    async def _work(self, sidecar: Sidecar, request: "_Request") -> None:
        verification = names.VERIFICATION.lower() in request.headers
        token = sidecar.settings.control_token.get_secret_value()
        if verification and not authorized(request.headers.get("authorization", ""), token):
            # Answered like any client's, it would prove that a decode worker pulled KV that nobody pulled.
            message = "a verification needs the control token of the service"
            await _respond_error(request.send, HTTPStatus.UNAUTHORIZED, "Unauthorized", message)
            return

        def refusal() -> RetryReason | None:
            taken = verification and sidecar.roles.phase not in (WorkerPhase.STARTING, WorkerPhase.FAILED)
            return None if taken else sidecar.roles.refusal

        refused = refusal()
        if refused is None:
            body = await request.client.read_body()
            if body is None:
                return
            refused = refusal()  # the role may have changed meanwhile
            if refused is None:
                with sidecar.serving() as counted:
                    exchange = _Exchange(sidecar, self._app, request, body, counted)
                    await exchange.run(keep_transfer_params=verification)
                return
        await _refuse(request.send, sidecar.settings.worker, refused)

    async def _tokens(self, request: "_Request") -> None:
        body = await request.client.read_body()
        if body is None:
            return
        try:
            await self._app(_with_length(request.scope, len(body)), request.client.replay(body), request.send)
        finally:
            await request.client.close()


@dataclass(frozen=True, slots=True)
class _Request:
    """One HTTP request; ``headers`` have lower-case names."""

    scope: Scope
    send: Send
    headers: Mapping[str, str]
    client: "_Client"


class _Client:
    """The client's side of one request: its body, then whether it is still there."""

    def __init__(self, receive: Receive, headers: Mapping[str, str], memory: BodyMemory) -> None:
        self._receive = receive
        self._headers = headers
        self._memory = memory
        self._size_bytes = 0  # of the body, as far as it is here
        self._next: asyncio.Task[Message] | None = None

    async def read_body(self, limit_bytes: int | None = None) -> bytes | None:
        """The whole body; None if the client left before it was sent. ``limit_bytes`` beside the memory's limit.

        Raises BodyRefused: at once if its announced length is too much, else as soon as the limit is reached.
        Raises BodiesFull if the bodies of other requests leave no memory for it.
        """
        limit = self._memory.limit_bytes if limit_bytes is None else min(limit_bytes, self._memory.limit_bytes)
        announced = self._headers.get("content-length", "")
        if announced.isascii() and announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await self._read(limit)
        except TimeoutError:
            message = f"the request body did not arrive within {BODY_TIMEOUT_S:g} s"
            raise BodyRefused(HTTPStatus.REQUEST_TIMEOUT, "RequestTimeout", message) from None

    async def _read(self, limit: int) -> bytes | None:
        chunks: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            if self._size_bytes + len(chunk) > limit:
                raise _too_large(limit)
            if not self._memory.take(len(chunk)):
                raise BodiesFull("the bodies of other requests take all the memory for bodies")
            self._size_bytes += len(chunk)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)

    def forget_body(self) -> None:
        """The request has ended: its body's memory is free."""
        self._memory.give_back(self._size_bytes)
        self._size_bytes = 0

    async def gone(self) -> Message:
        """Return when the client has left. May be cancelled and asked again: no message is lost."""
        while True:
            if self._next is None:
                self._next = asyncio.ensure_future(self._receive())
            message = await asyncio.shield(self._next)
            if message["type"] == "http.disconnect":
                return message
            self._next = None

    def replay(self, body: bytes) -> Receive:
        """What the application receives: ``body`` at once, then the disconnect when it comes."""
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await self.gone()

        return receive

    async def close(self) -> None:
        """End a wait that is still on."""
        if self._next is not None:
            self._next.cancel()
            with suppress(asyncio.CancelledError):
                await self._next


class _Exchange:
    """One client request on its way through the engine."""

    def __init__(
        self,
        sidecar: Sidecar,
        app: AsgiApp,
        request: _Request,
        body: bytes,
        counted: ClientRequest,
    ) -> None:
        self._sidecar = sidecar
        self._app = app
        self._scope = request.scope
        self._client = request.client
        self._send = request.send
        self._headers = request.headers
        self._body = body
        self._counted = counted
        self._path: str = request.scope["path"]
        self._arrived_s = self._sidecar.clock()
        self._request_id = request.headers.get(names.REQUEST_ID.lower()) or uuid.uuid4().hex
        self._resume: Resume | None = None

    async def run(self, *, keep_transfer_params: bool) -> None:
        """Serve it; ``keep_transfer_params`` for a verification, which brings its own."""
        try:
            await self._run(keep_transfer_params=keep_transfer_params)
        finally:
            await self._client.close()

    async def _run(self, *, keep_transfer_params: bool) -> None:
        if keep_transfer_params:
            await self._engine(self._body, PrefillPath(PrefillReason.UNSUPPORTED))
            return
        try:
            raw, body = _cleaned(self._body, fetches_embeddings=self._sidecar.settings.embedding_role is not None)
        except RecursionError:
            message = "the request body is nested too deeply to be read"
            await _respond_error(self._send, HTTPStatus.BAD_REQUEST, "BadRequestError", message)
            return
        if self._sidecar.role is Role.ENCODE:
            await self._encode(raw)
            return
        if body is None or self._path not in _PREFILLABLE:
            await self._engine(raw, PrefillPath(PrefillReason.INVALID if body is None else PrefillReason.UNSUPPORTED))
            return
        if RESUME_FIELD in body:
            self._resume = resume_of(body) if self._sidecar.engine.resumes else None
            raw = dump(body)
        deaths = self._number(names.DEATHS)
        request = RequestPrefill(
            self._sidecar,
            self._request_id,
            self._path,
            body,
            raw=raw,
            rule=self._rule(),
            cached_tokens_hint=self._number(names.EXPECTED_CACHED_TOKENS) or 0,
            deaths=deaths or 0,
        )
        prompts = await request.prompts()
        if isinstance(prompts, Prompts) and prompts.images and self._resume is not None:
            prompts = PrefillReason.MEDIA  # its tokens so far cannot be prefilled without the images
        if isinstance(prompts, PrefillReason):
            path = PrefillPath(prompts)
            self._decided(path, 0)
            await self._engine(raw, path)
            return
        if self._resume is not None:
            prompts = prompts.with_sampled(self._resume)
        self._counted.tokens += sum(map(len, prompts.token_ids))
        paths = await self._prefilled(request, prompts)
        if paths is None:
            log.info("client left during the prefill", extra={"request_id": self._request_id})
            return
        died = sorted(frozenset().union(*(path.died for path in paths)))
        # The engine here could be the next one. A sender that counts deaths decides about each of them; for one that
        # does not, the first may be chance.
        if died and (deaths is not None or len(died) >= MAX_DEATHS):
            log.error(
                "prompt not prefilled: workers failed with it",
                extra={"request_id": self._request_id, "failed": ",".join(died)},
            )
            await _refuse(self._send, self._sidecar.settings.worker, RetryReason.PREFILL_DIED, died)
            return
        await self._decode(raw, request, prompts, paths)

    async def _encode(self, raw: bytes) -> None:
        """Have the engine encode the images; the answer says where their embeddings are, if there are any."""
        begun_s = self._sidecar.clock()
        answer = await self._engine(raw, None)
        if self._path == CHAT_PATH and answer.names_embeddings:
            self._sidecar.encoded(self._request_id, self._sidecar.clock() - begun_s)

    async def _prefilled(self, request: RequestPrefill, prompts: Prompts) -> list[PrefillPath] | None:
        """Where the prompts are prefilled; None when the client left meanwhile."""
        prefill = asyncio.create_task(request.prefill(prompts, self._time_left_s))
        gone = asyncio.create_task(self._client.gone())
        try:
            await asyncio.wait({prefill, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                return await prefill
            if prefill.done() and not prompts.kv_first:
                request.release(prefill.result()[0])
            return None
        finally:
            await end((prefill, gone))

    async def _decode(self, raw: bytes, request: RequestPrefill, prompts: Prompts, paths: list[PrefillPath]) -> None:
        """Have the engine answer, with the KV that is in its cache or that it is told to pull."""
        kv = None if prompts.kv_first else paths[0].kv
        if kv is not None:
            leg = with_fields(raw, request.fields(prompts, kv.kv_transfer_params))
            if not (await self._engine(leg, paths[0], kv=kv)).discarded:
                self._decided(paths[0], len(prompts.token_ids[0]))
                return
            paths = [PrefillPath(PrefillReason.PREFILL_FAILED, paths[0].new_tokens)]
        for token_ids, path in zip(prompts.token_ids, paths, strict=True):
            self._decided(path, len(token_ids))
        shown = next((path for path in paths if path.remote), paths[0])
        cached = cached_tokens(prompts, paths) if shown.remote else None
        await self._engine(with_fields(raw, request.fields(prompts, None)), shown, cached_tokens=cached)

    def _decided(self, path: PrefillPath, prompt_tokens: int) -> None:
        self._sidecar.metrics.decided(path.reason, prompt_tokens, path.new_tokens)
        log.info(
            "prompt prefilled",
            extra={
                "request_id": self._request_id,
                "where": "remotely" if path.remote else "locally",
                "reason": path.reason.value,
                "new_tokens": path.new_tokens,
                "prefill_worker": None if path.kv is None else path.kv.prefill_worker,
            },
        )

    def _rule(self) -> RoutingRule:
        """The routing numbers that came with the request, else the ones of the role."""
        rule = self._sidecar.rule
        local = self._number(names.MAX_LOCAL_PREFILL_TOKENS)
        queue = self._number(names.MAX_PREFILL_QUEUE_SIZE)
        return RoutingRule(
            rule.max_local_prefill_tokens if local is None else local,
            rule.max_prefill_queue_size if queue is None else queue,
        )

    def _time_left_s(self) -> float | None:
        deadline_ms = self._number(names.DEADLINE_MS)
        if deadline_ms is None:
            return None
        return deadline_ms / 1000 * REMOTE_SHARE_OF_DEADLINE - (self._sidecar.clock() - self._arrived_s)

    def _number(self, header: str) -> int | None:
        """A header that is a number of 0 or more; anything else is as if it were not there."""
        value = self._headers.get(header.lower(), "")
        return int(value) if value.isascii() and value.isdigit() else None

    async def _engine(
        self, body: bytes, path: PrefillPath | None, *, kv: RemoteKv | None = None, cached_tokens: int | None = None
    ) -> "_Answer":
        """Pass the request on. ``path``: where it is prefilled; None: it is not. ``kv`` is what ``body`` pulls,
        ``cached_tokens`` what the answer has to say of them.

        ``discarded`` of what is returned: the remote leg failed before anything was sent, and the client still waits.
        """
        untold = (
            path is not None and path.reason is PrefillReason.SHORT and path.new_tokens is None
        )  # a text too short to be tokenised here
        with resuming(self._resume), timed() as time:
            answer = _Answer(
                self._send,
                self._sidecar,
                self._counted,
                self._answer_headers(path),
                kv,
                time=time,
                count_prompt=untold,
                cached_tokens=cached_tokens,
            )
            try:
                await self._app(_with_length(self._scope, len(body)), self._client.replay(body), answer.send)
            finally:
                await answer.kv_is_settled()
        return answer

    def _answer_headers(self, path: PrefillPath | None) -> list[tuple[bytes, bytes]]:
        told = {names.WORKER: self._sidecar.settings.worker}
        if path is not None and self._path in _PREFILLABLE:
            told[names.PREFILL] = "remote" if path.remote else "local"
            told[names.PREFILL_REASON] = path.reason.value
        if self._resume is not None:
            told[names.RESUMED] = "1"
        if path is not None and path.kv is not None:
            told[names.PREFILL_WORKER] = path.kv.prefill_worker
        return [(name.lower().encode(), value.encode()) for name, value in told.items()]


class _Answer:
    """The engine's answer on its way to the client.

    The start is held until the first piece of the body, so that an answer that is none (aborted before its first token,
    or a failed remote leg) can still be turned into a retry.
    """

    def __init__(
        self,
        send: Send,
        sidecar: Sidecar,
        counted: ClientRequest,
        headers: list[tuple[bytes, bytes]],
        kv: RemoteKv | None,
        *,
        time: AnswerTime,
        count_prompt: bool,
        cached_tokens: int | None,
    ) -> None:
        self._send = send
        self._sidecar = sidecar
        self._counted = counted
        self._headers = headers
        self._kv = kv
        self._time = time
        self._count_prompt = count_prompt  # as soon as the engine says how long it was
        self._cached_tokens = cached_tokens  # in place of the engine's number
        self._discard_5xx = kv is not None
        self._start: Message | None = None
        self._refused = False
        self.discarded = False
        self.names_embeddings = False  # a whole answer, with where embeddings are

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            self.discarded = self._discard_5xx and message["status"] >= 500
            return
        if self.discarded or self._refused:
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        chunk: bytes = message.get("body", b"")
        longer = 0
        if self._cached_tokens is not None:
            corrected = with_cached_tokens(chunk, self._cached_tokens)
            longer, chunk = len(corrected) - len(chunk), corrected
            message = {**message, "body": chunk}
        await self.kv_is_settled()
        if self._start is not None:
            start, self._start = self._start, None
            if start["status"] == 200 and _is_abort(chunk):
                self._refused = True
                self._sidecar.engine_aborted()
                await _refuse(self._send, self._sidecar.settings.worker, RetryReason.ENGINE_ABORTED)
                return
            self.names_embeddings = start["status"] == 200 and _names_embeddings(chunk)
            own = [*self._headers, *self._decode_time()]
            await self._send({**start, "headers": [*_lengthened(start.get("headers", ()), longer), *own]})
        self._counted.tokens += chunk.count(b"data: ")
        if self._count_prompt and (told := prompt_usage(chunk, self._sidecar.settings.block_size)) is not None:
            self._count_prompt = False
            self._sidecar.metrics.given(told.prompt_tokens, told.new_tokens)
        await self._send(message)

    def _decode_time(self) -> list[tuple[bytes, bytes]]:
        """As a header, where the whole answer is here: the gateway then knows when its first token came."""
        decode_s = self._time.decode_s
        return [] if decode_s is None else [(names.DECODE_MS.lower().encode(), f"{decode_s * 1000:.3f}".encode())]

    async def kv_is_settled(self) -> None:
        """Tell the prefill worker, once. With the first piece of an answer the KV is here; and however a leg ends, the
        engine here has pulled it or told the other one to free it.
        """
        kv, self._kv = self._kv, None
        if kv is not None:
            await self._sidecar.remote.pulled(kv.request_id)


def _is_abort(chunk: bytes) -> bool:
    """Whether a whole answer, or the first event of a stream, says that the engine did not do the request."""
    if b'"abort"' not in chunk:
        return False
    content = chunk.split(b"\n", 1)[0].removeprefix(b"data: ")
    body = json_object(content) or {}
    return any(choice.get("finish_reason") == "abort" for choice in body.get("choices") or ())


def _names_embeddings(whole: bytes) -> bool:
    return b'"ec_transfer_params"' in whole and bool((json_object(whole) or {}).get("ec_transfer_params"))


def _cleaned(raw: bytes, *, fetches_embeddings: bool) -> tuple[bytes, dict[str, Any] | None]:
    """A client's request as it is passed on, and the object in it, without what no client may say.

    Raises RecursionError for one that is nested too deeply.
    """
    body = json_object(raw)
    if body is None:
        return raw, None
    cleaned = without_client_transfer_params(body, fetches_embeddings=fetches_embeddings)
    return (as_utf8(raw, body) if cleaned == body else dump(cleaned)), cleaned


def _lengthened(headers: Iterable[tuple[bytes, bytes]], by: int) -> list[tuple[bytes, bytes]]:
    """``headers`` of an answer whose body, in one piece, became longer by so many bytes."""
    return [
        (name, str(int(value) + by).encode() if by and name.lower() == b"content-length" else value)
        for name, value in headers
    ]


def _with_length(scope: Scope, length: int) -> Scope:
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name.lower() not in (b"content-length", b"transfer-encoding")
    ]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())]}


async def _refuse(send: Send, worker: str, reason: RetryReason, died: Sequence[str] = ()) -> None:
    """503 before anything began here: the gateway sends the request to another worker.

    ``died``: the prefill workers that died with it, with ``RetryReason.PREFILL_DIED``.
    """
    message = f"worker {worker} does not take this request: {reason.value}"
    content = dump({"error": {"message": message, "type": "service_unavailable", "code": 503}})
    more = [
        (names.RETRY.lower().encode(), reason.value.encode()),
        (names.WORKER.lower().encode(), worker.encode()),
        (b"retry-after", RETRY_AFTER_S.encode()),
    ]
    if died:
        more.append((names.DIED.lower().encode(), ",".join(died).encode()))
    await _respond(send, 503, content, "application/json", more)


async def _respond_error(send: Send, status: HTTPStatus, reason: str, message: str) -> None:
    error = {"message": message, "type": reason, "param": None, "code": int(status)}
    await _respond(send, status, dump({"error": error}), "application/json")


def _too_large(limit_bytes: int) -> BodyRefused:
    message = f"the request body is larger than {limit_bytes} bytes"
    return BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "RequestTooLarge", message)


async def _respond(
    send: Send, status: int, content: bytes, content_type: str, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(content)).encode()),
        *(more or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _sidecar_from_environment(app: AsgiApp, host: Any) -> Sidecar:
    try:
        settings = WorkerSettings.read()
    except BadSettings as error:
        raise SystemExit(f"worker: {error}") from error
    return Sidecar(settings, AsgiEngine(app, host=host), WorkerMetrics())
