"""The queue of requests that wait for room, bounded in length and in time."""

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from pointsman.serving.admission_queue import AdmissionQueue
from pointsman.serving.flow_control import FlowBounds, InFlight

T = TypeVar("T")


class BoundedAdmissionQueue(Generic[T]):
    """At most ``most`` items (told apart by identity or equality), each for at most ``hold_seconds``."""

    def __init__(self, *, most: int, hold_seconds: float) -> None:
        self._most = most
        self._hold_seconds = hold_seconds
        self._end_s: float | None = None
        self._queue: AdmissionQueue[T] = AdmissionQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def passes(self, in_flight: InFlight, bounds: FlowBounds) -> bool:
        """Whether a new request goes at once."""
        return self._queue.passes(in_flight, bounds)

    def join(self, item: T, now_s: float, in_flight: InFlight, bounds: FlowBounds) -> bool:
        """Queue one that does not pass; False: there is no place for it."""
        if len(self._queue) >= self._most or (self._end_s is not None and now_s >= self._end_s):
            return False
        self._queue.join(item, now_s, in_flight, bounds)
        return True

    def leave(self, item: T) -> None:
        """``item`` waits no longer, if it does."""
        self._queue.leave(item)

    def release(
        self, now_s: float, in_flight: Callable[[], InFlight], bounds: FlowBounds, send: Callable[[T], None]
    ) -> None:
        """Send while there is room; ``send`` adds to what ``in_flight`` returns, so each is judged anew."""
        while (item := self._queue.next(now_s, in_flight(), bounds)) is not None:
            send(item)

    def overdue(self, now_s: float) -> list[T]:
        """Take out those whose time is over, the oldest first."""
        over = self._end_s is not None and now_s >= self._end_s
        return self._take(now_s if over else now_s - self._hold_seconds)

    def empty(self) -> list[T]:
        """Take out all, the oldest first."""
        return self._take(math.inf)

    def _take(self, came_by_s: float) -> list[T]:
        found = self._queue.came_by(came_by_s)
        for item in found:
            self._queue.leave(item)
        return found

    def end_by(self, at_s: float) -> None:
        """No item is queued after ``at_s``."""
        self._end_s = at_s

    @property
    def next_due_s(self) -> float | None:
        """When the first one's time is over; None: the queue is empty."""
        oldest_s = self._queue.oldest_s
        if oldest_s is None:
            return None
        due_s = oldest_s + self._hold_seconds
        return due_s if self._end_s is None else min(due_s, self._end_s)
