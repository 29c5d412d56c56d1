"""The admission queue of flow control: first the requests that can still be in time, in the order of arrival; then the
late ones.
"""

from itertools import takewhile
from typing import Generic, TypeVar

from pointsman.serving.flow_control import FlowBounds, InFlight, can_decode, has_room, in_time

T = TypeVar("T")


class AdmissionQueue(Generic[T]):
    """Items, told apart by identity or equality, with the time they came: seconds of the caller's clock."""

    def __init__(self) -> None:
        self._came_s: dict[T, float] = {}  # all, in the order they came
        self._in_time: dict[T, None] = {}  # in the same order
        self._late: dict[T, None] = {}  # in the order they became late

    def __len__(self) -> int:
        return len(self._came_s)

    def passes(self, in_flight: InFlight, bounds: FlowBounds) -> bool:
        """Whether a new request goes at once: it is in time, has room, and no item in time waits for that room."""
        return not self._in_time and in_time(in_flight, bounds) and can_decode(in_flight, bounds)

    def join(self, item: T, now_s: float, in_flight: InFlight, bounds: FlowBounds) -> None:
        """For one that does not pass."""
        self._came_s[item] = now_s
        (self._in_time if in_time(in_flight, bounds) else self._late)[item] = None

    def leave(self, item: T) -> None:
        """``item`` waits no longer, if it does."""
        for group in (self._came_s, self._in_time, self._late):
            group.pop(item, None)

    def next(self, now_s: float, in_flight: InFlight, bounds: FlowBounds) -> T | None:
        """Take out the item that may go now, if one may. The next call's ``in_flight`` must count it."""
        while self._in_time:
            item = next(iter(self._in_time))
            if in_time(in_flight, bounds, (now_s - self._came_s[item]) * 1000):
                return self._taken(item) if can_decode(in_flight, bounds) else None
            del self._in_time[item]
            self._late[item] = None
        if self._late and has_room(in_flight, bounds):
            return self._taken(next(iter(self._late)))
        return None

    def came_by(self, moment_s: float) -> list[T]:
        """The items that came at ``moment_s`` or before, the oldest first."""
        return [item for item, _ in takewhile(lambda one: one[1] <= moment_s, self._came_s.items())]

    @property
    def oldest_s(self) -> float | None:
        """When the oldest item came; None: the queue is empty."""
        return next(iter(self._came_s.values()), None)

    def _taken(self, item: T) -> T:
        self.leave(item)
        return item
