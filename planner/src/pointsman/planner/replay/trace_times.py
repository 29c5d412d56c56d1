"""Times of a trace that cannot be what a service saw: another unit, a stray time stamp, an hour without a request.

A replay of such times is a replay of another load, and its figures look like any others. So they are looked at before
the run. The bounds are those of a service worth planning for, from one request a minute to 300 a second (Azure's
trace of 2024 has 73): what is within them in milliseconds is outside in seconds, and the other way, for most services.
"""

import itertools
from collections.abc import Sequence
from typing import Final

FEWEST: Final = 10  # requests; of fewer no rate can be told
FASTEST_PER_S: Final = 300.0  # requests/s over the whole trace: above, the unit is wrong
SLOWEST_GAP_S: Final = 60.0  # between two requests on average: above, the unit is wrong
LONGEST_GAP_S: Final = 3600.0  # a longer one without any request is suspicious …
GAP_SHARE: Final = 0.5  # … if it is this share of the trace


def time_fault(arrivals_s: Sequence[float]) -> str | None:
    """What is wrong with these times of arrival (seconds, in any order), as a clause; None if they may be real."""
    count = len(arrivals_s)
    if count < 2:
        return None
    ordered = sorted(arrivals_s)
    duration_s = ordered[-1] - ordered[0]
    gap_s, before_s = max((later - earlier, earlier) for earlier, later in itertools.pairwise(ordered))
    if gap_s > LONGEST_GAP_S and gap_s > GAP_SHARE * duration_s:
        return (
            f"no request arrives for {_spoken(gap_s)} after {_spoken(before_s - ordered[0])}, which is "
            f"{gap_s / duration_s:.0%} of the trace: a time stamp is wrong, or two recordings are joined"
        )
    if count < FEWEST:
        return None
    if duration_s == 0:
        return f"all {count} requests have the same time"
    if count / duration_s > FASTEST_PER_S:
        return f"{count} requests in {_spoken(duration_s)} are {count / duration_s:.0f} requests/s"
    if duration_s / count > SLOWEST_GAP_S:
        return f"{count} requests in {_spoken(duration_s)} are one in {_spoken(duration_s / count)}"
    return None


def _spoken(seconds: float) -> str:
    for size_s, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.1f} {unit}"
    return f"{seconds:.3g} s"
