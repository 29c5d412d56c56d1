"""How long capacity is kept after its need has passed.

Two memories: the last minutes as they were (what would have sufficed for them?), and for every level of capacity the
gaps between its uses: a level that was needed again and again after half a minute is kept for half a minute, one that
comes back every hour is not.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

KEPT_GAPS: Final = 8
LEAST_GAPS: Final = 2  # before a gap is expected to come again
GAP_QUANTILE: Final = 0.8
GAP_MARGIN: Final = 1.25
MEMORY_S: Final = 3600.0
MOST_LEVELS: Final = 1024
MOST_WINDOWS: Final = 240
SLOTS: Final = 48  # a memory of any length is kept in so many


def usual_gap_s(gaps_s: Iterable[float]) -> float:
    """The gap within which most came back; of one gap at least."""
    ordered = sorted(gaps_s)
    return ordered[int(GAP_QUANTILE * (len(ordered) - 1) + 0.5)]


@dataclass(frozen=True, slots=True)
class Level:
    """One number of workers: when it was last needed, the gaps between its uses, and the requests that needed it."""

    last_s: float
    gaps_s: tuple[float, ...] = ()
    requests: float = 0.0


@dataclass(frozen=True, slots=True)
class Returns:
    """Levels from 2 workers up, and all requests; both fade with ``MEMORY_S``."""

    levels: tuple[Level, ...] = ()
    requests: float = 0.0

    def observe(self, needed: int, requests: float, now_s: float, window_s: float, shortest_gap_s: float) -> "Returns":
        """``needed`` workers in a window with so many ``requests``. Shorter gaps are none: they are bridged."""
        fade = 0.5 ** (window_s / MEMORY_S)
        levels = [replace(level, requests=level.requests * fade) for level in self.levels]
        for index in range(min(needed - 1, MOST_LEVELS)):
            if index >= len(levels):
                levels.append(Level(now_s, (), requests))
                continue
            level = levels[index]
            gap_s = now_s - level.last_s
            gaps = (*level.gaps_s, gap_s)[-KEPT_GAPS:] if gap_s > shortest_gap_s else level.gaps_s
            levels[index] = Level(now_s, gaps, level.requests + requests)
        return Returns(tuple(levels), self.requests * fade + requests)

    def keep(self, now_s: float, longest_s: float, attainment: float) -> int:
        """The highest level that is expected back soon enough, and matters for the attainment; at least 1."""
        for index in reversed(range(len(self.levels))):
            level = self.levels[index]
            if level.requests <= (1 - attainment) * self.requests or len(level.gaps_s) < LEAST_GAPS:
                continue
            if now_s - level.last_s <= min(longest_s, GAP_MARGIN * usual_gap_s(level.gaps_s)):
                return index + 2
        return 1


@dataclass(frozen=True, slots=True)
class Recent:
    """The last windows: (end, requests, seconds, prefill work that came in worker-seconds, decode workers needed).

    Work is priced when it comes, and again at the present cost of a request where that is less: old requests at new,
    longer lengths would be a load that never was, and at lengths that are gone one that does not come back.
    """

    windows: tuple[tuple[float, float, float, float, float], ...] = ()

    def observe(
        self, now_s: float, requests: float, window_s: float, work_s: float, decode: float, memory_s: float
    ) -> "Recent":
        """Take one window and forget what is older than ``memory_s``."""
        kept = tuple(w for w in self.windows if w[0] > now_s - memory_s)
        return Recent((*kept[1 - MOST_WINDOWS :], (now_s, requests, window_s, work_s, decode)))

    def prefill_workers(self, request_s: float, slack_s: float, attainment: float, most: int) -> int:
        """The least pool that would have served the arrivals, now ``request_s`` of work each, with waits ≤ ``slack_s``.

        As a fluid: windows whose backlog exceeds the slack are late as a whole.
        """
        allowed = (1 - attainment) * sum(w[1] for w in self.windows)

        def late(workers: int) -> float:
            backlog_s = late = 0.0
            for _, requests, seconds, work_s, _ in self.windows:
                backlog_s = max(0.0, backlog_s + min(work_s, requests * request_s) - workers * seconds)
                if backlog_s > workers * slack_s:
                    late += requests
            return late

        return min(bisect_left(range(1, most + 1), True, key=lambda workers: late(workers) <= allowed) + 1, most)

    def decode_workers(self, attainment: float) -> float:
        """The need that all but ``1 − attainment`` of the requests were within."""
        allowed, beyond = (1 - attainment) * sum(w[1] for w in self.windows), 0.0
        for _, requests, _, _, need in sorted(self.windows, key=lambda w: -w[4]):
            beyond += requests
            if beyond > allowed:
                return need
        return 0.0

    def work_s(self, now_s: float, span_s: float) -> float:
        """Prefill work of the last ``span_s`` seconds."""
        return sum(w[3] for w in self.windows if w[0] > now_s - span_s)


@dataclass(frozen=True, slots=True)
class Highest:
    """The highest rate capacity was wanted for within a time: (begin of slot, requests per second).

    Rates, not workers: what they need is priced as requests are now.
    """

    slots: tuple[tuple[float, float], ...] = ()

    def observe(self, now_s: float, rate_per_s: float, memory_s: float) -> "Highest":
        """Take what is wanted now; what is older than ``memory_s``, to a forty-eighth, is forgotten."""
        width_s = memory_s / SLOTS
        slots = [slot for slot in self.slots if slot[0] + width_s > now_s - memory_s]
        if slots and now_s - slots[-1][0] < width_s:
            begin_s, highest = slots.pop()
            return Highest((*slots, (begin_s, max(highest, rate_per_s))))
        return Highest((*slots, (now_s, rate_per_s))[-2 * SLOTS :])

    @property
    def rate_per_s(self) -> float:
        """The highest of them."""
        return max((rate for _, rate in self.slots), default=0.0)
