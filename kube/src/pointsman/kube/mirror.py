"""A local copy of a collection that always converges to what the API server has.

List in pages, then watch; when anything goes wrong, list again and replace, so that what was deleted unseen is swept
out. Shared by operator, gateway and planner.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Hashable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from pointsman.kube.client import PAGE_LIMIT, Kube, Object, given
from pointsman.kube.errors import Gone, KubeError, Unreachable, error_from_status
from pointsman.kube.objects import KubeObject, Metadata, Slim, unreadable_fields
from pointsman.kube.resources import Resource
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""``(namespace, name)``; the namespace of a cluster-scoped object is empty."""

WATCH_SILENCE_S: Final = 70.0  # bookmarks come about every 60 s: longer silence is a dead connection
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 30.0
# The API server ends a watch then; a different time for each spreads the reconnects of many.
WATCH_TIMEOUT_S: Final = (270.0, 330.0)
# A watch that ended sooner did not work, whatever it said.
WATCH_MIN_S: Final = 1.0


M = TypeVar("M")


@dataclass(frozen=True)
class Unreadable:
    """An object that the API server has and the model cannot read, for example because a newer version wrote it.

    ``why`` names the fields and what is wrong with them, never their contents.
    """

    metadata: Metadata
    why: str


@dataclass(frozen=True)
class MirrorStats:
    """For metrics.

    ``age_s``  since the API server last proved the copy current (list, event, bookmark); None before the first list
    ``unreadable`` objects that are left out because the model cannot read them
    """

    size: int
    age_s: float | None
    unreadable: int = 0


