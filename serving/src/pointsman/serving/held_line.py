"""The line of what flow control holds: who can still be in time first, in the order they came; then who is late."""

from itertools import takewhile
from typing import Generic, TypeVar

from pointsman.serving.flow_control import FlowBounds, UnderWay, can_decode, has_room, in_time

T = TypeVar("T")


class HeldLine(Generic[T]):
    """Items, told apart by identity or equality, with the time they came: seconds of the caller's clock."""

    def __init__(self) -> None:
        self._came_s: dict[T, float] = {}  # all, in the order they came
        self._in_time: dict[T, None] = {}  # in the same order
        self._late: dict[T, None] = {}  # in the order they became late

    def __len__(self) -> int:
        return len(self._came_s)

    def passes(self, under_way: UnderWay, bounds: FlowBounds) -> bool:
        """Whether a new request goes at once: it is in time, has room, and nobody in time waits for that room."""
        return not self._in_time and in_time(under_way, bounds) and can_decode(under_way, bounds)

    def join(self, item: T, now_s: float, under_way: UnderWay, bounds: FlowBounds) -> None:
        """For one that does not pass."""
        self._came_s[item] = now_s
        (self._in_time if in_time(under_way, bounds) else self._late)[item] = None

    def leave(self, item: T) -> None:
        """``item`` waits no longer, if it does."""
        for line in (self._came_s, self._in_time, self._late):
            line.pop(item, None)

    def next(self, now_s: float, under_way: UnderWay, bounds: FlowBounds) -> T | None:
        """Take out who may go now, if anybody may. What it adds to what is under way must be in the next call's."""
        while self._in_time:
            item = next(iter(self._in_time))
            if in_time(under_way, bounds, (now_s - self._came_s[item]) * 1000):
                return self._taken(item) if can_decode(under_way, bounds) else None
            del self._in_time[item]
            self._late[item] = None
        if self._late and has_room(under_way, bounds):
            return self._taken(next(iter(self._late)))
        return None

    def came_by(self, moment_s: float) -> list[T]:
        """Who came at ``moment_s`` or before, the oldest first."""
        return [item for item, _ in takewhile(lambda one: one[1] <= moment_s, self._came_s.items())]

    @property
    def oldest_s(self) -> float | None:
        """When the one came that is held longest; None: nobody is."""
        return next(iter(self._came_s.values()), None)

    def _taken(self, item: T) -> T:
        self.leave(item)
        return item
