"""Leader election on a Lease: at most one leads, also while the API server cannot be reached.

The leader renews every 2 s and stops leading when no renewal succeeded for 10 s, counted from before the request was
sent. Others take over only after they have seen the Lease unchanged for 15 s of their own monotonic clock, so clocks
need not agree. Every write carries the resourceVersion that was read; a write whose answer was lost proves nothing,
and what it did is read.

(``kubernetes.aio.leaderelection`` 37.0.2 is not used: a connection error during a renewal escapes it and the leader
goes on leading.)
"""

import asyncio
import logging
import math
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pointsman.kube.client import Kube, Object
from pointsman.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from pointsman.kube.objects import micro_time
from pointsman.kube.resources import LEASES
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

LEASE_DURATION_S: Final = 15.0
RENEW_DEADLINE_S: Final = 10.0
RETRY_PERIOD_S: Final = 2.0
RELEASE_TIMEOUT_S: Final = 3.0
RELEASED: Final = "released"
"""Why a candidate leads no more that gave its Lease back."""


def candidate(name: str) -> str:
    """An identity that no other candidate has, nor an earlier process of the same ``name`` (its pod's)."""
    return f"{name}_{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class _Seen:
    """A state of the Lease, and until when (our monotonic clock) its holder may lead."""

    resource_version: str
    holder: str
    until_s: float


