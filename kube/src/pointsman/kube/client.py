"""The API server's verbs, with plain dict bodies and typed errors."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from pydantic_core import from_json

from pointsman.kube.errors import ApiError, Conflict, Gone, Invalid, NotFound, error_from_status
from pointsman.kube.request import RequestRecord, Requests, Target
from pointsman.kube.resources import SERVICE_ACCOUNTS, Resource
from pointsman.kube.transport import Transport, connect
from pointsman.process.clock import SYSTEM_CLOCK, Clock

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

FieldValidation = Literal["Strict", "Warn", "Ignore"]
Propagation = Literal["Background", "Foreground", "Orphan"]

PAGE_LIMIT: Final = 500
REQUEST_TIMEOUT_S: Final = 30.0
WATCH_SILENCE_S: Final = 70.0  # bookmarks come about every 60 s: longer silence is a dead connection
_MERGE: Final = "application/merge-patch+json"
_JSON_PATCH: Final = "application/json-patch+json"
_APPLY: Final = "application/apply-patch+yaml"


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
        self._requests = Requests(transport, timeout_s=request_timeout_s, on_request=on_request, clock=clock)

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

    @property
    def namespace(self) -> str:
        """Of who gives none: the kubeconfig context's, or the pod's own, as for kubectl."""
        return self._transport.namespace

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
        return _object(
            await self._requests.read(Target("get", resource, namespace, name, subresource), timeout_s=timeout_s)
        )

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
        return await self._requests.read(Target("list", resource, namespace), query, timeout_s=timeout_s)

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
        lines = self._requests.watch(Target("watch", resource, namespace), query, silence_s=silence_s)
        async with aclosing(lines):
            async for line in lines:
                yield line

    async def served(self, resource: Resource) -> bool:
        """Whether the API server knows the kind: for kinds whose CRD is optional."""
        try:
            body = await self.get_raw(resource.group_path)
        except NotFound:
            return False
        return any(entry["name"] == resource.plural for entry in from_json(body)["resources"])

    async def get_raw(self, path: str, *, timeout_s: float | None = None) -> bytes:
        """Body of a path that is no resource: ``/readyz``, ``/version``, ``/apis/apps/v1``."""
        return await self._requests.get_raw(path, timeout_s=timeout_s)

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
        target = Target("create", resource, _namespace(resource, body, namespace), name, subresource)
        query = self._write_query(dry_run, field_validation)
        written = body if subresource else _typed(resource, body)
        return _object(await self._requests.write(target, written, query, timeout_s=timeout_s))

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
        name = body["metadata"]["name"]
        target = Target("patch", resource, _namespace(resource, body, namespace), name, subresource)
        query = self._write_query(dry_run, field_validation, field_manager) | {"force": "true" if force else "false"}
        written = _typed(resource, body)
        return _object(await self._requests.write(target, written, query, content_type=_APPLY, timeout_s=timeout_s))

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
        target = Target("patch", resource, namespace, name, subresource)
        query = self._write_query(dry_run, field_validation)
        try:
            return _object(
                await self._requests.write(target, patch, query, content_type=content_type, timeout_s=timeout_s)
            )
        except Invalid as error:
            # Another uid is a precondition that failed; to the API server it is a field that cannot be changed.
            if uid is not None and {cause.field for cause in error.causes} == {"metadata.uid"}:
                raise Conflict(error.message, status=409, reason="Conflict", causes=error.causes) from error
            raise

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
        name = body["metadata"]["name"]
        target = Target("update", resource, _namespace(resource, body, namespace), name, subresource)
        query = self._write_query(dry_run, field_validation)
        return _object(await self._requests.write(target, _typed(resource, body), query, timeout_s=timeout_s))

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
        query = {"dryRun": "All"} if dry_run else {}
        await self._requests.write(Target("delete", resource, namespace, name), options, query, timeout_s=timeout_s)

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


def _object(body: bytes) -> Object:
    decoded: Object = from_json(body)
    return decoded


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
    "WatchEvent",
]
