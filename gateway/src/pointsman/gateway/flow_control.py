"""Holds requests back at the gateway while the workers have more than can be answered in time.

The rule is `pointsman.serving.flow_control`: who is in time goes as soon as there is room, also past those that are
late; the late go first in, first out, when there is room that nobody in time needs. Here it meets the fleet: what is
under way is what this gateway booked at its workers, and it is looked at again whenever something there has its first
token or ends, and when bounds or workers change.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pointsman.api.v1alpha1.limits import gateway_limit
from pointsman.gateway.core.admission_queue import BoundedAdmissionQueue
from pointsman.gateway.errors import GatewayError, NoWorkerAvailable, Overloaded
from pointsman.gateway.fleet import Fleet, Pick
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.serving.flow_control import UNBOUNDED

log = logging.getLogger(__name__)

RETRY_AFTER_MOST_S: Final = 60


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """How many may be queued and for how long, and how long without any worker; see Settings."""

    max_held: int
    hold_seconds: float
    patience_seconds: float


@dataclass(eq=False, slots=True)
class _Queued:
    """One in the line: how a worker is chosen for it, and who gets the choice."""

    pick: Callable[[], Pick | None]
    chosen: "asyncio.Future[Pick | None]"


class FlowControl:
    """Asked once before a request's first attempt. ``clock`` is monotonic seconds."""

    def __init__(self, fleet: Fleet, metrics: GatewayMetrics, limits: HoldLimits, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        self._queue: BoundedAdmissionQueue[_Queued] = BoundedAdmissionQueue(
            most=limits.max_held, hold_seconds=limits.hold_seconds
        )
        self._last_queued_s = 0.0  # how long the last one that was sent had been queued
        self._nobody_since_s: float | None = None  # while no worker takes requests
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = math.inf
        fleet.on_room(self.look)

    async def admit(self, pick: Callable[[], Pick | None], report_queued: Callable[[float], None]) -> Pick | None:
        """What ``pick`` chooses in the moment when the request may go: now, or once there is room.

        It is booked in that moment, so the next one is judged with it. None: nobody takes requests now, and nothing is
        queued for that. ``report_queued`` gets the seconds that the request was queued, if it was, however that ended.
        Raises Overloaded, and NoWorkerAvailable when all workers were gone for too long meanwhile.
        """
        since_s, bounds, in_flight = self._clock(), self._fleet.bounds, self._fleet.in_flight()
        if bounds == UNBOUNDED or not in_flight.decode_workers or self._queue.passes(in_flight, bounds):
            return pick()
        waiting = _Queued(pick, asyncio.get_running_loop().create_future())
        if not self._queue.join(waiting, since_s, in_flight, bounds):
            raise Overloaded(
                f"The service has more requests than it can answer in time, and {len(self._queue)} are queued already; "
                f"the limit is {gateway_limit('max_held')} of the service. Try again later.",
                reason="overloaded",
                retry_after_seconds=self._retry_after_seconds(),
            )
        self._nobody_since_s = None
        self._metrics.holds.inc()
        self._metrics.queued.inc()
        self._arm()
        try:
            found = await waiting.chosen
            self._last_queued_s = self._clock() - since_s
            return found
        except asyncio.CancelledError:
            # Chosen and cancelled in the same moment: nobody will take it.
            chosen = waiting.chosen
            if chosen.done() and not chosen.cancelled() and chosen.exception() is None:
                unused = chosen.result()
                if unused is not None:
                    unused.entry.end()
            raise
        finally:
            self._queue.leave(waiting)
            queued_s = self._clock() - since_s
            self._metrics.queued.dec()
            self._metrics.hold_seconds.observe(queued_s)
            report_queued(queued_s)

    def look(self) -> None:
        """Something ended or changed: send those who have room now, give up those whose time is over."""
        if not len(self._queue):
            return
        now_s = self._clock()
        self._give_up(
            self._queue.overdue(now_s),
            lambda: Overloaded(
                "The service had no room for this request in time; "
                f"the limit is {gateway_limit('hold_seconds')} of the service. Try again later.",
                reason="held-too-long",
                retry_after_seconds=self._retry_after_seconds(),
            ),
        )
        if self._fleet.bounds != UNBOUNDED and not self._fleet.in_flight().decode_workers:
            self._nobody_since_s = now_s if self._nobody_since_s is None else self._nobody_since_s
            if now_s - self._nobody_since_s >= self._limits.patience_seconds:
                self._give_up(
                    self._queue.empty(),
                    lambda: NoWorkerAvailable(
                        f"No decode worker was routable within {self._limits.patience_seconds:g} s; the limit is "
                        f"{gateway_limit('patience_seconds')} of the service. Try again."
                    ),
                )
        else:
            self._nobody_since_s = None
            self._queue.release(now_s, self._fleet.in_flight, self._fleet.bounds, self._send)
        self._arm()

    def end_within(self, seconds: float) -> None:
        """The gateway stops: whoever has no room within ``seconds`` is told to ask again."""
        self._queue.end_by(self._clock() + seconds)
        self._arm()

    def _send(self, waiting: _Queued) -> None:
        if waiting.chosen.done():  # its client left in this moment
            return
        try:
            waiting.chosen.set_result(waiting.pick())
        except Exception as defect:
            log.exception(
                "no choice because of an internal error"
            )  # of this request, not of the one whose end made the room
            waiting.chosen.set_exception(defect)

    def _give_up(self, those: list[_Queued], error: Callable[[], GatewayError]) -> None:
        for waiting in those:
            if not waiting.chosen.done():
                waiting.chosen.set_exception(error())

    def _retry_after_seconds(self) -> int:
        """As long as the one that was sent last had been queued: about what a new one would wait."""
        return min(max(math.ceil(self._last_queued_s), 1), RETRY_AFTER_MOST_S)

    def _arm(self) -> None:
        """Look again when the next one's time is over."""
        due_s = self._queue.next_due_s
        if due_s is None:
            return
        if self._nobody_since_s is not None:
            due_s = min(due_s, self._nobody_since_s + self._limits.patience_seconds)
        if self._timer is not None:
            if self._timer_due_s <= due_s:
                return  # it looks early, and arms itself again
            self._timer.cancel()
        self._timer_due_s = due_s
        self._timer = asyncio.get_running_loop().call_later(max(due_s - self._clock(), 0), self._time_is_over)

    def _time_is_over(self) -> None:
        self._timer = None
        self.look()
