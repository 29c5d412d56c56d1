"""Serves on after SIGTERM until no Service sends requests here; `core.linger` decides for how long."""

import asyncio
import logging

from pointsman.gateway.core.linger import Linger, OtherGateways
from pointsman.gateway.discovery.kubernetes import follow_other_gateways
from pointsman.gateway.settings import Settings
from pointsman.process.clock import SYSTEM_CLOCK, Clock
from pointsman.process.ending import end

log = logging.getLogger(__name__)

_POLL_S = 0.1


async def linger(settings: Settings, clock: Clock = SYSTEM_CLOCK) -> float:
    """Return when requests need not be taken any more, with the seconds that open streams have left.

    Waiting for another gateway takes up to half of ``shutdown_seconds``: the pod's grace period is for both.
    """
    began_s = clock.monotonic_s()
    end_s = began_s + settings.linger_seconds + settings.shutdown_seconds
    if settings.linger_seconds > 0:
        await _wait(settings, began_s, clock)
    return max(0.0, end_s - clock.monotonic_s())


async def _wait(settings: Settings, began_s: float, clock: Clock) -> None:
    others: OtherGateways | None = None
    changed = asyncio.Event()

    def found(now: OtherGateways) -> None:
        nonlocal others
        others = now
        changed.set()

    following: asyncio.Task[None] | None = None
    if settings.endpoints_file is None:
        work = follow_other_gateways(settings.namespace, settings.service, settings.gateway, found)
        following = asyncio.create_task(work, name="other gateways")
    else:
        found(OtherGateways(ready=0, starting=0))  # nobody replaces a gateway outside of Kubernetes
    decides = Linger(
        began_s=began_s,
        linger_s=settings.linger_seconds,
        longest_s=settings.linger_seconds + settings.shutdown_seconds / 2,
    )
    while not decides.ends(clock.monotonic_s(), others):
        waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(clock.sleep(_POLL_S))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(waits)
        changed.clear()
    log.info("no longer accepts requests", extra={"others": str(others), "seconds": clock.monotonic_s() - began_s})
    if following is not None:
        if following.done() and not following.cancelled() and (error := following.exception()) is not None:
            log.warning("other gateways unknown", extra={"why": str(error) or type(error).__name__})
        await end([following])
