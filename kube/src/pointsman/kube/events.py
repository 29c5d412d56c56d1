"""Kubernetes Events (events.k8s.io/v1): what a user sees under ``kubectl describe``. Never in the way of the work."""

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from pointsman.api.credentials import mask_credentials
from pointsman.kube.client import Kube, Object
from pointsman.kube.errors import AlreadyExists, KubeError, NotFound
from pointsman.kube.objects import KubeObject, micro_time
from pointsman.kube.resources import EVENTS, Resource
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]

NOTE_LIMIT: Final = 1024  # bytes, the API server's limit
REASON_LIMIT: Final = 128
BURST: Final = 25  # new Events per object and reason …
REFILL_S: Final = 12.0  # … and one more each 12 s
SERIES_INTERVAL_S: Final = 60.0  # a repeated Event is counted here and written at most this often
REMEMBERED: Final = 2000


class Reference(NamedTuple):
    """The object an Event is about (``regarding``)."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, resource: Resource, item: KubeObject | Mapping[str, Any]) -> "Reference":
        """Reference to an object, slim or as JSON."""
        if isinstance(item, KubeObject):
            slim = item.metadata
            return cls(resource.api_version, resource.kind, slim.namespace, slim.name, slim.uid)
        raw = item["metadata"]
        return cls(resource.api_version, resource.kind, raw.get("namespace") or "", raw["name"], raw["uid"])


class _Key(NamedTuple):
    regarding: Reference
    type: EventType
    reason: str
    action: str
    note: str


def _fields(key: _Key) -> dict[str, str]:
    return {"reason": key.reason, "object": f"{key.regarding.namespace}/{key.regarding.name}"}


@dataclass
class _Series:
    first_seen: datetime
    last_seen: datetime
    count: int = 1
    written_count: int = 0
    written_at_s: float | None = None
    name: str = ""

    def counted(self) -> Object:
        """As in an Event."""
        return {"series": {"count": self.count, "lastObservedTime": micro_time(self.last_seen)}}


class _Buckets:
    """Token bucket per object and reason, the least recently used forgotten.

    Per reason too: the many small steps of a busy minute must not use up the place of the warning it ends with.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens: OrderedDict[tuple[Reference, str], tuple[float, float]] = OrderedDict()  # and as of when

    def take(self, regarding: Reference, reason: str) -> bool:
        now_s, key = self._clock.monotonic_s(), (regarding, reason)
        tokens, filled_at_s = self._tokens.pop(key, (float(BURST), now_s))
        tokens = min(float(BURST), tokens + (now_s - filled_at_s) / REFILL_S)
        self._tokens[key] = (tokens - 1 if tokens >= 1 else tokens, now_s)
        if len(self._tokens) > REMEMBERED:
            self._tokens.popitem(last=False)
        return tokens >= 1


