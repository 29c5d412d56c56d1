"""When a container that ended is started again."""

from collections.abc import Sequence
from typing import Final

FIRST_S: Final = 10.0  # the kubelet's figures
LONGEST_S: Final = 300.0
FORGET_AFTER_S: Final = 600.0


def restarts(policy: str, exit_code: int) -> bool:
    """Whether ``restartPolicy`` starts a container again that ended so."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def restart_delay_s(run_durations_s: Sequence[float], first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> float:
    """Seconds from the last end to the next start; ``run_durations_s`` are all runs so far, oldest first.

    The first restart is at once, the second after ``first_s``, then twice as long each time up to ``longest_s``; a run
    of ten minutes makes up for all before it.
    """
    quick = 0
    for duration_s in reversed(run_durations_s):
        if duration_s >= FORGET_AFTER_S:
            break
        quick += 1
    if quick <= 1:
        return 0.0
    return min(longest_s, first_s * 2.0 ** min(quick - 2, 32))
