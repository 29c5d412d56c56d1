"""W3C trace context: the client's ``traceparent`` and ``tracestate`` travel with its request to the workers.

The gateway makes no spans of its own, so the engine's spans are children of the client's.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_TRACEPARENT: Final = re.compile(r"^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]*)?$")
_TRACESTATE: Final = re.compile(r"^[ -~]{1,512}$")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})

_of_this_request: ContextVar[Mapping[str, str]] = ContextVar("trace context", default=_NONE)


def trace_context(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The trace headers of a request that are well formed; ``tracestate`` only beside a ``traceparent``."""
    parent, state = headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "")
    if not _TRACEPARENT.match(parent):
        return _NONE
    return {TRACEPARENT: parent} | ({TRACESTATE: state} if _TRACESTATE.match(state) else {})


def remember(headers: Mapping[str, str]) -> None:
    """Keep the trace context of the request whose task this is, for it and the tasks it starts."""
    _of_this_request.set(trace_context(headers))


def to_worker() -> Mapping[str, str]:
    """Headers for a request to a worker on behalf of the present one."""
    return _of_this_request.get()
