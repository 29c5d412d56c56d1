"""What the HTTP server answers by itself, in OpenAI's shape: requests that no handler ever sees.

aiohttp refuses them in plain text, with the beginning of the header at fault in the answer and in its log. That header
is often a credential. Here the answer is JSON, says what the limit is and nothing of what was sent, and is counted.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import (
    BadStatusLine,
    ContentEncodingError,
    HttpProcessingError,
    LineTooLong,
)
from aiohttp.web_protocol import RequestHandler

from pointsman.api.v1alpha1.limits import gateway_limit
from pointsman.gateway.errors import GatewayError, NotHttp

log = logging.getLogger(__name__)

MAX_HEADERS: Final = 512
FIRST_REQUEST_S: Final = 60.0
"""A connection that brings no request for so long is closed."""

Respond = Callable[[GatewayError, web.BaseRequest], web.Response]
"""Makes the answer to an error, and counts it."""


class _Protocol(RequestHandler):
    """One client's connection."""

    __slots__ = ("max_header_kib", "respond")

    respond: Respond
    max_header_kib: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if not self._request_count and self.transport is not None:
            self.transport.close()

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Not for bodies that could not be read: their requests were answered, and counted."""
        if not isinstance(kw.get("exc_info"), (HttpProcessingError, web.RequestPayloadError)):
            super().log_exception(*args, **kw)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """See the module."""
        if isinstance(exc, HttpProcessingError):
            log.info("not a request", extra={"why": type(exc).__name__})
            error: GatewayError = _refusal(exc, self.max_header_kib)
        else:
            log.error("request failed with an internal error", exc_info=exc)
            error = GatewayError("The gateway failed on this request.")
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was begun, another one cannot follow")
        return self.respond(error, request)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Errors that aiohttp raises outside of any handler (an unknown ``Expect``) are in OpenAI's shape as well."""
        if isinstance(resp, web.HTTPException) and resp.status >= HTTPStatus.BAD_REQUEST:
            resp = self.respond(NotHttp(resp.status, f"{resp.reason}."), request)
        return await super().finish_response(request, resp, start_time)


class _Server(web.Server):
    """Makes a protocol for each connection."""

    respond: Respond
    max_header_kib: int

    def __call__(self) -> RequestHandler:
        protocol = _Protocol(self, loop=self._loop, **self._kwargs)
        protocol.respond, protocol.max_header_kib = self.respond, self.max_header_kib
        return protocol


class GatewayRunner(web.AppRunner):
    """An ``AppRunner`` whose own refusals are answered by ``respond``."""

    def __init__(self, app: web.Application, *, respond: Respond, max_header_kib: int, **more: Any) -> None:
        super().__init__(
            app,
            max_line_size=max_header_kib * 1024,
            max_field_size=max_header_kib * 1024,
            max_headers=MAX_HEADERS,
            **more,
        )
        self._respond = respond
        self._max_header_kib = max_header_kib

    def shutdown_within(self, seconds: float) -> None:
        """The time that ``cleanup`` gives open requests; before it is called."""
        # Private: aiohttp takes it in the constructor only, before the time left is known.
        self._shutdown_timeout = seconds

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        server = _Server(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )
        server.respond, server.max_header_kib = self._respond, self._max_header_kib
        return server


def headers_too_large(max_header_kib: int) -> NotHttp:
    """All headers of a request together are larger than the limit."""
    return NotHttp(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        f"The request line and headers are larger than {max_header_kib} KiB, or there are more than {MAX_HEADERS} "
        f"headers; the limit of the size is {gateway_limit('max_header_kib')} of the service.",
    )


def _refusal(error: HttpProcessingError, max_header_kib: int) -> NotHttp:
    if isinstance(error, LineTooLong) or error.message == "Too many headers received":
        return headers_too_large(max_header_kib)
    if isinstance(error, ContentEncodingError):
        return NotHttp(
            HTTPStatus.BAD_REQUEST,
            ("The request body cannot be decoded with the given Content-Encoding; use gzip, deflate or no encoding."),
        )
    part = "it is malformed"
    if isinstance(error, BadStatusLine):
        part = "its first line is wrong"
    elif _DATA in error.message:  # what follows may be a header, and that a credential
        part = error.message.partition(_DATA)[0]
    return NotHttp(HTTPStatus.BAD_REQUEST, f"The received data is not a valid HTTP request: {part}.")


_DATA: Final = ":\n\n"
"""In an error of aiohttp's parser, between what is wrong, one of a few fixed texts, and the data."""
