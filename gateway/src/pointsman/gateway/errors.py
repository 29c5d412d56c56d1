"""Everything that can go wrong with a request, in the shape OpenAI's clients expect.

GatewayError
├── RequestInvalid            400  a field of the request is wrong; names it
│   ├── BodyUnreadable        400
│   └── ContextLengthExceeded 400
├── ModelNotFound             404
├── NotServed                 404  the path is none that this service serves
├── Unauthorized              401  the gateway's own report without the service's token
├── NotHttp                   4xx  what arrived cannot be read as a request
├── BodyTooLarge              413  the body is larger than the limit; names it
├── BodyTooSlow               408  the body did not arrive in time
├── NoWorkerAvailable         503  no routable decode worker, or all refused, for as long as a request may wait
├── Overloaded                429  too many are held back already, or this one was for as long as one may be
├── WorkersFailed             502  attempts on several workers failed before the first token
│   └── WorkersDied           502  workers died while they answered it
├── TimedOut                  504  a worker took the request, and no token or no answer came in time
├── RefusedByEngine           4xx  the engine's own answer, passed on
└── StreamBroken                   after the first token, and no other worker could go on: an error event
"""

from http import HTTPStatus
from typing import Any, ClassVar, Final

import msgspec

from pointsman.api.v1alpha1.limits import gateway_limit

MAX_MESSAGE: Final = 1000
"""Characters of an error's message: it may repeat a value of the client."""


class GatewayError(Exception):
    """A request that ends in an error. ``reason`` is a bounded word for metrics."""

    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    type: str = "server_error"
    code: str | int | None = None
    reason: str = "internal"
    retry_after_seconds: int | None = None
    repeatable: bool = True  # False: OpenAI's clients are told not to send it again by themselves
    closes_connection: bool = False  # the rest of the body was not read, or cannot be

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "…"
        self.param = param

    def body(self) -> dict[str, Any]:
        """``{"error": {message, type, param, code}}``."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def defect() -> GatewayError:
    """What a client is told of a defect of the gateway."""
    return GatewayError("The gateway failed on this request.")


class RequestInvalid(GatewayError):
    """The client's mistake: the message names the field, its value and what would be right."""

    status = HTTPStatus.BAD_REQUEST
    type = "invalid_request_error"
    code = "invalid_value"
    reason = "invalid-request"


class BodyUnreadable(RequestInvalid):
    """The body is not what its headers say: its length, its encoding or its chunks."""

    code = "invalid_http"
    closes_connection = True


class ContextLengthExceeded(RequestInvalid):
    """Prompt and answer do not fit the model's context."""

    code = "context_length_exceeded"


class ModelNotFound(GatewayError):
    """The request names a model that this service does not serve."""

    status = HTTPStatus.NOT_FOUND
    type = "invalid_request_error"
    code = "model_not_found"
    reason = "model-not-found"


class NotServed(GatewayError):
    """The path exists in OpenAI's or the engine's API, and this service does not serve it."""

    status = HTTPStatus.NOT_FOUND
    type = "invalid_request_error"
    code = "not_served"
    reason = "invalid-request"


class Unauthorized(GatewayError):
    """No or a wrong control token."""

    status = HTTPStatus.UNAUTHORIZED
    type = "invalid_request_error"
    code = "unauthorized"
    reason = "unauthorized"


class NotHttp(GatewayError):
    """A request that the HTTP server refuses before any handler sees it."""

    type = "invalid_request_error"
    code = "invalid_http"
    closes_connection = True
    reason = "invalid-request"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BodyTooLarge(GatewayError):
    """The body has more than ``max_bytes``."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    type = "invalid_request_error"
    code = "body_too_large"
    closes_connection = True
    reason = "invalid-request"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"The request body is larger than {max_bytes / 2**20:g} MiB; "
            f"the limit is {gateway_limit('max_body_mib')} of the service."
        )


class BodyTooSlow(GatewayError):
    """The body did not arrive in time."""

    status = HTTPStatus.REQUEST_TIMEOUT
    type = "invalid_request_error"
    code = "body_too_slow"
    closes_connection = True
    reason = "invalid-request"


class NoWorkerAvailable(GatewayError):
    """Nobody to send the request to."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "no_worker_available"
    reason = "no-worker"
    retry_after_seconds = 1


class Overloaded(GatewayError):
    """There is no place for the request (``overloaded``), or flow control had no room in time (``held-too-long``)."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "overloaded"
    reasons: ClassVar[tuple[str, ...]] = ("overloaded", "held-too-long")

    def __init__(self, message: str, *, reason: str, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class WorkersFailed(GatewayError):
    """Every attempt failed before its first token."""

    status = HTTPStatus.BAD_GATEWAY
    code = "workers_failed"
    reason = "workers-failed"
    retry_after_seconds: int | None = 1


class WorkersDied(WorkersFailed):
    """Workers died while they answered the request: it may be what kills them, so nobody gets it again."""

    code = "workers_died"
    retry_after_seconds = None
    repeatable = False


class TimedOut(GatewayError):
    """A worker took the request, and its first token or its whole answer did not come in time."""

    status = HTTPStatus.GATEWAY_TIMEOUT
    code = "timed_out"
    repeatable = False
    reason = "timed-out"


class _EngineAnswer(msgspec.Struct):
    error: dict[str, Any]


class RefusedByEngine(GatewayError):
    """The engine refused the request for good; its answer goes to the client as it is."""

    reason = "refused-by-engine"

    def __init__(self, status: int, answer: bytes) -> None:
        super().__init__(f"engine answered {status}")
        self.status = status
        self.answer = answer

    def body(self) -> dict[str, Any]:
        """The engine's own error object, for the event of a stream that has begun; ours if its answer has none."""
        try:
            return msgspec.structs.asdict(msgspec.json.decode(self.answer, type=_EngineAnswer))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return super().body()


class StreamBroken(GatewayError):
    """The answer broke off after tokens had been sent to the client, and no other worker could go on with it."""

    code = "stream_broken"
    reason = "stream-broken"
