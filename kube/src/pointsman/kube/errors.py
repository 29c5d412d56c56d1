"""What can go wrong between Pointsman and the API server, one class a cause.

KubeError
├── NotConfigured        no cluster is configured, or its configuration cannot be read
├── Unreachable          no answer: refused, cut, timed out (a write may or may not have happened)
└── ApiError             the API server answered, with a status
    ├── Unauthorized     401
    ├── Forbidden        403
    ├── NotFound         404
    │   └── NotServed    404: the kind itself is not installed
    ├── AlreadyExists    409 on create
    ├── Conflict         409: a precondition or another field manager
    ├── Gone             410: the resourceVersion or continue token has expired
    ├── Invalid          400, 422: the object, in the API server's sentences
    ├── Throttled        429
    └── ServerFault      5xx
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json


class KubeError(Exception):
    """Root of everything this room raises."""


class NotConfigured(KubeError):
    """There is no cluster to talk to; the message names what was looked for."""


class Unreachable(KubeError):
    """The API server gave no answer. After a write the outcome is unknown: read before writing again."""


@dataclass(frozen=True)
class Cause:
    """One reason of a refusal: ``field`` is a path in the object ("spec.replicas"), empty when there is none."""

    field: str
    message: str
    reason: str


class ApiError(KubeError):
    """An answer other than success.

    ``status``  HTTP status code
    ``reason``  machine reason of the API server ("Invalid"); empty when the body was no Status object
    ``message`` its sentence, also ``str(error)``
    ``causes``  its reasons, field by field
    ``retry_after_s`` what the server asked for; None when it did not
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        reason: str = "",
        causes: tuple[Cause, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.causes = causes
        self.retry_after_s = retry_after_s


class Unauthorized(ApiError):
    """The credentials are not accepted, also after reading them again."""


class Forbidden(ApiError):
    """RBAC, a quota, or a namespace that is going away (``namespace_terminating``)."""

    @property
    def namespace_terminating(self) -> bool:
        """True when nothing can be created because the namespace is being deleted."""
        return any(cause.reason == "NamespaceTerminating" for cause in self.causes)


class NotFound(ApiError):
    """The object is not there."""


class NotServed(NotFound):
    """The API server does not know the kind: its CRD is not installed."""


class AlreadyExists(ApiError):
    """An object of that name is there already; whose it is must be looked at."""


class Conflict(ApiError):
    """The object changed meanwhile, is another one by uid, or another field manager owns a field."""


class Gone(ApiError):
    """The resourceVersion or continue token is too old: list again."""


class Invalid(ApiError):
    """The API server refuses the object: ``causes`` name the fields."""


class Throttled(ApiError):
    """Too many requests, or an eviction that a PodDisruptionBudget does not allow now."""


class ServerFault(ApiError):
    """The API server failed (5xx)."""


_NOT_OF_THE_SCHEMA: Final = "failed to create typed patch object"
"""In the answer, 500, to a server-side apply with a field that the kind does not have or of another type."""

_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: Throttled,
}


def error_from_answer(status: int, body: bytes, *, request: str, retry_after: str | None = None) -> ApiError:
    """The typed error for an answer of the API server.

    ``request`` says what was asked ("GET /api/v1/pods"), for answers that carry no sentence of their own.
    """
    try:
        decoded: Any = from_json(body)
    except ValueError:
        decoded = None
    if isinstance(decoded, dict) and decoded.get("kind") == "Status":
        return error_from_status(decoded, status=status, retry_after=retry_after)
    text = body[:500].decode("utf-8", "replace").strip()
    # A kind that is not installed is answered by the path router, in plain text, not with a Status object.
    kind = NotServed if status == 404 else _class_of(status)
    return kind(f"{request}: {status} {text}", status=status, retry_after_s=_seconds(retry_after))


def error_from_status(
    body: Mapping[str, Any], *, status: int | None = None, retry_after: str | None = None
) -> ApiError:
    """The typed error for a ``Status`` object, as in a refusal or in an ERROR event of a watch."""
    code = int(status or body.get("code") or 500)
    reason = str(body.get("reason") or "")
    details = body.get("details") or {}
    causes = tuple(
        Cause(str(c.get("field") or ""), str(c.get("message") or ""), str(c.get("reason") or ""))
        for c in details.get("causes") or ()
    )
    retry_after_s = _seconds(retry_after)
    if retry_after_s is None and details.get("retryAfterSeconds"):
        retry_after_s = float(details["retryAfterSeconds"])
    message = str(body.get("message") or reason or f"status {code}")
    kind = AlreadyExists if reason == "AlreadyExists" else _class_of(code)
    if _NOT_OF_THE_SCHEMA in message:
        kind = Invalid
    return kind(message, status=code, reason=reason, causes=causes, retry_after_s=retry_after_s)


def _class_of(status: int) -> type[ApiError]:
    return _BY_STATUS.get(status, ServerFault if status >= 500 else ApiError)


def _seconds(retry_after: str | None) -> float | None:
    # The API server sends whole seconds, never an HTTP date.
    return float(retry_after) if retry_after is not None and retry_after.isdigit() else None