class Mirror(Generic[M]):
    """Copy of a resource's objects as slim frozen models (``model=Pod``), or as they are (``model=dict``).

    Usage: make it, start ``run()`` as a task, wait for ``synced``. ``run()`` ends only by cancellation. Reads are of
    memory and see one moment.

    ``on_change(old, new)`` is called in the event loop for each change, after the copy has it: ``(None, new)`` added,
    ``(old, new)`` changed, ``(old, None)`` gone. An object that was replaced by another of the same name is first
    gone, then added. After a cut, changes in between are merged into one. It must not block; an exception in it is
    logged.

    An object that the model cannot read is left out as if it were not there, until it can be read: it blocks no other.
    :meth:`unreadable` has it, and ``on_unreadable`` is called once for each and each reason.

    ``index`` gives the key by which :meth:`by` finds an object (its owner, its node …), None for none.
    """

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        model: type[M],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        index: Callable[[M], Hashable | None] | None = None,
        on_change: Callable[[M | None, M | None], None] | None = None,
        on_unreadable: Callable[[Unreadable], None] | None = None,
        page_limit: int = PAGE_LIMIT,
        silence_s: float = WATCH_SILENCE_S,
        watch_timeout_s: tuple[float, float] = WATCH_TIMEOUT_S,
        backoff_first_s: float = BACKOFF_FIRST_S,
        backoff_max_s: float = BACKOFF_MAX_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.synced: Final = asyncio.Event()
        """Set once the first list is in; never cleared (see ``age_s`` for how old the copy is)."""
        self.resource: Final = resource
        self._kube = kube
        self._namespace = namespace
        self._selectors = given(labelSelector=label_selector, fieldSelector=field_selector)
        self._index = index
        self._on_change = on_change
        self._on_unreadable = on_unreadable
        self._page_limit = page_limit
        self._silence_s = silence_s
        self._watch_timeout_s = watch_timeout_s
        self._backoff_first_s = backoff_first_s
        self._backoff_max_s = backoff_max_s
        self._clock = clock
        self._model = model
        self._item: TypeAdapter[M] = TypeAdapter(model)
        # Where the model cannot read an object, it is a dict: in a page or event the others are read all the same.
        # mypy knows no types made at run time.
        item: Any = Annotated[model | dict[str, Any], Field(union_mode="left_to_right")]
        self._page: TypeAdapter[_Page[M | Object]] = TypeAdapter(_Page[item])
        self._event: TypeAdapter[_Changed[M | Object] | _Other] = TypeAdapter(
            Annotated[_Changed[item] | _Other, Field(discriminator="type")]
        )
        self._objects: dict[Key, M] = {}
        self._unreadable: dict[Key, Unreadable] = {}
        self._by: dict[Hashable, dict[Key, M]] = {}
        self._resource_version = ""
        self._fresh_at_s: float | None = None

    # --- reads ---

    def get(self, name: str, namespace: str = "") -> M | None:
        """The object, None when there is none."""
        return self._objects.get((namespace, name))

    def objects(self) -> tuple[M, ...]:
        """All objects, an immutable snapshot."""
        return tuple(self._objects.values())

    def by(self, key: Hashable) -> tuple[M, ...]:
        """The objects whose index key is ``key``, an immutable snapshot."""
        return tuple(self._by.get(key, {}).values())

    def unreadable(self) -> tuple[Unreadable, ...]:
        """The objects that the model cannot read, an immutable snapshot."""
        return tuple(self._unreadable.values())

    def why_unreadable(self, name: str, namespace: str = "") -> str | None:
        """Why the model cannot read the object of that name; None: it can, or there is no such object."""
        found = self._unreadable.get((namespace, name))
        return None if found is None else found.why

    @property
    def size(self) -> int:
        """Number of objects. (No ``__len__``: an empty mirror must not be falsy.)"""
        return len(self._objects)

    @property
    def age_s(self) -> float | None:
        """Seconds since the API server last proved the copy current; None before the first list.

        Bookmarks come about once a minute, so up to ~70 s is well.
        """
        return None if self._fresh_at_s is None else self._clock.monotonic_s() - self._fresh_at_s

    def stats(self) -> MirrorStats:
        """Figures for metrics."""
        return MirrorStats(self.size, self.age_s, len(self._unreadable))

    # --- following the API server ---

    async def run(self) -> None:
        """Follow the API server until cancelled; no error ends it."""
        failures_in_a_row = 0
        while True:
            began_s = self._clock.monotonic_s()
            error: Exception
            try:
                await self._list()
                while True:
                    watch_began_s = self._clock.monotonic_s()
                    await self._watch()
                    if self._clock.monotonic_s() - watch_began_s < WATCH_MIN_S:
                        raise Unreachable("the watch ended at once")
            except KubeError as refusal:
                error = refusal
            except ValidationError as unreadable:
                error = _NoAnswer(f"{unreadable.error_count()} fields cannot be read: {unreadable_fields(unreadable)}")
            except Exception as bug:
                # As loud as can be, but a mirror that died unseen would serve stale objects for ever.
                log.exception("mirror interrupted by an internal error", extra={"resource": str(self.resource)})
                error = bug
            if self._clock.monotonic_s() - began_s >= self._backoff_max_s:
                failures_in_a_row = 0  # it went well for long enough
            failures_in_a_row += 1
            # Expired history is normal after a long cut: no reason to wait. Twice in a row it is not.
            pause_s = 0.0 if isinstance(error, Gone) and failures_in_a_row == 1 else self._back_off_s(failures_in_a_row)
            log.warning(
                "mirror interrupted, listing again",
                extra={"resource": str(self.resource), "retry_in_s": round(pause_s, 1), "why": str(error)},
            )
            await self._clock.sleep(pause_s)

    def _back_off_s(self, failures_in_a_row: int) -> float:
        longest_s = self._backoff_first_s * 2.0 ** min(failures_in_a_row - 1, 32)
        # Full jitter above the half: many mirrors cut at once do not list at once.
        return min(self._backoff_max_s, longest_s) * random.uniform(0.5, 1.0)

    async def _list(self) -> None:
        found: dict[Key, M | Unreadable] = {}
        query = {**self._selectors, "limit": str(self._page_limit)}
        while True:
            page = self._page.validate_json(await self._kube.list_page(self.resource, self._namespace, query))
            for item in map(self._read, page.items):
                found[_identity(item).key] = item
            if not page.metadata.continue_token:
                break
            query["continue"] = page.metadata.continue_token
        self._resource_version = page.metadata.resource_version
        gone: dict[Key, M | Unreadable | None] = dict.fromkeys(
            key for key in (*self._objects, *self._unreadable) if key not in found
        )
        self._follow(gone | found)
        self._fresh_at_s = self._clock.monotonic_s()
        self.synced.set()

    async def _watch(self) -> None:
        timeout_s = max(1, round(random.uniform(*self._watch_timeout_s)))
        query = {**self._selectors, "resourceVersion": self._resource_version, "timeoutSeconds": str(timeout_s)}
        lines = self._kube.watch_lines(self.resource, self._namespace, query, silence_s=self._silence_s)
        async with aclosing(lines):
            async for line in lines:
                event = self._event.validate_json(line)
                if event.type == "ERROR":
                    raise error_from_status(event.object)
                if isinstance(event, _Other):
                    self._resource_version = event.object["metadata"]["resourceVersion"]
                else:
                    item = self._read(event.object)
                    key, _, self._resource_version = _identity(item)
                    self._follow({key: None if event.type == "DELETED" else item})
                self._fresh_at_s = self._clock.monotonic_s()

    def _read(self, item: M | Object) -> M | Unreadable:
        """An object, or why the model cannot read it. Raises ValidationError for what has no metadata."""
        if not isinstance(item, dict):
            return item
        if self._model is dict:  # a list names its items' kind only once
            return cast("M", {"apiVersion": self.resource.api_version, "kind": self.resource.kind, **item})
        try:
            return self._item.validate_json(to_json(item))
        except ValidationError as error:
            return Unreadable(KubeObject.model_validate(item).metadata, unreadable_fields(error))

    def _follow(self, items: Mapping[Key, M | Unreadable | None]) -> None:
        """Have the copy follow, None for what is gone. Listeners hear of it when the copy has all of it."""
        changes: list[tuple[M | None, M | None]] = []
        for key, item in items.items():
            old, new = self._objects.get(key), None if isinstance(item, Unreadable) else item
            if isinstance(item, Unreadable):
                self._leave_out(key, item)
            else:
                self._unreadable.pop(key, None)
            if old is not None and new is not None and _identity(old) == _identity(new):
                continue  # unchanged: keep the object, and tell nobody
            if new is not None:
                self._objects[key] = new
            else:
                self._objects.pop(key, None)
            self._refile(key, old, new)
            changes += _changes(old, new)
        for before, after in changes:
            self._tell(self._on_change, before, after)

    def _leave_out(self, key: Key, found: Unreadable) -> None:
        """Tell of an object that the model cannot read, unless that was told already."""
        before, self._unreadable[key] = self._unreadable.get(key), found
        if before is not None and (before.metadata.uid, before.why) == (found.metadata.uid, found.why):
            return
        log.warning(
            "object not readable, it is ignored until it can be read",
            extra={"resource": str(self.resource), "object": "/".join(filter(None, key)), "why": found.why},
        )
        self._tell(self._on_unreadable, found)

    def _refile(self, key: Key, old: M | None, new: M | None) -> None:
        """Keep the index; an object whose index key stays keeps its place in the order."""
        before = None if self._index is None or old is None else self._index(old)
        after = None if self._index is None or new is None else self._index(new)
        if before is not None and before != after:
            entries = self._by[before]
            del entries[key]
            if not entries:
                del self._by[before]
        if after is not None and new is not None:
            self._by.setdefault(after, {})[key] = new

    def _tell(self, listener: Callable[..., None] | None, *what: object) -> None:
        if listener is None:
            return
        try:
            listener(*what)
        except Exception:
            log.exception("listener of a mirror failed", extra={"resource": str(self.resource)})