class Elector:
    """One candidate. It leads at most once: a process that lost its Lease ends and is started again.

    Usage::

        elector = Elector(kube, namespace="pointsman-system", name="pointsman-operator", identity=candidate(pod_name))
        election = asyncio.create_task(elector.run())
        await elector.elected.wait()
        ...                       # work; before each write: elector.still_leader()
        await elector.lost.wait() # → stop at once
        election.cancel()         # on a clean exit, after the work has stopped: releases the Lease

    ``identity`` must be unique among the candidates, also over restarts of one (see ``candidate``).
    """

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_duration_s: float = LEASE_DURATION_S,
        on_lost: Callable[[str], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``on_lost(why)`` is called in the event loop at the moment ``lost`` is set.

        Another duration scales the deadline and the period with it: 15 s go with 10 s and 2 s.

        Raises ValueError for no identity.
        """
        scale = lease_duration_s / LEASE_DURATION_S
        if not identity:
            raise ValueError("identity is empty: an empty holder means a released Lease")
        self.elected: Final = asyncio.Event()
        """Set when we begin to lead; stays set."""
        self.lost: Final = asyncio.Event()
        """Set when we stopped leading, for whatever reason; stays set."""
        self.identity: Final = identity
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._lease_duration_s = lease_duration_s
        self._renew_deadline_s = RENEW_DEADLINE_S * scale
        self._retry_period_s = RETRY_PERIOD_S * scale
        self._on_lost = on_lost
        self._clock = clock
        self._fields = {"lease": f"{namespace}/{name}", "identity": identity}
        self._seen: _Seen | None = None
        self._lease: Object | None = None
        self._led_until_s: float | None = None

    def still_leader(self) -> bool:
        """Whether we lead now, by our clock: cheap, right also when the event loop was blocked. Ask before each
        write.
        """
        return (
            self._led_until_s is not None and not self.lost.is_set() and self._clock.monotonic_s() < self._led_until_s
        )

    async def run(self) -> None:
        """Stand until elected, renew until lost, then return. No error of the API server ends it earlier.

        Cancelled while leading it releases the Lease, so that another need not wait: stop the work first.
        """
        try:
            await self._acquire()
            log.info("leadership gained", extra=self._fields)
            self.elected.set()
            why = await self._renew()
        except asyncio.CancelledError:
            if self.still_leader():
                self._end(RELEASED)
                await self._release()
            raise
        except Exception as error:
            # A bug of ours: whoever waits for the loss must hear of it, or would go on leading.
            self._end(f"the election failed: {error!r}")
            raise
        self._end(why)

    def _end(self, why: str) -> None:
        self._led_until_s = None
        self.lost.set()
        log.warning("leadership lost", extra=self._fields | {"why": why})
        if self._on_lost is not None:
            try:
                self._on_lost(why)
            except Exception:
                log.exception("listener of the lease failed", extra=self._fields)

    # --- standing ---

    async def _acquire(self) -> None:
        while not await self._try_to_acquire():
            await self._clock.sleep(self._retry_period_s * random.uniform(1.0, 1.2))

    async def _try_to_acquire(self) -> bool:
        timeout_s = self._renew_deadline_s / 2
        try:
            lease = await self._kube.find(LEASES, self._name, self._namespace, timeout_s=timeout_s)
            if lease is not None:  # deleted by hand while somebody may lead: what we saw last still counts for its time
                self._see(lease)
            if self._held_by_another():
                return False
            began_s = self._clock.monotonic_s()
            await self._write(lease, timeout_s)
        except (Conflict, AlreadyExists):
            return False  # another was faster
        except KubeError as error:
            log.warning("election not possible", extra=self._fields | {"why": str(error)})
            return False
        self._led_until_s = began_s + self._renew_deadline_s
        # The answer may have come too late to lead on.
        return self.still_leader()

    def _see(self, lease: Object) -> None:
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen.resource_version != version:
            duration_s = float((lease.get("spec") or {}).get("leaseDurationSeconds") or self._lease_duration_s)
            self._seen = _Seen(version, _holder(lease), self._clock.monotonic_s() + duration_s)

    def _held_by_another(self) -> bool:
        seen = self._seen
        if seen is None or seen.holder in ("", self.identity):
            return False
        return self._clock.monotonic_s() < seen.until_s

    # --- leading ---

    async def _renew(self) -> str:
        """Renew until it fails for too long; the reason."""
        error: KubeError | None = None
        while True:
            led_until_s = self._led_until_s
            assert led_until_s is not None
            remaining_s = led_until_s - self._clock.monotonic_s()
            await self._clock.sleep(min(self._retry_period_s, max(0.0, remaining_s)))
            began_s = self._clock.monotonic_s()
            remaining_s = led_until_s - began_s
            if remaining_s <= 0:
                return f"no renewal for {self._renew_deadline_s:g} s: {error or 'this process stood still'}"
            # Half of what remains, so that one request that hangs leaves time for another.
            timeout_s = max(remaining_s / 2, 0.05)
            try:
                if self._lease is None:
                    lease = await self._kube.get(LEASES, self._name, self._namespace, timeout_s=timeout_s)
                    if _holder(lease) != self.identity:
                        return f"{_holder(lease) or 'nobody'} holds the lease"
                    self._lease = lease
                    began_s = self._clock.monotonic_s()
                    timeout_s = max((led_until_s - began_s) / 2, 0.05)
                await self._write(self._lease, timeout_s)
            except NotFound:
                return "the lease was deleted"
            except KubeError as failure:
                error = failure
                self._lease = None  # whatever happened, the next try reads first
                log.warning("lease not renewed", extra=self._fields | {"why": str(failure)})
                continue
            if self._clock.monotonic_s() >= led_until_s:
                return "the renewal was too late"
            error = None
            self._led_until_s = began_s + self._renew_deadline_s

    async def _write(self, lease: Object | None, timeout_s: float) -> None:
        """Write us as the holder: create, or replace exactly the Lease that was read."""
        now = micro_time(self._clock.now())
        old: dict[str, Any] = dict((lease or {}).get("spec") or {})
        ours = old.get("holderIdentity") == self.identity
        spec = old | {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self._lease_duration_s),  # whole seconds; never less than we rely on
            "acquireTime": old.get("acquireTime") if ours and old.get("acquireTime") else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if ours or lease is None else 1),
        }
        if lease is None:
            body: Object = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": spec}
            self._lease = await self._kube.create(LEASES, body, timeout_s=timeout_s)
        else:
            self._lease = await self._kube.replace(LEASES, lease | {"spec": spec}, timeout_s=timeout_s)
        self._see(self._lease)

    async def _release(self) -> None:
        """Empty the holder, if the Lease is still as we wrote it. Best effort: it would expire anyway."""
        try:
            at = (LEASES, self._name, self._namespace)
            lease = self._lease or await self._kube.get(*at, timeout_s=RELEASE_TIMEOUT_S)
            if _holder(lease) != self.identity:
                return
            now = micro_time(self._clock.now())
            released = lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now}
            await self._kube.replace(LEASES, lease | {"spec": released}, timeout_s=RELEASE_TIMEOUT_S)
        except KubeError as error:
            log.warning("lease not released, it will expire", extra=self._fields | {"why": str(error)})


def _holder(lease: Object) -> str:
    """Empty: nobody holds it."""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
