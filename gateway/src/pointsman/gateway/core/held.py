"""The line of what is held back: first in, first out, bounded in length and in time."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class HeldLine(Generic[T]):
    """At most ``most`` items (told apart by identity or equality), each for at most ``hold_seconds``."""

    def __init__(self, *, most: int, hold_seconds: float) -> None:
        self._most = most
        self._hold_seconds = hold_seconds
        self._end_s: float | None = None
        self._joined_s: dict[T, float] = {}  # in the order they came

    def __len__(self) -> int:
        return len(self._joined_s)

    def join(self, item: T, now_s: float) -> bool:
        """``item`` goes to the end; False: there is no place for it."""
        if len(self._joined_s) >= self._most or (self._end_s is not None and now_s >= self._end_s):
            return False
        self._joined_s[item] = now_s
        return True

    def leave(self, item: T) -> None:
        """``item`` waits no longer, if it does."""
        self._joined_s.pop(item, None)

    def release(self, has_room: Callable[[], bool], send: Callable[[T], None]) -> None:
        """Send from the front while there is room; ``send`` adds to what ``has_room`` sees, so each is judged anew."""
        while self._joined_s and has_room():
            item = next(iter(self._joined_s))
            del self._joined_s[item]
            send(item)

    def overdue(self, now_s: float) -> list[T]:
        """Take out those whose time is over, the oldest first."""
        found = []
        for item, joined_s in self._joined_s.items():
            if self._due_s(joined_s) > now_s:
                break  # who came later is due later
            found.append(item)
        for item in found:
            del self._joined_s[item]
        return found

    def empty(self) -> list[T]:
        """Take out all, the oldest first."""
        found = list(self._joined_s)
        self._joined_s.clear()
        return found

    def end_by(self, at_s: float) -> None:
        """Nobody is held after ``at_s``."""
        self._end_s = at_s

    @property
    def next_due_s(self) -> float | None:
        """When the first one's time is over; None: nobody is held."""
        return next((self._due_s(joined_s) for joined_s in self._joined_s.values()), None)

    def _due_s(self, joined_s: float) -> float:
        due_s = joined_s + self._hold_seconds
        return due_s if self._end_s is None else min(due_s, self._end_s)