class _NoAnswer(Exception):
    """What the API server sent is neither a list nor an event."""


class _PageMetadata(Slim):
    resource_version: str
    continue_token: str | None = Field(default=None, alias="continue")


class _Page(Slim, Generic[M]):
    metadata: _PageMetadata
    items: list[M]


class _Changed(Slim, Generic[M]):
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: M


class _Other(Slim):
    type: Literal["BOOKMARK", "ERROR"]
    object: dict[str, Any]


class _Identity(NamedTuple):
    """Which object, and which state of it."""

    key: Key
    uid: str
    resource_version: str


def _identity(item: Any) -> _Identity:
    if isinstance(item, dict):
        metadata = item["metadata"]
        key = (metadata.get("namespace") or "", metadata["name"])
        return _Identity(key, metadata["uid"], metadata["resourceVersion"])
    slim: Metadata = item.metadata
    return _Identity((slim.namespace or "", slim.name), slim.uid, slim.resource_version)


def _changes(old: M | None, new: M | None) -> list[tuple[M | None, M | None]]:
    """What to tell of an object: one that was replaced by another of its name is first gone, then added."""
    if old is not None and new is not None and _identity(old).uid != _identity(new).uid:
        return [(old, None), (None, new)]
    return [] if old is None and new is None else [(old, new)]
