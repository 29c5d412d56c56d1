"""One request to the API server: its path and timeout, its record, its answer checked; reads are tried again."""

import json
import logging
import random
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import aiohttp

from pointsman.kube.errors import ServerFault, Throttled, Unreachable, error_from_answer
from pointsman.kube.resources import Resource
from pointsman.kube.transport import Answer, Transport
from pointsman.process.clock import Clock

log = logging.getLogger(__name__)

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete"]
"""A verb as RBAC names it."""

READ_ATTEMPTS: Final = 4
READ_BACKOFF_S: Final = 0.2
JSON: Final = "application/json"
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
        self,
        transport: Transport,
        *,
        timeout_s: float,
        on_request: Callable[[RequestRecord], None] | None,
        clock: Clock,
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
        attempt = 0
        while True:
            attempt += 1
            try:
                answer = await self._send("GET", target, query, timeout_s=deadline_s - self._clock.monotonic_s())
                return answer.body
            except (Throttled, ServerFault) as error:
                backoff_s = READ_BACKOFF_S * 2**attempt * random.uniform(0.5, 1.0)
                pause_s = error.retry_after_s if error.retry_after_s is not None else backoff_s
                if attempt == READ_ATTEMPTS or self._clock.monotonic_s() + pause_s >= deadline_s:
                    raise
                log.debug("%s %s: %s; trying again in %.1f s", target.verb, target.resource, error, pause_s)
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
        answer = await self._send(
            _METHODS[target.verb],
            target,
            query,
            body=_encoded(body),
            content_type=content_type,
            timeout_s=self._timeout_s if timeout_s is None else timeout_s,
        )
        return answer.body

    async def watch(self, target: Target, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        """The lines of a stream. Raises Unreachable when it is cut or silent for ``silence_s``."""
        path = target.path
        started_s = self._clock.monotonic_s()
        status: int | None = None
        try:
            response = await self._transport.stream(path, query=query, read_timeout_s=silence_s)
            status = response.status
        finally:
            self._record(target, status, started_s)
        try:
            if status != 200:
                body = await response.read()
                raise error_from_answer(
                    response.status, body, request=f"WATCH {path}", retry_after=response.headers.get("Retry-After")
                )
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line:
                        yield line
        except TimeoutError as error:
            raise Unreachable(f"WATCH {path}: silent for {silence_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"WATCH {path}: {error}") from error
        finally:
            response.close()

    async def get_raw(self, path: str, *, timeout_s: float | None = None) -> bytes:
        """Body of a path that is no resource."""
        answer = await self._transport.request(
            "GET", path, query={}, timeout_s=self._timeout_s if timeout_s is None else timeout_s
        )
        return _checked(answer, f"GET {path}").body

    async def _send(
        self,
        method: str,
        target: Target,
        query: Mapping[str, str],
        *,
        timeout_s: float,
        body: bytes | None = None,
        content_type: str = JSON,
    ) -> Answer:
        path = target.path
        started_s = self._clock.monotonic_s()
        status: int | None = None
        try:
            answer = await self._transport.request(
                method, path, query=query, body=body, content_type=content_type, timeout_s=timeout_s
            )
            status = answer.status
        finally:
            self._record(target, status, started_s)
        if target.verb == "patch" and status == 201:
            # RBAC asks for "create" too where an apply makes the object.
            self._record(replace(target, verb="create"), status, started_s)
        for warning in answer.warnings:
            log.warning("%s %s: %s", method, path, warning)
        return _checked(answer, f"{method} {path}")

    def _record(self, target: Target, status: int | None, started_s: float) -> None:
        if self._on_request is not None:
            duration_s = self._clock.monotonic_s() - started_s
            self._on_request(RequestRecord(**vars(target), status=status, duration_s=duration_s))


def _checked(answer: Answer, request: str) -> Answer:
    if 200 <= answer.status < 300:
        return answer
    raise error_from_answer(answer.status, answer.body, request=request, retry_after=answer.retry_after)


def _encoded(body: object) -> bytes:
    """As JSON that is YAML, too: the API server reads an apply as YAML.

    YAML has no pairs of escapes for one character, and takes some characters escaped only. Half a character, which
    text from a log may end with, becomes U+FFFD.
    """
    text = _HALF.sub("\ufffd", json.dumps(body, separators=(",", ":"), allow_nan=False, ensure_ascii=False))
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
