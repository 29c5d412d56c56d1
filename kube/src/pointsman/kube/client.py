"""The API server's verbs, with plain dict bodies and typed errors."""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic_core import from_json

from pointsman.kube.errors import Conflict, Gone, Invalid, NotFound
from pointsman.kube.request import APPLY_PATCH, MERGE_PATCH, RequestRecord, Requests, Target, Verb
from pointsman.kube.resources import Resource
from pointsman.kube.transport import JSON, Transport, connect
from pointsman.process.clock import SYSTEM_CLOCK

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

FieldValidation = Literal["Strict", "Warn", "Ignore"]

PAGE_LIMIT: Final = 500
REQUEST_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class Listing:
    """A whole collection as of ``resource_version``."""

    items: list[Object]
    resource_version: str


class Kube:
    """Client of one API server.

    Every request has a timeout (``request_timeout_s``, or ``timeout_s`` of the call). Reads that were answered with
    429 or 5xx are tried again within it; writes never are: an unanswered write may have happened, so the caller reads
    first.

    Raises, from every method, the tree in :mod:`pointsman.kube.errors`.
    """

    def __init__(self, transport: Transport, requests: Requests, field_manager: str) -> None:
        """For :meth:`connect`."""
        self._transport = transport
        self._field_manager = field_manager
        self.requests: Final = requests
        """For a request that no method makes."""

    @classmethod
    async def connect(
        cls,
        kubeconfig: Path | str | None = None,
        *,
        field_manager: str = "pointsman",
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        on_request: Callable[[RequestRecord], None] | None = None,
    ) -> Self:
        """A client of the cluster found as :func:`pointsman.kube.transport.connect` says; no request is made yet.

        ``field_manager`` owns what is applied and names us in the API server's logs.

        Raises NotConfigured.
        """
        transport = await connect(kubeconfig, user_agent=field_manager)
        return cls(transport, Requests(transport, request_timeout_s, on_request, SYSTEM_CLOCK), field_manager)

    async def close(self) -> None:
        """Close the connections; open watches end."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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
        self, resource: Resource, name: str, namespace: str | None = None, *, timeout_s: float | None = None
    ) -> Object:
        """The object as it is now. Raises NotFound."""
        return _object(await self.requests.read(Target("get", resource, namespace, name), timeout_s=timeout_s))

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
    ) -> Listing:
        """All objects, read in pages of ``limit``, consistent as of one resourceVersion.

        ``namespace`` None is all namespaces. An expired continue token starts over once.
        """
        selectors = given(labelSelector=label_selector, fieldSelector=field_selector, limit=str(limit))
        for last_try in (False, True):
            items: list[Object] = []
            query = selectors
            try:
                while True:
                    page: Object = from_json(await self.list_page(resource, namespace, query))
                    items.extend(page.get("items") or ())
                    if not page["metadata"].get("continue"):
                        break
                    query = selectors | {"continue": page["metadata"]["continue"]}
            except Gone:
                if last_try:
                    raise
                continue
            break
        for item in items:  # a list names its items' kind only once
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        return Listing(items, page["metadata"]["resourceVersion"])

    async def list_page(self, resource: Resource, namespace: str | None, query: Mapping[str, str]) -> bytes:
        """One page of a list as the API server sent it, for those who parse it into their own models.

        ``query`` as in the API: ``limit``, ``continue`` … Raises Gone when the continue token has expired.
        """
        return await self.requests.read(Target("list", resource, namespace), query)

    def watch_lines(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Changes until the API server ends the watch. ``query`` as in the API: ``resourceVersion`` …

        Each event, bookmarks and ERROR too, is the line of JSON the API server sent. A line cut short is dropped.

        Raises Gone when the version is too old, Unreachable when the connection is cut or silent for ``silence_s``.
        """
        asked = {"watch": "true", "allowWatchBookmarks": "true", **query}
        return self.requests.watch(Target("watch", resource, namespace), asked, silence_s=silence_s)

    # --- writes ---

    async def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        field_validation: FieldValidation | None = None,
        timeout_s: float | None = None,
    ) -> Object:
        """Create an object; ``namespace`` may come from its metadata. With ``subresource`` post to ``name``'s
        (``eviction``).

        Raises AlreadyExists, Invalid, Forbidden.
        """
        target = Target("create", resource, _namespace(resource, body, namespace), name, subresource)
        written = body if subresource else _typed(resource, body)
        return await self._write(target, written, timeout_s=timeout_s, fieldValidation=field_validation)

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> Object:
        """Server-side apply: make the object have these fields, and own them, also those of other managers; what we
        owned and is absent now is removed.

        A ``resourceVersion`` or ``uid`` in the metadata is a precondition.

        Raises Conflict (the precondition), Invalid, Forbidden.
        """
        target = _target("patch", resource, body, namespace, subresource)
        query = given(force="true", fieldManager=field_manager, fieldValidation=field_validation)
        return await self._write(target, _typed(resource, body), APPLY_PATCH, **query)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
        resource_version: str | None = None,
        uid: str | None = None,
    ) -> Object:
        """JSON merge patch.

        ``resource_version`` and ``uid`` are preconditions: the object must still be that one.

        Raises NotFound, Conflict (a precondition), Invalid.
        """
        metadata = given(resourceVersion=resource_version, uid=uid)
        if metadata:
            body = {**body, "metadata": {**body.get("metadata", {}), **metadata}}
        target = Target("patch", resource, namespace, name, subresource)
        try:
            return await self._write(target, body, MERGE_PATCH)
        except Invalid as error:
            # Another uid is a precondition that failed; to the API server it is a field that cannot be changed.
            if uid is not None and {cause.field for cause in error.causes} == {"metadata.uid"}:
                raise Conflict(error.message, status=409, reason="Conflict", causes=error.causes) from error
            raise

    async def replace(self, resource: Resource, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Object:
        """PUT the whole object; the ``resourceVersion`` in its metadata is the precondition.

        Raises NotFound, Conflict, Invalid.
        """
        return await self._write(_target("update", resource, body), _typed(resource, body), timeout_s=timeout_s)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        grace_period_s: int | None = None,
    ) -> None:
        """Ask for the object's deletion; finalizers and the grace period may keep it for a while.

        ``uid`` is a precondition: exactly that object.

        Raises NotFound, Conflict (a precondition).
        """
        options = given(preconditions=given(uid=uid), gracePeriodSeconds=grace_period_s)
        typed = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        await self.requests.write(Target("delete", resource, namespace, name), typed)

    async def _write(
        self, target: Target, body: object, content_type: str = JSON, *, timeout_s: float | None = None, **query: Any
    ) -> Object:
        asked = {"fieldManager": self._field_manager, **given(**query)}
        return _object(await self.requests.write(target, body, asked, content_type=content_type, timeout_s=timeout_s))


def given(**fields: Any) -> dict[str, Any]:
    """The fields that are given."""
    return {name: value for name, value in fields.items() if value is not None}


def _namespace(resource: Resource, body: Mapping[str, Any], namespace: str | None) -> str | None:
    written: str | None = (body.get("metadata") or {}).get("namespace")
    if namespace is None:
        return written
    if written is not None and written != namespace:
        raise ValueError(f"{resource}: metadata.namespace is {written!r}, but the request is for {namespace!r}")
    return namespace


def _target(
    verb: Verb,
    resource: Resource,
    body: Mapping[str, Any],
    namespace: str | None = None,
    subresource: str | None = None,
) -> Target:
    """The object that ``body`` names."""
    return Target(verb, resource, _namespace(resource, body, namespace), body["metadata"]["name"], subresource)


def _typed(resource: Resource, body: Mapping[str, Any]) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _object(body: bytes) -> Object:
    decoded: Object = from_json(body)
    return decoded
