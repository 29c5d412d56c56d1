"""Bursts that come again: sudden rises that are over before a worker could start for them.

Nothing that is started when such a burst is seen helps against it. What helps is what was started before: so where
bursts were seen to come back, and bring more of the requests than may be missed, capacity for their rate
is held, begun at the second one, for as long as the next one is to be expected by the gaps between the last ones.
"""

import itertools
import statistics
from dataclasses import dataclass, replace
from typing import Final

from pointsman.planner.core.retention import GAP_MARGIN, MEMORY_S, usual_gap_s

KEPT_BURSTS: Final = 8
LEAST_BURSTS: Final = 2


@dataclass(frozen=True, slots=True)
class Burst:
    """One rise: from when on, the rate before it, and the requests of the windows between its first and its last."""

    at_s: float
    before_per_s: float
    first_per_s: float  # the rate of the window in which it was seen, which may have begun before it
    excess: float  # requests beyond what came before it
    requests: float = 0.0
    seconds: float = 0.0
    over: bool = False

    @property
    def rate_per_s(self) -> float:
        """Requests per second while it lasted, as far as windows were of it alone."""
        return self.requests / self.seconds if self.seconds > 0 else self.first_per_s

    def beyond(self, arrived: float, window_s: float) -> float:
        """Its excess with those of one more window."""
        return self.excess + max(0.0, arrived - self.before_per_s * window_s)


@dataclass(frozen=True, slots=True)
class Expected:
    """Bursts that are to be expected: requests per second while one lasts, and seconds from one to the next."""

    rate_per_s: float
    every_s: float


@dataclass(frozen=True, slots=True)
class Bursts:
    """The last bursts, oldest first; only the last one may go on."""

    seen: tuple[Burst, ...] = ()

    def observe(
        self, arrived: float, window_s: float, now_s: float, *, rose_from: float | None, fell: bool, lead_s: float
    ) -> "Bursts":
        """Take a window with so many arrivals. ``rose_from``: the rate before a sudden rise in this window, if there
        was one; ``fell``: a sudden fall. What lasts as long as a start is no burst: workers are started for it."""
        seen = [burst for burst in self.seen if now_s - burst.at_s <= MEMORY_S]
        if seen and not seen[-1].over:
            last = seen.pop()
            excess = last.beyond(arrived, window_s)
            if fell:
                seen.append(replace(last, excess=excess, over=True))
            elif now_s - last.at_s <= lead_s:
                requests, seconds = last.requests + arrived, last.seconds + window_s
                seen.append(replace(last, excess=excess, requests=requests, seconds=seconds))
        elif rose_from is not None and window_s > 0:
            begun = Burst(now_s, rose_from, arrived / window_s, 0.0)
            seen.append(replace(begun, excess=begun.beyond(arrived, window_s)))
        return Bursts(tuple(seen[-KEPT_BURSTS:]))

    def expected(self, now_s: float, longest_s: float, attainment: float) -> Expected | None:
        """What is to be held for, if anything: nothing that comes back later than ``longest_s``, nor what may be
        missed without missing ``attainment``."""
        if len(self.seen) < LEAST_BURSTS:
            return None
        starts = [burst.at_s for burst in self.seen]
        usual_s = usual_gap_s(later - earlier for earlier, later in itertools.pairwise(starts))
        if usual_s > longest_s or now_s - starts[-1] > GAP_MARGIN * usual_s:
            return None
        ended = [burst for burst in self.seen if burst.over]
        excess = statistics.fmean(burst.excess for burst in ended) if ended else 0.0
        between = statistics.fmean(burst.before_per_s for burst in self.seen) * usual_s
        if excess <= (1 - attainment) * (excess + between):
            return None
        return Expected(statistics.median(burst.rate_per_s for burst in ended), usual_s)
