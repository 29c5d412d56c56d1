"""The HTTP face: OpenAI's endpoints, health, and the report of the routable set. Metrics have a port of their own."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from pointsman.api.protocol import headers
from pointsman.api.protocol.control import ENDPOINTS_PATH, authorized
from pointsman.api.protocol.metrics import TpotVerdict, TtftVerdict
from pointsman.api.v1alpha1.limits import gateway_limit
from pointsman.gateway.attempt import Provenance
from pointsman.gateway.client_answer import ClientAnswer, ClientGone
from pointsman.gateway.core.answers import add_usage, gather
from pointsman.gateway.core.in_flight import InFlightBound, Place
from pointsman.gateway.core.moves import MoveLimits, RequestMoves
from pointsman.gateway.core.relayed import PATHS, RelayedEndpoint
from pointsman.gateway.core.requests import Endpoint, read, served
from pointsman.gateway.core.sse import DONE, error_event
from pointsman.gateway.errors import (
    GatewayError,
    ModelNotFound,
    NotHttp,
    NotServed,
    NoWorkerAvailable,
    Overloaded,
    RefusedByEngine,
    Unauthorized,
    defect,
)
from pointsman.gateway.first_token_deadline import DEADLINE, first_token_deadline
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.forward import Answer, Forwarder, Timing
from pointsman.gateway.http_protocol import headers_too_large
from pointsman.gateway.large_body import in_pieces
from pointsman.gateway.metrics import OTHER_ENDPOINT, GatewayMetrics
from pointsman.gateway.metrics_server import METRICS_PATH, MetricsServer
from pointsman.gateway.off_loop import OffLoop
from pointsman.gateway.passthrough import Passthrough, Serve
from pointsman.gateway.planning import PromptPlan, RequestPlan, new_request_id, plan
from pointsman.gateway.processor import Model
from pointsman.gateway.request_body import read_body
from pointsman.gateway.tracing import remember

if TYPE_CHECKING:  # imported with the first image
    from pointsman.gateway.images.request_images import ImageService, RequestImages

log = logging.getLogger(__name__)
access = logging.getLogger("pointsman.gateway.access")

_REQUEST_ID = re.compile(r"^[A-Za-z0-9._:-]{1,128}$")
FAN_OUT_BUFFER_EVENTS = 64
MAX_LOGGED_PATH = 200
CLIENT_LEFT = 499
REFUSED_AFTERWARDS = (RefusedByEngine.reason, NotServed.reason, "overloaded")  # accepted requests that were no load
MODELS_ENDPOINT = "models"  # label of answers that list what is served
MAX_DETAIL = 100  # characters of a client's field or role in the access log
FIRST_MODEL_S = 60.0  # at least so long a request waits for the first worker to say what it serves


@dataclass(slots=True)
class AccessRecord:
    """What the access line and the metrics say about one request."""

    request_id: str
    endpoint: Endpoint | RelayedEndpoint
    arrived_s: float
    stream: bool = False
    status: int = 0
    prompt_tokens: int | None = None
    output_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    choices: int = 1
    queued_s: float | None = None
    verbatim: str | None = None
    provenance: Provenance | None = None
    images: "RequestImages | None" = field(default=None, repr=False)
    outcome: str = "ok"
    accepted: bool = False  # it was counted as load
    counted_tokens: int | None = None  # of its prompt, as they were counted when it was accepted
    ttft: TtftVerdict | None = None  # None: it got no token
    itl: Any = field(default=None, repr=False)

    def was_queued(self, seconds: float) -> None:
        """Flow control queued one of its prompts so long."""
        self.queued_s = max(self.queued_s or 0.0, seconds)

    def accept(self, prompt_tokens: int, metrics: GatewayMetrics) -> None:
        """The request is valid: it is load from now on. ``prompt_tokens`` may be an estimate."""
        self.accepted, self.prompt_tokens = True, prompt_tokens
        metrics.accepted.inc()

    def tokens_came(self, now_s: float, tokens: int, metrics: GatewayMetrics) -> None:
        """``tokens`` of a stream reached the gateway in one read of the network."""
        if self.first_token_s is None:
            self.first_token_s = now_s
            paths = metrics.by_path(self.provenance.path if self.provenance else "local")
            paths.ttft.observe(now_s - self.arrived_s)
            self.itl = paths.itl
            self.ttft = metrics.got_first_token(now_s - self.arrived_s, self.prompt_tokens or 0)
        elif self.choices == 1 and self.last_token_s is not None:
            # With several choices interleaved there is no such thing as the gap between two tokens. Tokens that came in
            # one read share the time since the last.
            for _ in range(tokens):
                self.itl.observe((now_s - self.last_token_s) / tokens)
        self.last_token_s = now_s
        self.output_tokens += tokens

    def whole_came(self, timings: Sequence[Timing | None], metrics: GatewayMetrics) -> None:
        """All answers of a request that is not streamed came, with what their workers report of their tokens."""
        known = [timing for timing in timings if timing is not None]
        if len(known) == len(timings):
            self.first_token_s = min(timing.first_token_s for timing in known)
            self.last_token_s = max(timing.last_token_s for timing in known)
        ttft_s = None if self.first_token_s is None else self.first_token_s - self.arrived_s
        self.ttft = metrics.got_first_token(ttft_s, self.prompt_tokens or 0)

    def ended(self, refused: bool, now_s: float, metrics: GatewayMetrics) -> None:
        """Count an accepted request at its end. ``refused``: after it was accepted."""
        if not self.accepted:
            return
        if self.status == CLIENT_LEFT:
            # Of an answer that is not streamed nobody knows yet when its first token came.
            if self.stream and self.first_token_s is None:
                metrics.given_up(now_s - self.arrived_s, self.prompt_tokens or 0)
            return
        if refused:
            metrics.accepted_refused.inc()
            if self.counted_tokens is not None:
                metrics.refused_prompt_tokens.observe(self.counted_tokens)
            return
        metrics.ended(self.ttft or TtftVerdict.MISSED, self._tpot(metrics))

    def _tpot(self, metrics: GatewayMetrics) -> TpotVerdict:
        if self.status != 200 or self.outcome != "ok":
            return TpotVerdict.FAILED
        if self.output_tokens <= self.choices:
            return TpotVerdict.NONE
        if self.tpot_s is None:
            return TpotVerdict.UNKNOWN
        return metrics.tpot_verdict(self.tpot_s)

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None: not known, of several choices, or there was none."""
        later = self.output_tokens - 1
        if self.first_token_s is None or self.last_token_s is None or self.choices != 1 or later < 1:
            return None
        return (self.last_token_s - self.first_token_s) / later


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of what clients may do; see Settings."""

    patience_seconds: float
    max_answers: int
    max_body_bytes: int
    max_header_kib: int
    body_timeout_seconds: float
    write_timeout_seconds: float
    max_in_flight_requests: int
    max_in_flight_bytes: int
    first_token_seconds: float
    moves: MoveLimits
    trusts_media_options: bool = False


class GatewayServer:
    """Handlers over a fleet and a forwarder. ``clock`` is monotonic seconds, ``wall`` Unix seconds for ``created``.

    ``images``: gives the service for images, which is made for the first request that has one.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        forwarder: Forwarder,
        metrics: GatewayMetrics,
        name: str,
        control_token: str,
        limits: ServerLimits,
        off_loop: OffLoop,
        images: Callable[[], Awaitable["ImageService"]],
        metrics_port: int,
        bind_host: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._fleet = fleet
        self._forwarder = forwarder
        self._metrics = metrics
        self._name = name
        self._token = control_token
        self._limits = limits
        self._off_loop = off_loop
        self._images = images
        self.metrics_server = MetricsServer(self._page_of_metrics, bind_host, metrics_port)
        self._bound = InFlightBound(limits.max_in_flight_requests, limits.max_in_flight_bytes)
        self._clock = clock
        self._wall = wall
        self._started_unix_s = int(wall())
        self.keeps_connections = True
        self.stopping = False  # no longer accepts requests: /ready answers 503

    def application(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=self._limits.max_body_bytes, middlewares=[self._openai_errors])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._model)
        self._passthrough().register(app, self._generate)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get(METRICS_PATH, self.metrics_server.on_clients_port)
        app.router.add_get(ENDPOINTS_PATH, self._endpoints)
        app.on_response_prepare.append(self._let_the_client_go)
        return app

    async def _let_the_client_go(self, _request: web.Request, response: web.StreamResponse) -> None:
        """While it ends: a client's next request on a kept connection would meet a closed one."""
        if not self.keeps_connections:
            response.headers["Connection"] = "close"
            response.force_close()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Endpoint.CHAT)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Endpoint.COMPLETIONS)

    def _passthrough(self) -> Passthrough:
        return Passthrough(
            forwarder=self._forwarder,
            metrics=self._metrics,
            off_loop=self._off_loop,
            moves=self._limits.moves,
            clock=self._clock,
            stall_seconds=self._limits.write_timeout_seconds,
            read_body=self._read_body,
            model_known=self._model_known,
            adapters=lambda: self._fleet.adapters,
            trusts_media_options=self._limits.trusts_media_options,
            answer_headers=_answer_headers,
        )

    async def _generate(
        self, request: web.Request, endpoint: Endpoint | RelayedEndpoint, serve: Serve | None = None
    ) -> web.StreamResponse:
        """Answer one request, bounded and counted; ``serve`` by default as what the gateway tokenises."""
        record = AccessRecord(_request_id(request), endpoint, self._clock())
        remember(request.headers)
        if endpoint.generates:
            self._metrics.arrived(endpoint)
        self._metrics.in_flight.inc()
        place = self._bound.enter()
        try:
            if place is None:
                raise Overloaded(
                    f"The gateway has {self._limits.max_in_flight_requests} requests in flight; "
                    f"the limit is {gateway_limit('max_in_flight_requests')} of the service. Try again later.",
                    reason="overloaded",
                    retry_after_seconds=1,
                )
            first_token_s = self._limits.first_token_seconds
            DEADLINE.set(first_token_deadline(request.headers.get(headers.DEADLINE_MS), first_token_s, self._clock))
            return await (serve or self._serve)(request, record, place)
        except GatewayError as error:
            record.status, record.outcome = error.status, error.reason
            self._metrics.failed(error.reason)
            return _error_response(error, record.request_id, queued_s=record.queued_s)
        except ClientGone as gone:
            record.status, record.outcome = CLIENT_LEFT, gone.outcome
            if request.transport is not None:
                request.transport.abort()  # what it did not read would keep the connection open
            raise asyncio.CancelledError from gone
        except asyncio.CancelledError:
            record.status, record.outcome = CLIENT_LEFT, "client-left"
            raise
        except Exception:
            record.status, record.outcome = 500, "internal"
            self._metrics.failed("internal")
            log.exception("request failed with an internal error", extra={"request_id": record.request_id})
            return _error_response(defect(), record.request_id)
        finally:
            if place is not None:
                place.leave()
            self._metrics.in_flight.dec()
            self._finish(record)

    async def _serve(self, request: web.Request, record: AccessRecord, place: Place) -> web.StreamResponse:
        data = await self._read_body(request, place)
        model = await self._model_known()
        validated = await self._off_loop.run(
            len(data),
            partial(
                read,
                Endpoint(record.endpoint),
                data,
                model.info.served_name,
                max_answers=self._limits.max_answers,
                adapters=self._fleet.adapters,
                trusts_media_options=self._limits.trusts_media_options,
            ),
        )
        if validated.adapter is not None and validated.adapter not in model.info.adapters:
            model = self._fleet.draw_model(validated.adapter) or model
        record.stream = validated.stream
        if validated.images:
            images = await self._images()
            record.images = await images.load(
                validated, place, request_id=record.request_id, model=model.info.served_name
            )
            validated = replace(validated, images=record.images.parts)
        planned = await plan(
            validated, model, request_id=record.request_id, created=int(self._wall()), images=record.images
        )
        if planned.verbatim is not None:
            record.verbatim = planned.verbatim.detail[:MAX_DETAIL]
            self._metrics.sent_verbatim(planned.verbatim.reason)
        record.accept(planned.prompt_tokens, self._metrics)
        record.choices = planned.choices
        record.counted_tokens = planned.prompt_tokens
        self._metrics.prompt_tokens.observe(planned.prompt_tokens)
        moves = RequestMoves(self._limits.moves)
        if validated.stream:
            return await self._stream(request, planned, record, moves)
        answers = await _all(
            self._forwarder.answer(prompt.worker_request, record.was_queued, moves) for prompt in planned.prompts
        )
        answer = ClientAnswer(
            request,
            await self._whole(planned, answers, record),
            stall_seconds=self._limits.write_timeout_seconds,
        )
        await answer.begin()
        await answer.end()
        return answer.response

    async def _read_body(self, request: web.Request, place: Place) -> bytes:
        return await read_body(
            request,
            place,
            self._off_loop,
            max_bytes=self._limits.max_body_bytes,
            timeout_seconds=self._limits.body_timeout_seconds,
        )

    async def _whole(self, planned: RequestPlan, answers: list[Answer], record: AccessRecord) -> web.Response:
        record.provenance = answers[0].provenance
        record.whole_came([answer.timing for answer in answers], self._metrics)
        size_bytes = sum(answer.size_bytes for answer in answers)
        encoded, record.output_tokens = await self._off_loop.run(size_bytes, lambda: _gathered(planned, answers))
        record.status = 200
        sent = _answer_headers(record)
        return web.Response(body=in_pieces(encoded, sent), content_type="application/json", headers=sent)

    async def _stream(
        self, request: web.Request, planned: RequestPlan, record: AccessRecord, moves: RequestMoves
    ) -> web.StreamResponse:
        prompts = planned.prompts
        events = self._one(prompts[0], record, moves) if len(prompts) == 1 else self._many(planned, record, moves)
        async with aclosing(events):
            head = await anext(events)  # raises before anything was sent: the error keeps its HTTP status
            response = web.StreamResponse(headers=_answer_headers(record))
            response.content_type = "text/event-stream"
            response.headers["Cache-Control"] = "no-cache"
            answer = ClientAnswer(request, response, stall_seconds=self._limits.write_timeout_seconds)
            record.status = 200
            await answer.begin()
            try:
                await answer.write(head)
                async for out in events:
                    await answer.write(out)
            except ClientGone:
                raise
            except GatewayError as error:
                log.warning("stream broken", extra={"request_id": record.request_id, "detail": error.message})
                await answer.write(self._broken(error, record))
            except Exception:
                log.exception("stream failed with an internal error", extra={"request_id": record.request_id})
                await answer.write(self._broken(defect(), record))
            await answer.end()
        return response

    def _broken(self, error: GatewayError, record: AccessRecord) -> bytes:
        """The end of a stream that has begun and cannot go on: its status is sent, so the error is an event."""
        record.outcome = error.reason
        self._metrics.failed(error.reason)
        return error_event(error.body()) + DONE

    async def _one(self, prompt: PromptPlan, record: AccessRecord, moves: RequestMoves) -> AsyncGenerator[bytes, None]:
        """Bytes of a stream with one choice. The first item comes with the first token."""
        stream, head = await self._forwarder.open(prompt.worker_request, prompt.translator, record.was_queued, moves)
        try:
            record.provenance = stream.provenance
            record.tokens_came(self._clock(), stream.tokens, self._metrics)
            yield head + (DONE if stream.ended else b"")
            while not stream.ended:
                out, tokens = await stream.pull()
                if tokens:
                    record.tokens_came(self._clock(), tokens, self._metrics)
                if stream.ended:
                    out += DONE
                if out:
                    yield out
        finally:
            stream.close()

    async def _many(
        self, planned: RequestPlan, record: AccessRecord, moves: RequestMoves
    ) -> AsyncGenerator[bytes, None]:
        """Bytes of a stream with several choices, interleaved as they come; usage is added up at the end."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(FAN_OUT_BUFFER_EVENTS)
        usages: list[dict[str, Any] | None] = [None] * len(planned.prompts)

        async def follow(number: int, prompt: PromptPlan) -> None:
            stream, head = await self._forwarder.open(
                prompt.worker_request, prompt.translator, record.was_queued, moves, hold_usage=True
            )
            try:
                record.provenance = record.provenance or stream.provenance
                record.tokens_came(self._clock(), stream.tokens, self._metrics)
                await queue.put(head)
                while not stream.ended:
                    out, tokens = await stream.pull()
                    if tokens:
                        record.tokens_came(self._clock(), tokens, self._metrics)
                    if out:
                        await queue.put(out)
                if stream.usage:
                    usages[number] = msgspec.json.decode(stream.usage)
            finally:
                stream.close()

        async def follow_all() -> None:
            try:
                await _all(follow(number, prompt) for number, prompt in enumerate(planned.prompts))
            except asyncio.CancelledError:
                raise  # nobody reads the queue any more: to wait for a place in it would be to wait for ever
            except BaseException:
                await queue.put(None)
                raise
            await queue.put(None)

        everything = asyncio.create_task(follow_all())
        try:
            while (out := await queue.get()) is not None:
                yield out
            await everything
            total = add_usage(usages)
            yield (_usage_event(planned, total) if total is not None else b"") + DONE
        finally:
            everything.cancel()
            await asyncio.gather(everything, return_exceptions=True)

    async def _model_known(self) -> Model:
        """What is served, drawn anew for each request where workers differ.

        Raises NoWorkerAvailable when no worker said so for as long as a request may wait.

        That is longer where a worker is there and only has to say it: a busy computer imports and proves a tokenizer
        for longer than anybody should wait for nobody.
        """
        since_s = self._clock()
        while (model := self._fleet.draw_model()) is None:
            patience_s, missing = self._limits.patience_seconds, "No decode worker became available"
            limit = f"the limit is {gateway_limit('patience_seconds')} of the service"
            if asked := self._fleet.needs_model():
                patience_s = max(patience_s, FIRST_MODEL_S)
                missing = f"Decode worker {asked[0].name} did not report its model"
                limit += f", here at least {FIRST_MODEL_S:g} s"
            left_s = since_s + patience_s - self._clock()
            if left_s <= 0:
                raise NoWorkerAvailable(f"{missing} within {patience_s:g} s; {limit}. Try again.")
            await self._fleet.wait_change(left_s)
        return model

    def _finish(self, record: AccessRecord) -> None:
        now_s = self._clock()
        self._metrics.answered(record.endpoint, record.status)
        paths = self._metrics.by_path(record.provenance.path if record.provenance else "local")
        if record.status == 200 and record.outcome == "ok" and record.endpoint.generates:
            paths.e2e.observe(now_s - record.arrived_s)
            self._metrics.finished(record.prompt_tokens, record.output_tokens)
            if record.stream and record.tpot_s is not None:
                paths.tpot.observe(record.tpot_s)
        record.ended(record.outcome in REFUSED_AFTERWARDS, now_s, self._metrics)
        found = record.provenance
        access.info(
            "request",
            extra={
                "request_id": record.request_id,
                "endpoint": record.endpoint.value,
                "status": record.status,
                "outcome": record.outcome,
                "stream": record.stream,
                "worker": found.worker if found else None,
                "prefill": found.prefill if found else None,
                "prefill_reason": found.prefill_reason if found else None,
                "verbatim": record.verbatim,
                "prompt_tokens": record.prompt_tokens,
                "output_tokens": record.output_tokens,
                "held_ms": _ms(record.queued_s, 0.0),
                "ttft_ms": _ms(record.first_token_s, record.arrived_s),
                "total_ms": _ms(now_s, record.arrived_s),
                **({} if record.images is None else _of_images(record.images)),
            },
        )

    async def _models(self, _request: web.Request) -> web.Response:
        model = await self._model_known()
        names = (model.info.served_name, *sorted(self._fleet.adapters))
        self._metrics.answered(MODELS_ENDPOINT, 200)
        return web.json_response({"object": "list", "data": [self._card(model, name) for name in names]})

    async def _model(self, request: web.Request) -> web.Response:
        model = await self._model_known()
        asked = request.match_info["model"]
        if asked != model.info.served_name and asked not in self._fleet.adapters:
            what = served(model.info.served_name, self._fleet.adapters)
            raise ModelNotFound(f"The model {asked!r} does not exist; {what}.")
        self._metrics.answered(MODELS_ENDPOINT, 200)
        return web.json_response(self._card(model, asked))

    def _card(self, model: Model, name: str) -> dict[str, Any]:
        base = model.info.served_name
        return {
            "id": name,
            "object": "model",
            "created": self._started_unix_s,
            "owned_by": "pointsman",
            "root": base,
            "parent": None if name == base else base,
            "max_model_len": model.info.max_model_len,
        }

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        if self.stopping:
            return web.Response(status=503, text="stopping\n")
        if not self._fleet.synced:
            return web.Response(status=503, text="the set of workers is not known yet\n")
        return web.Response(text="ok\n")

    def _page_of_metrics(self) -> bytes:
        self._metrics.set_workers({(role.label, state): n for (role, state), n in self._fleet.counts().items()})
        return self._metrics.expose()

    @web.middleware
    async def _openai_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Errors of routing and of the small endpoints, in OpenAI's shape too."""
        try:
            sent_bytes = len(request.raw_path) + sum(len(name) + len(value) for name, value in request.raw_headers)
            if sent_bytes > self._limits.max_header_kib * 1024:
                raise headers_too_large(self._limits.max_header_kib)
            answer = await handler(request)
            if not answer.prepared:
                answer.headers.setdefault(headers.REQUEST_ID, _request_id(request))
            return answer
        except GatewayError as error:
            return self.respond(error, request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            message = _HTTP_MESSAGES.get(error.status, f"{error.reason}.").format(request=request)
            refused = NotServed(message) if error.status == 404 else NotHttp(error.status, message)
            refusal = self.respond(refused, request)
            if "Allow" in error.headers:
                refusal.headers["Allow"] = error.headers["Allow"]
            return refusal

    def respond(self, error: GatewayError, request: web.BaseRequest) -> web.Response:
        """The answer to a request that no generating handler took, counted under the endpoint ``other``.

        Of a ``request`` that could not be read, path and headers may be missing.
        """
        request_id = _request_id(request)
        self._metrics.answered(OTHER_ENDPOINT, error.status)
        self._metrics.failed(error.reason)
        access.info(
            "request",
            extra={
                "request_id": request_id,
                "endpoint": OTHER_ENDPOINT,
                "path": request.path[:MAX_LOGGED_PATH],
                "status": error.status,
                "outcome": error.reason,
            },
        )
        return _error_response(error, request_id)

    async def _endpoints(self, request: web.Request) -> web.Response:
        if not authorized(request.headers.get(headers.CONTROL_TOKEN, ""), self._token):
            raise Unauthorized("This path needs the service's control token.")
        return web.Response(text=self._fleet.report(self._name).wire(), content_type="application/json")


_HTTP_MESSAGES = {
    404: "This service has no path {request.path}; it serves /v1/chat/completions, /v1/completions, /v1/models, "
    "/v1/models/{{model}}, /health, /ready, /ping, /version, and where the engine has them for its model "
    + ", ".join(sorted(PATHS.values()))
    + ".",
    405: "The path {request.path} does not accept the method {request.method}.",
}


def _request_id(request: web.BaseRequest) -> str:
    """The client's own id, if it can be one; else a new one."""
    given = request.headers.get(headers.REQUEST_ID, "")
    return given if _REQUEST_ID.match(given) else new_request_id()


def _error_response(error: GatewayError, request_id: str, *, queued_s: float | None = None) -> web.Response:
    found = ({headers.REQUEST_ID: request_id} if request_id else {}) | _queued_header(queued_s)
    if error.retry_after_seconds is not None:
        found["Retry-After"] = str(error.retry_after_seconds)
    if not error.repeatable:
        found[headers.SHOULD_RETRY] = "false"
    body = error.answer if isinstance(error, RefusedByEngine) else msgspec.json.encode(error.body())
    response = web.Response(body=body, status=error.status, content_type="application/json", headers=found)
    if error.closes_connection:
        response.force_close()
    return response


def _answer_headers(record: AccessRecord) -> dict[str, str]:
    found = {headers.REQUEST_ID: record.request_id} | _queued_header(record.queued_s)
    provenance = record.provenance
    if provenance is not None:
        found[headers.WORKER] = provenance.worker
        for name, value in (
            (headers.PREFILL, provenance.prefill),
            (headers.PREFILL_REASON, provenance.prefill_reason),
            (headers.PREFILL_WORKER, provenance.prefill_worker),
        ):
            if value is not None:
                found[name] = value
    return found


def _queued_header(queued_s: float | None) -> dict[str, str]:
    return {} if queued_s is None else {headers.HELD_MS: str(round(queued_s * 1000))}


def _gathered(planned: RequestPlan, answers: list[Answer]) -> tuple[bytes, int]:
    """The whole answer as JSON, and its output tokens. Empties ``answers``, so that no other thread frees them."""
    if planned.verbatim is not None:
        body = answers[0].body
        body.pop("kv_transfer_params", None)
    else:
        body = gather(planned.request, planned.identity, [answer.body for answer in answers])
    answers.clear()
    return msgspec.json.encode(body), (body.get("usage") or {}).get("completion_tokens", 0)


def _usage_event(planned: RequestPlan, usage: dict[str, Any]) -> bytes:
    identity = planned.identity
    kind = "chat.completion.chunk" if planned.request.endpoint is Endpoint.CHAT else "text_completion"
    event = {
        "id": identity.id,
        "object": kind,
        "created": identity.created,
        "model": identity.model,
        "choices": [],
        "usage": usage,
    }
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


async def _all(work: Any) -> list[Any]:
    """Results of all, or the first failure, the rest cancelled. One alone needs no task of its own."""
    pending = list(work)
    if len(pending) == 1:
        return [await pending[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(item) for item in pending]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]


def _of_images(images: "RequestImages") -> dict[str, Any]:
    """What the access line says about them."""
    return {
        "images": len(images.images),
        "image_tokens": images.tokens,
        "image_paths": dict(images.paths),
        "image_load_ms": _ms(images.load_s, 0.0),
        "encode_ms": _ms(images.encode_s, 0.0),
    }


def _ms(later_s: float | None, earlier_s: float) -> float | None:
    return None if later_s is None else round((later_s - earlier_s) * 1000, 2)
