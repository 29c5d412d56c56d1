"""The engine's endpoints beside chats and completions: checked, sent to a decode worker as they are, and passed back.

They are routed, queued, counted and limited as chats are. Nothing is tokenised here, so no other worker prefills the
prompt, and no other worker continues a stream that breaks off.
"""

import functools
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing, closing
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import msgspec
from aiohttp import web

from pointsman.gateway.attempt import ENGINE_ERROR
from pointsman.gateway.client_answer import ClientAnswer, ClientGone
from pointsman.gateway.core.in_flight import Place
from pointsman.gateway.core.moves import MoveLimits, RequestMoves
from pointsman.gateway.core.relayed import RelayedEndpoint, Usage, read_relayed, relayed_error_event, usage_of
from pointsman.gateway.errors import GatewayError, NotServed, RefusedByEngine, defect
from pointsman.gateway.forward import Forwarder, WorkerRequest
from pointsman.gateway.large_body import in_pieces
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.gateway.off_loop import OffLoop
from pointsman.gateway.processor import Model
from pointsman.gateway.relayed_stream import RelayedStream

log = logging.getLogger(__name__)

ADAPTER_PATHS: Final = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")

Serve = Callable[[web.Request, Any, Place], Awaitable[web.StreamResponse]]
Account = Callable[[web.Request, RelayedEndpoint, Serve], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passthrough:
    """Handlers of the endpoints in ``core.relayed``; what they need of the server."""

    forwarder: Forwarder
    metrics: GatewayMetrics
    off_loop: OffLoop
    moves: MoveLimits
    clock: Callable[[], float]
    stall_seconds: float
    read_body: Callable[[web.Request, Place], Awaitable[bytes]]
    model_known: Callable[[], Awaitable[Model]]
    adapters: Callable[[], Collection[str]]
    trusts_media_options: bool
    answer_headers: Callable[[Any], dict[str, str]]

    def register(self, app: web.Application, account: Account) -> None:
        """Add the routes. ``account`` counts a request, bounds it and answers its errors."""
        for endpoint in RelayedEndpoint:
            app.router.add_post(endpoint.path, functools.partial(self._counted, account, endpoint))
        for path in ADAPTER_PATHS:
            app.router.add_post(path, _refuse_adapter)
        app.router.add_get("/version", _version)
        app.router.add_get("/ping", _ping)

    async def _counted(self, account: Account, endpoint: RelayedEndpoint, request: web.Request) -> web.StreamResponse:
        return await account(request, endpoint, self._serve)

    async def _serve(self, request: web.Request, record: Any, place: Place) -> web.StreamResponse:
        endpoint: RelayedEndpoint = record.endpoint
        data = await self.read_body(request, place)
        model = await self.model_known()
        adapters = self.adapters()
        asked = await self.off_loop.run(
            len(data),
            lambda: read_relayed(
                endpoint,
                data,
                model.info.served_name,
                adapters,
                model.info.max_model_len,
                trusts_media_options=self.trusts_media_options,
            ),
        )
        record.stream, record.verbatim = asked.stream, endpoint.value
        worker_request = WorkerRequest(
            record.request_id, endpoint.path, asked.body, prompt_tokens=asked.prompt_tokens, adapter=asked.adapter
        )
        if endpoint.generates:
            record.accept(worker_request.prompt_tokens, self.metrics)
        report_queued = record.was_queued if endpoint.generates else None
        moves = RequestMoves(self.moves)
        try:
            if asked.stream:
                return await self._stream(request, record, worker_request, report_queued, moves)
            answer = await self.forwarder.relay_whole(worker_request, report_queued, moves)
        except RefusedByEngine as error:
            raise _in_openais_shape(endpoint, error) from error
        record.provenance = answer.provenance
        usage = await self.off_loop.run(len(answer.body), lambda: usage_of(answer.body))
        self._count(record, worker_request, usage)
        if endpoint.generates:
            record.whole_came([answer.timing], self.metrics)
        record.status = 200
        headers = self.answer_headers(record)
        body = in_pieces(answer.body, headers)
        response = web.Response(body=body, content_type="application/json", headers=headers)
        client = ClientAnswer(request, response, stall_seconds=self.stall_seconds)
        await client.begin()
        await client.end()
        return response

    async def _stream(
        self,
        request: web.Request,
        record: Any,
        worker_request: WorkerRequest,
        report_queued: Callable[[float], None] | None,
        moves: RequestMoves,
    ) -> web.StreamResponse:
        with closing(await self.forwarder.relay_stream(worker_request, report_queued, moves)) as stream:
            record.provenance = stream.provenance
            response = web.StreamResponse(headers=self.answer_headers(record))
            response.content_type = "text/event-stream"
            response.headers["Cache-Control"] = "no-cache"
            client = ClientAnswer(request, response, stall_seconds=self.stall_seconds)
            record.status = 200
            await client.begin()
            try:
                try:
                    async with aclosing(stream.pieces()) as pieces:
                        async for received, tokens in pieces:
                            if tokens:
                                record.tokens_came(self.clock(), tokens, self.metrics)
                            await client.write(received)
                    if stream.events.failed:
                        record.outcome = ENGINE_ERROR
                finally:
                    self._count(record, worker_request, stream.events.usage)
            except ClientGone:
                raise
            except GatewayError as error:
                log.warning("stream broken", extra={"request_id": record.request_id, "detail": error.message})
                await client.write(self._broken(error, record, stream))
            except Exception:
                log.exception("stream failed with an internal error", extra={"request_id": record.request_id})
                await client.write(self._broken(defect(), record, stream))
            await client.end()
        return response

    def _broken(self, error: GatewayError, record: Any, stream: RelayedStream) -> bytes:
        """The end of a stream that has begun and cannot go on: its status is sent, so the error is an event."""
        record.outcome = error.reason
        self.metrics.failed(error.reason)
        return relayed_error_event(record.endpoint, error.body()["error"], stream.events.events)

    def _count(self, record: Any, worker_request: WorkerRequest, usage: Usage | None) -> None:
        record.prompt_tokens = usage.prompt_tokens if usage is not None else worker_request.prompt_tokens
        if usage is not None:
            record.output_tokens = max(usage.output_tokens, record.output_tokens)
        if record.endpoint.generates:
            self.metrics.prompt_tokens.observe(record.prompt_tokens)


def _in_openais_shape(endpoint: RelayedEndpoint, refusal: RefusedByEngine) -> GatewayError:
    """The engine's refusal as it is, but what it says of a path that it does not have: that has no error object."""
    try:
        answer = msgspec.json.decode(refusal.answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = None
    if refusal.status in (404, 405, 501) and not (isinstance(answer, dict) and answer.get("error")):
        return NotServed(f"The engine of this service does not serve {endpoint.path} for its model.")
    return refusal


async def _refuse_adapter(_request: web.Request) -> web.StreamResponse:
    raise NotServed(
        "Adapters are not loaded or unloaded while the service runs, because all its workers must have the same ones. "
        "Name them in spec.engine.args of the LLMService (--enable-lora, --lora-modules)."
    )


async def _version(_request: web.Request) -> web.StreamResponse:
    return web.json_response({"version": version("pointsman-gateway")})


async def _ping(_request: web.Request) -> web.StreamResponse:
    return web.Response()
