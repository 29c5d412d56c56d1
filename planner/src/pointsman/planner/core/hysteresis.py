"""Hold-off before a lowered value may rise again. It doubles each time the value has to be lowered again soon.

The right value may be between two that can be set. Without the doubling both would be tried in turn for ever.
"""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RaiseHoldoff:
    """When a number last came down and back, and how long it rests since: 0 where it does not go to and fro."""

    lowered_s: float | None = None
    raised_s: float | None = None
    rest_s: float = 0.0

    def lowered(self, now_s: float, first_s: float, most_s: float) -> "RaiseHoldoff":
        """It comes down; one that came back lately will wait longer, at first ``first_s``, at most ``most_s``."""
        rest_s = self.rest_s
        if self.raised_s is not None and (self.lowered_s is None or self.raised_s > self.lowered_s):
            soon = now_s - self.raised_s < 4 * max(rest_s, first_s)  # later, coming down again is another matter
            rest_s = min(max(2 * rest_s, first_s), most_s) if soon else 0.0
        return replace(self, lowered_s=now_s, rest_s=rest_s)

    def raised(self, now_s: float) -> "RaiseHoldoff":
        """It goes back, or part of the way."""
        return replace(self, raised_s=now_s)

    def since_lowered_s(self, now_s: float) -> float:
        """Seconds; forever if it never was."""
        return math.inf if self.lowered_s is None else now_s - self.lowered_s


def more_than_enough(goal: float) -> float:
    """The attainment from which on something may be given back: half of the requests that may be late are not."""
    return (1 + goal) / 2
