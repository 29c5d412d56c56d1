"""A clock that a test sets."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from pointsman.process.clock import SystemClock, Timer

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Hands(SystemClock):
    """The time of day, and the time that passes."""

    def __init__(self) -> None:
        self.wall, self.passed_s = BEGIN, 1000.0

    def monotonic_s(self) -> float:
        return self.passed_s

    def now(self) -> datetime:
        return self.wall

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        raise NotImplementedError

    def go(self, seconds: float) -> None:
        self.passed_s += seconds
        self.wall += timedelta(seconds=seconds)
