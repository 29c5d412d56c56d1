"""The API server's verbs, with plain dict bodies and typed errors."""

import json
import logging
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import aiohttp
from pydantic_core import from_json

from .clock import SYSTEM_CLOCK, Clock
from .errors import (
    ApiError,
    Conflict,
    Gone,
    Invalid,
    NotFound,
    ServerFault,
    Throttled,
    Unreachable,
    error_from_answer,
    error_from_status,
)
from .resources import PODS, SERVICE_ACCOUNTS, Resource
from .transport import Answer, Transport, connect

log = logging.getLogger(__name__)

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete"]
"""A verb as RBAC names it."""

FieldValidation = Literal["Strict", "Warn", "Ignore"]
Propagation = Literal["Background", "Foreground", "Orphan"]

PAGE_LIMIT: Final = 500
REQUEST_TIMEOUT_S: Final = 30.0
READ_ATTEMPTS: Final = 4
READ_BACKOFF_S: Final = 0.2
WATCH_SILENCE_S: Final = 70.0  # bookmarks come about every 60 s: longer silence is a dead connection
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_APPLY: Final = "application/apply-patch+yaml"


@dataclass(frozen=True)
class RequestRecord:
    """One finished request, for metrics and for the test that RBAC grants no more and no less.

    ``status``  HTTP status, None when there was no answer
    """

    verb: Verb
    resource: Resource
    subresource: str | None
    namespace: str | None
    name: str | None
    status: int | None
    duration_s: float


@dataclass(frozen=True)
class Listing:
    """A whole collection as of ``resource_version``."""

    items: list[Object]
    resource_version: str


@dataclass(frozen=True)
class WatchEvent:
    """One change: ``type`` is ADDED, MODIFIED, DELETED or BOOKMARK (whose object has only a resourceVersion)."""

    type: str
    object: Object


@dataclass(frozen=True)
class BoundToken:
    """A service account's token; never to be logged."""

    token: str
    expires_at: datetime

    def __repr__(self) -> str:
        return f"BoundToken(expires_at={self.expires_at.isoformat()})"