class EventRecorder:
    """Records Events without waiting and without raising; ``run()`` writes them.

    The same Event again is a series: counted, and written at most once a minute. New Events are limited per object
    and reason (25, then 5 a minute), so that an object that flaps cannot flood the API server; what is left out is
    counted in ``dropped``.
    """

    def __init__(self, kube: Kube, *, controller: str, instance: str, clock: Clock = SYSTEM_CLOCK) -> None:
        """``controller`` is who reports ("pointsman.dev/operator"), ``instance`` which of its replicas (the pod's
        name).
        """
        self.dropped = 0
        """Events left out by the rate limit or because the API server refused them."""
        self._kube = kube
        self._controller = controller
        self._instance = instance
        self._clock = clock
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        self._buckets = _Buckets(clock)
        self._dirty: dict[_Key, None] = {}
        self._wake = asyncio.Event()
        self._timers: set[_Key] = set()

    def record(
        self, regarding: Reference, reason: str, note: str, *, warning: bool = False, action: str | None = None
    ) -> None:
        """Note that something happened to ``regarding``.

        ``reason`` is CamelCase and stable, ``note`` one sentence for a person (cut at 1 KiB), ``action`` what was done
        or tried (default: the reason).
        """
        kind: EventType = "Warning" if warning else "Normal"
        shown = _cut(mask_credentials(note), NOTE_LIMIT)
        key = _Key(regarding, kind, reason[:REASON_LIMIT], (action or reason)[:REASON_LIMIT], shown)
        now = self._clock.now()
        series = self._series.get(key)
        if series is not None:
            series.count += 1
            series.last_seen = now
            self._series.move_to_end(key)
        elif self._buckets.take(regarding, reason):
            self._series[key] = _Series(first_seen=now, last_seen=now)
            if len(self._series) > REMEMBERED:
                forgotten, _ = self._series.popitem(last=False)
                self._dirty.pop(forgotten, None)
        else:
            self.dropped += 1
            log.debug("event dropped", extra=_fields(key) | {"detail": key.note})
            return
        self._schedule(key, self._series[key])

    async def run(self) -> None:
        """Write what is recorded until cancelled; then :meth:`flush` writes the rest."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush(repeats=False)

    async def flush(self, *, repeats: bool = True) -> None:
        """Write what is due; with ``repeats`` also the counts that wait for their minute. For a clean exit."""
        if repeats:
            for key, series in self._series.items():
                if series.count > series.written_count:
                    self._dirty[key] = None
        while self._dirty:
            key = next(iter(self._dirty))
            del self._dirty[key]
            series_now = self._series.get(key)
            if series_now is not None and series_now.count > series_now.written_count:
                await self._write(key, series_now)

    def _schedule(self, key: _Key, series: _Series) -> None:
        now_s = self._clock.monotonic_s()
        due_s = now_s if series.written_at_s is None else series.written_at_s + SERIES_INTERVAL_S
        if due_s <= now_s:
            self._mark(key)
        elif key not in self._timers:
            self._timers.add(key)
            self._clock.call_later(due_s - now_s, lambda: self._mark(key))

    def _mark(self, key: _Key) -> None:
        self._timers.discard(key)
        self._dirty[key] = None
        self._wake.set()

    async def _write(self, key: _Key, series: _Series) -> None:
        count, series.written_at_s = series.count, self._clock.monotonic_s()
        namespace = key.regarding.namespace or "default"
        try:
            if series.written_count:
                try:
                    await self._kube.patch(EVENTS, series.name, namespace, series.counted())
                except NotFound:  # Events are kept for an hour
                    series.name = ""
            if not series.written_count or not series.name:
                series.name = series.name or _event_name(key.regarding.name)
                with suppress(AlreadyExists):  # the end of the process cut off the answer, not the write
                    await self._kube.create(EVENTS, self._body(key, series, namespace))
        except KubeError as error:
            # Refused or unanswered, it is not tried again: the log line has said the same.
            self.dropped += count - series.written_count
            log.warning("event not written", extra=_fields(key) | {"why": str(error)})
        except Exception:
            log.exception("event not written", extra=_fields(key))
        series.written_count = count

    def _body(self, key: _Key, series: _Series, namespace: str) -> Object:
        about = key.regarding
        regarding = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name, "uid": about.uid}
        return {
            "metadata": {"name": series.name, "namespace": namespace},
            "eventTime": micro_time(series.first_seen),
            "type": key.type,
            "reason": key.reason,
            "action": key.action,
            "note": key.note,
            "reportingController": self._controller,
            "reportingInstance": self._instance[:REASON_LIMIT],
            "regarding": regarding | ({"namespace": about.namespace} if about.namespace else {}),
            **(series.counted() if series.count > 1 else {}),
        }


def _event_name(regarding: str) -> str:
    # A DNS subdomain of at most 253 characters.
    return f"{regarding[:230].rstrip('.-')}.{uuid.uuid4().hex[:16]}"


def _cut(text: str, limit: int) -> str:
    """At most ``limit`` bytes, never half a character."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return text
    return encoded[: limit - 3].decode("utf-8", "ignore") + "…"
