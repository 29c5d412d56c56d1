"""One request to the API server: its path and timeout, its record, its answer checked; reads are tried again."""

import json
import logging
import random
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal

import aiohttp

from pointsman.kube.errors import ApiError, ServerFault, Throttled, Unreachable, error_from_answer
from pointsman.kube.resources import Resource
from pointsman.kube.transport import JSON, Call, Transport
from pointsman.process.clock import Clock

log = logging.getLogger(__name__)

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete"]
"""A verb as RBAC names it."""

CONNECT_TIMEOUT_S: Final = 5.0
READ_ATTEMPTS: Final = 4
READ_BACKOFF_S: Final = 0.2
MERGE_PATCH: Final = "application/merge-patch+json"
# The parameter has the package send the bytes as they are: it would write them as JSON that is no YAML.
APPLY_PATCH: Final = "application/apply-patch+yaml; charset=utf-8"
_METHODS: Final[dict[Verb, str]] = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
NOTHING: Final[Mapping[str, str]] = {}
_ESCAPED: Final = re.compile("[\x7f-\x9f\ufeff\ufffe\uffff]")
_HALF: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Target:
    """What a request is about. Without a ``name`` the collection; without a ``namespace`` over all of them."""

    verb: Verb
    resource: Resource
    namespace: str | None = None
    name: str | None = None
    subresource: str | None = None

    @property
    def path(self) -> str:
        """Raises ValueError for a combination that names nothing."""
        return self.resource.path(self.namespace, self.name, self.subresource)


@dataclass(frozen=True)
class RequestRecord(Target):
    """One finished request, for metrics and for the test that RBAC grants no more and no less.

    ``status``  HTTP status, None when there was no answer
    """

    status: int | None = None
    duration_s: float = 0.0


class Requests:
    """Sends them. Every one has a timeout, ``timeout_s`` unless the call has its own."""

    def __init__(
        self, transport: Transport, timeout_s: float, on_request: Callable[[RequestRecord], None] | None, clock: Clock
    ) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._on_request = on_request
        self._clock = clock

    async def read(
        self, target: Target, query: Mapping[str, str] = NOTHING, *, timeout_s: float | None = None
    ) -> bytes:
        """The answer's body. 429 and 5xx are tried again within the timeout."""
        deadline_s = self._clock.monotonic_s() + (self._timeout_s if timeout_s is None else timeout_s)
        call = Call("GET", target.path, query)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._send(target, call, deadline_s - self._clock.monotonic_s())
            except (Throttled, ServerFault) as error:
                backoff_s = READ_BACKOFF_S * 2**attempt * random.uniform(0.5, 1.0)
                pause_s = error.retry_after_s if error.retry_after_s is not None else backoff_s
                if attempt == READ_ATTEMPTS or self._clock.monotonic_s() + pause_s >= deadline_s:
                    raise
                log.debug(
                    "call failed, trying again",
                    extra={"call": str(call), "retry_in_s": round(pause_s, 1), "why": str(error)},
                )
                await self._clock.sleep(pause_s)

    async def write(
        self,
        target: Target,
        body: object,
        query: Mapping[str, str] = NOTHING,
        *,
        content_type: str = JSON,
        timeout_s: float | None = None,
    ) -> bytes:
        """The answer's body. Never tried again: an unanswered write may have happened, so the caller reads first."""
        sent = _yaml(body) if content_type is APPLY_PATCH else body
        call = Call(_METHODS[target.verb], target.path, query, sent, content_type)
        return await self._send(target, call, self._timeout_s if timeout_s is None else timeout_s)

    async def watch(self, target: Target, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        """The lines of a stream. Raises Unreachable when it is cut or silent for ``silence_s``."""
        call = Call("GET", target.path, query)
        with self._recorded(target) as record:
            # Bounds the silence between two reads, not the whole.
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
            with _unreachable(call, f"no answer within {silence_s:g} s"):
                response = await self._transport.send(call, timeout)
            record.status = response.status
        with _unreachable(f"WATCH {call.path}", f"silent for {silence_s:g} s"):
            try:
                if response.status != 200:
                    raise _refusal(call, response, await response.read())
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if line:
                            yield line
            finally:
                response.close()

    async def _send(self, target: Target, call: Call, timeout_s: float) -> bytes:
        with self._recorded(target) as record:
            timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
            with _unreachable(call, f"no answer within {timeout_s:g} s"):
                async with await self._transport.send(call, timeout) as answer:
                    body = await answer.read()
            record.status = answer.status
        for warning in answer.headers.getall("Warning", ()):  # of the form: 299 - "text"
            log.warning(
                "warning of the API server", extra={"call": str(call), "detail": warning.split(" ", 2)[-1].strip('"')}
            )
        if not 200 <= answer.status < 300:
            raise _refusal(call, answer, body)
        return body

    @contextmanager
    def _recorded(self, target: Target) -> Iterator["_Status"]:
        """Report the request, also one that got no answer."""
        started_s, record = self._clock.monotonic_s(), _Status()
        try:
            yield record
        finally:
            # RBAC asks for "create" too where an apply makes the object.
            created = target.verb == "patch" and record.status == 201
            for made in (target, replace(target, verb="create")) if created else (target,):
                if self._on_request is not None:
                    seconds = self._clock.monotonic_s() - started_s
                    self._on_request(RequestRecord(**vars(made), status=record.status, duration_s=seconds))


@contextmanager
def _unreachable(request: object, no_answer: str) -> Iterator[None]:
    """Raise Unreachable for what aiohttp raises; ``no_answer`` is the text for a timeout."""
    try:
        yield
    except TimeoutError as error:
        raise Unreachable(f"{request}: {no_answer}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(f"{request}: {error}") from error


@dataclass
class _Status:
    status: int | None = None


def _refusal(call: Call, answer: aiohttp.ClientResponse, body: bytes) -> ApiError:
    return error_from_answer(answer.status, body, request=str(call), retry_after=answer.headers.get("Retry-After"))


def _yaml(body: object) -> bytes:
    """As JSON that is YAML, too: the API server reads an apply as YAML.

    YAML has no pairs of escapes for one character, and takes some characters escaped only. Half a character, which
    text from a log may end with, becomes U+FFFD.
    """
    text = _HALF.sub("\ufffd", json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