class Kube:
    """Client of one API server.

    Every request has a timeout (``request_timeout_s``, or ``timeout_s`` of the call). Reads that were answered with
    429 or 5xx are tried again within it; writes never are: an unanswered write may have happened, so the caller reads
    first.

    Raises, from every method, the tree in :mod:`pointsman.kube.errors`.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        field_manager: str = "pointsman",
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        on_request: Callable[[RequestRecord], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._transport = transport
        self._field_manager = field_manager
        self._request_timeout_s = request_timeout_s
        self._on_request = on_request
        self._clock = clock

    @classmethod
    async def connect(
        cls,
        kubeconfig: Path | str | None = None,
        *,
        context: str | None = None,
        field_manager: str = "pointsman",
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        on_request: Callable[[RequestRecord], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """A client of the cluster found as :func:`pointsman.kube.transport.connect` says; no request is made yet.

        ``field_manager`` owns what is applied and names us in the API server's logs.

        Raises NotConfigured.
        """
        transport = await connect(kubeconfig, context, user_agent=field_manager, clock=clock)
        return cls(
            transport,
            field_manager=field_manager,
            request_timeout_s=request_timeout_s,
            on_request=on_request,
            clock=clock,
        )

    async def close(self) -> None:
        """Close the connections; open watches end."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def server(self) -> str:
        """Base URL of the API server."""
        return self._transport.server

    # --- reads ---

    async def get(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        timeout_s: float | None = None,
    ) -> Object:
        """The object as it is now. Raises NotFound."""
        answer = await self._read(
            "get", resource, namespace, name, subresource=subresource, query={}, timeout_s=timeout_s
        )
        return _object(answer)

    async def find(
        self, resource: Resource, name: str, namespace: str | None = None, *, timeout_s: float | None = None
    ) -> Object | None:
        """The object as it is now, or None when there is none (or its kind is not installed)."""
        try:
            return await self.get(resource, name, namespace, timeout_s=timeout_s)
        except NotFound:
            return None

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = PAGE_LIMIT,
        timeout_s: float | None = None,
    ) -> Listing:
        """All objects, read in pages of ``limit``, consistent as of one resourceVersion.

        ``namespace`` None is all namespaces. ``timeout_s`` bounds each page. An expired continue token starts over
        once.
        """
        selectors = {"label_selector": label_selector, "field_selector": field_selector}
        for last_try in (False, True):
            items: list[Object] = []
            token: str | None = None
            try:
                while True:
                    body = await self.list_page(
                        resource, namespace, **selectors, limit=limit, continue_token=token, timeout_s=timeout_s
                    )
                    page: Object = from_json(body)
                    items.extend(page.get("items") or ())
                    token = page["metadata"].get("continue")
                    if not token:
                        break
            except Gone:
                if last_try:
                    raise
                continue
            break
        for item in items:  # a list names its items' kind only once
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        return Listing(items, page["metadata"]["resourceVersion"])

    async def list_page(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = PAGE_LIMIT,
        continue_token: str | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """One page of a list as the API server sent it, for those who parse it into their own models.

        ``continue_token`` is ``metadata.continue`` of the page before. Raises Gone when it has expired.
        """
        query = _selectors(label_selector, field_selector) | {"limit": str(limit)}
        if continue_token:
            query["continue"] = continue_token
        answer = await self._read("list", resource, namespace, None, query=query, timeout_s=timeout_s)
        return answer.body

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_s: float = 300.0,
        silence_s: float = WATCH_SILENCE_S,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Changes after ``resource_version``, bookmarks among them, until the API server ends the watch
        (``timeout_s``).

        Raises Gone when the version is too old, Unreachable when the connection is cut or silent for ``silence_s``.
        """
        lines = self.watch_lines(
            resource,
            namespace,
            resource_version=resource_version,
            label_selector=label_selector,
            field_selector=field_selector,
            timeout_s=timeout_s,
            silence_s=silence_s,
        )
        async with aclosing(lines):
            async for line in lines:
                event: Object = from_json(line)
                if event["type"] == "ERROR":
                    raise error_from_status(event["object"])
                yield WatchEvent(event["type"], event["object"])

    async def watch_lines(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_s: float = 300.0,
        silence_s: float = WATCH_SILENCE_S,
    ) -> AsyncGenerator[bytes, None]:
        """As :meth:`watch`, but each event (ERROR too) as the line of JSON the API server sent. A line cut short is
        dropped.
        """
        query = _selectors(label_selector, field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout_s))),
        }
        path = resource.path(namespace)
        started_s = self._clock.monotonic_s()
        status: int | None = None
        try:
            response = await self._transport.stream(path, query=query, read_timeout_s=silence_s)
            status = response.status
        finally:
            self._record("watch", resource, None, namespace, None, status, started_s)
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

    async def served(self, resource: Resource) -> bool:
        """Whether the API server knows the kind: for kinds whose CRD is optional."""
        try:
            body = await self.get_raw(resource.group_path)
        except NotFound:
            return False
        return any(entry["name"] == resource.plural for entry in from_json(body)["resources"])

    async def pod_log(
        self,
        name: str,
        namespace: str,
        *,
        container: str | None = None,
        tail_lines: int | None = None,
        previous: bool = False,
        timeout_s: float | None = None,
    ) -> str:
        """The last ``tail_lines`` lines a container printed; ``previous`` is the run before its last restart."""
        query = {"previous": "true"} if previous else {}
        if container is not None:
            query["container"] = container
        if tail_lines is not None:
            query["tailLines"] = str(tail_lines)
        answer = await self._read("get", PODS, namespace, name, subresource="log", query=query, timeout_s=timeout_s)
        return answer.body.decode("utf-8", "replace")

    async def get_raw(self, path: str, *, timeout_s: float | None = None) -> bytes:
        """Body of a path that is no resource: ``/readyz``, ``/version``, ``/apis/apps/v1``."""
        answer = await self._transport.request(
            "GET", path, query={}, timeout_s=timeout_s if timeout_s is not None else self._request_timeout_s
        )
        return _checked(answer, f"GET {path}").body

    # --- writes ---

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        field_validation: FieldValidation | None = None,
        timeout_s: float | None = None,
    ) -> Object:
        """Create an object; ``namespace`` may come from its metadata. With ``subresource`` post to ``name``'s
        (``eviction``).

        Raises AlreadyExists, Invalid, Forbidden.
        """
        namespace = _namespace(resource, body, namespace)
        answer = await self._write(
            "create",
            resource,
            namespace,
            name,
            subresource=subresource,
            body=body if subresource else _typed(resource, body),
            query=self._write_query(dry_run, field_validation),
            timeout_s=timeout_s,
        )
        return _object(answer)

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        force: bool = True,
        field_manager: str | None = None,
        dry_run: bool = False,
        field_validation: FieldValidation | None = None,
        timeout_s: float | None = None,
    ) -> Object:
        """Server-side apply: make the object have these fields, and own them; what we owned and is absent now is
        removed.

        ``force`` takes fields from other managers. A ``resourceVersion`` or ``uid`` in the metadata is a precondition.

        Raises Conflict (another manager's field without ``force``, or the precondition), Invalid, Forbidden.
        """
        metadata = body["metadata"]
        namespace = _namespace(resource, body, namespace)
        query = self._write_query(dry_run, field_validation, field_manager) | {"force": "true" if force else "false"}
        answer = await self._write(
            "patch",
            resource,
            namespace,
            metadata["name"],
            subresource=subresource,
            body=_typed(resource, body),
            query=query,
            content_type=_APPLY,
            timeout_s=timeout_s,
        )
        return _object(answer)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        subresource: str | None = None,
        resource_version: str | None = None,
        uid: str | None = None,
        dry_run: bool = False,
        field_validation: FieldValidation | None = None,
        timeout_s: float | None = None,
    ) -> Object:
        """JSON merge patch (a mapping) or JSON patch (a sequence of operations).

        ``resource_version`` and ``uid`` are preconditions: the object must still be that one.

        Raises NotFound, Conflict (a precondition), Invalid.
        """
        preconditions = {"resourceVersion": resource_version, "uid": uid}
        expected = {field: value for field, value in preconditions.items() if value is not None}
        if isinstance(body, Mapping):
            patch: Any = {**body, "metadata": {**body.get("metadata", {}), **expected}} if expected else body
            content_type = _MERGE
        else:
            # Not "test", which fails as Invalid: writing another version than the stored one is a Conflict.
            checks = [
                {"op": "replace", "path": f"/metadata/{field}", "value": value} for field, value in expected.items()
            ]
            patch = [*checks, *body]
            content_type = _JSON_PATCH
        try:
            answer = await self._write(
                "patch",
                resource,
                namespace,
                name,
                subresource=subresource,
                body=patch,
                query=self._write_query(dry_run, field_validation),
                content_type=content_type,
                timeout_s=timeout_s,
            )
        except Invalid as error:
            # Another uid is a precondition that failed; to the API server it is a field that cannot be changed.
            if uid is not None and {cause.field for cause in error.causes} == {"metadata.uid"}:
                raise Conflict(error.message, status=409, reason="Conflict", causes=error.causes) from error
            raise
        return _object(answer)

    async def replace(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        dry_run: bool = False,
        field_validation: FieldValidation | None = None,
        timeout_s: float | None = None,
    ) -> Object:
        """PUT the whole object; the ``resourceVersion`` in its metadata is the precondition.

        Raises NotFound, Conflict, Invalid.
        """
        answer = await self._write(
            "update",
            resource,
            _namespace(resource, body, namespace),
            body["metadata"]["name"],
            subresource=subresource,
            body=_typed(resource, body),
            query=self._write_query(dry_run, field_validation),
            timeout_s=timeout_s,
        )
        return _object(answer)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_s: int | None = None,
        propagation: Propagation | None = None,
        dry_run: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Ask for the object's deletion; finalizers and the grace period may keep it for a while.

        ``uid`` and ``resource_version`` are preconditions: exactly that object, in that state.

        Raises NotFound, Conflict (a precondition).
        """
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: Object = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {field: value for field, value in preconditions.items() if value is not None},
        }
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        if propagation is not None:
            options["propagationPolicy"] = propagation
        await self._write(
            "delete",
            resource,
            namespace,
            name,
            body=options,
            query={"dryRun": "All"} if dry_run else {},
            timeout_s=timeout_s,
        )

    async def service_account_token(
        self, name: str, namespace: str, *, audiences: Sequence[str] = (), expires_s: int = 3600
    ) -> BoundToken:
        """A bound token of a service account (TokenRequest). Raises NotFound when there is no such account."""
        spec: Object = {"expirationSeconds": expires_s}
        if audiences:
            spec["audiences"] = [*audiences]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = await self.create(SERVICE_ACCOUNTS, body, namespace, name=name, subresource="token")
        status = answer["status"]
        return BoundToken(status["token"], datetime.fromisoformat(status["expirationTimestamp"]))

    # --- one request ---

    async def _read(
        self,
        verb: Verb,
        resource: Resource,
        namespace: str | None,
        name: str | None,
        *,
        query: Mapping[str, str],
        subresource: str | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        deadline_s = self._clock.monotonic_s() + (timeout_s if timeout_s is not None else self._request_timeout_s)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._request(
                    verb,
                    "GET",
                    resource,
                    namespace,
                    name,
                    subresource=subresource,
                    query=query,
                    timeout_s=deadline_s - self._clock.monotonic_s(),
                )
            except (Throttled, ServerFault) as error:
                backoff_s = READ_BACKOFF_S * 2**attempt * random.uniform(0.5, 1.0)
                pause_s = error.retry_after_s if error.retry_after_s is not None else backoff_s
                if attempt == READ_ATTEMPTS or self._clock.monotonic_s() + pause_s >= deadline_s:
                    raise
                log.debug("%s %s: %s; trying again in %.1f s", verb, resource, error, pause_s)
                await self._clock.sleep(pause_s)

    async def _write(
        self,
        verb: Verb,
        resource: Resource,
        namespace: str | None,
        name: str | None,
        *,
        body: Any,
        query: Mapping[str, str],
        subresource: str | None = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
    ) -> Answer:
        return await self._request(
            verb,
            {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}[verb],
            resource,
            namespace,
            name,
            subresource=subresource,
            query=query,
            body=json.dumps(body, separators=(",", ":"), allow_nan=False).encode(),
            content_type=content_type,
            timeout_s=timeout_s if timeout_s is not None else self._request_timeout_s,
        )

    async def _request(
        self,
        verb: Verb,
        method: str,
        resource: Resource,
        namespace: str | None,
        name: str | None,
        *,
        subresource: str | None,
        query: Mapping[str, str],
        timeout_s: float,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        path = resource.path(namespace, name, subresource)
        started_s = self._clock.monotonic_s()
        status: int | None = None
        try:
            answer = await self._transport.request(
                method, path, query=query, body=body, content_type=content_type, timeout_s=timeout_s
            )
            status = answer.status
        finally:
            self._record(verb, resource, subresource, namespace, name, status, started_s)
        if verb == "patch" and status == 201:
            # RBAC asks for "create" too where an apply makes the object.
            self._record("create", resource, subresource, namespace, name, status, started_s)
        for warning in answer.warnings:
            log.warning("%s %s: %s", method, path, warning)
        return _checked(answer, f"{method} {path}")

    def _record(
        self,
        verb: Verb,
        resource: Resource,
        subresource: str | None,
        namespace: str | None,
        name: str | None,
        status: int | None,
        started_s: float,
    ) -> None:
        if self._on_request is not None:
            duration_s = self._clock.monotonic_s() - started_s
            self._on_request(RequestRecord(verb, resource, subresource, namespace, name, status, duration_s))

    def _write_query(
        self, dry_run: bool, field_validation: FieldValidation | None, field_manager: str | None = None
    ) -> dict[str, str]:
        query = {"fieldManager": field_manager or self._field_manager}
        if dry_run:
            query["dryRun"] = "All"
        if field_validation is not None:
            query["fieldValidation"] = field_validation
        return query


def _selectors(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in selectors.items() if value}


def _namespace(resource: Resource, body: Mapping[str, Any], namespace: str | None) -> str | None:
    written: str | None = (body.get("metadata") or {}).get("namespace")
    if namespace is None:
        return written
    if written is not None and written != namespace:
        raise ValueError(f"{resource}: metadata.namespace is {written!r}, asked for {namespace!r}")
    return namespace


def _typed(resource: Resource, body: Mapping[str, Any]) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _object(answer: Answer) -> Object:
    decoded: Object = from_json(answer.body)
    return decoded


def _checked(answer: Answer, request: str) -> Answer:
    if 200 <= answer.status < 300:
        return answer
    raise error_from_answer(answer.status, answer.body, request=request, retry_after=answer.retry_after)


__all__ = [
    "PAGE_LIMIT",
    "ApiError",
    "BoundToken",
    "FieldValidation",
    "Kube",
    "Listing",
    "Object",
    "Propagation",
    "RequestRecord",
    "Verb",
    "WatchEvent",
]
