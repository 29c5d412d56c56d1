"""Unix time that never jumps."""

from pointsman.process.clock import Clock


class SteadyTime:
    """The wall clock as it was at first, going on by the monotonic one.

    What the planner remembers is dated by it: a wall clock that is set must neither age what was just seen nor turn the
    last switch into one of the future, after which none may follow for as long as the clock was set back.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_s = clock.now().timestamp() - clock.monotonic_s()

    def now_s(self) -> float:
        """Seconds since 1970, as far as the clock was right when this began."""
        return self._clock.monotonic_s() + self._offset_s

    def not_before(self, at_s: float) -> None:
        """Go on from ``at_s`` if that is later: a memory that was saved before the clock was set back."""
        self._offset_s = max(self._offset_s, at_s - self._clock.monotonic_s())
