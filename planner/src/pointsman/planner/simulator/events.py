"""The queue of what will happen, in order of time and, at one time, of being planned."""

import heapq
from collections.abc import Callable
from typing import Any


class Events:
    """A heap of (time, number, what, with what). ``now_s`` is the time of the event being handled."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._number = 0
        self.now_s = 0.0

    def at(self, when_s: float, what: Callable[[Any], None], with_what: Any = None) -> None:
        """Plan ``what(with_what)``."""
        self._number += 1
        heapq.heappush(self._heap, (when_s, self._number, what, with_what))

    @property
    def next_s(self) -> float:
        """When the next is due; infinite when none is."""
        return self._heap[0][0] if self._heap else float("inf")

    def step(self) -> None:
        """Handle the next."""
        self.now_s, _, what, with_what = heapq.heappop(self._heap)
        what(with_what)
