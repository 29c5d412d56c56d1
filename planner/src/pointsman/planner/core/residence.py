"""How long answers are, from those that are not finished yet.

The lengths of finished answers are late exactly when answers become longer: those that are longer have not ended. But
whoever decodes now is, first in first out, who began last: the time since as many requests began as decode now is how
long one decodes (Little's law), or at least has decoded so far. Over the time between two tokens it is a number of
tokens.
"""

import math
from dataclasses import dataclass
from typing import Final

from pointsman.planner.core.types import Load

LEAST_DECODING: Final = 20.0  # sequences, before their number says anything
CHANCE_DEVIATIONS: Final = 4.0  # of that number: by so much chance explains it
MOST_OLD: Final = 0.1  # of that number may have begun before a pause, and say nothing of the others
LEAST_EXCESS: Final = 0.15  # of the mean: what is longer by less is not said
BEGAN_KEPT_S: Final = 180.0
MOST_BEGAN: Final = 120


@dataclass(frozen=True, slots=True)
class Began:
    """One window: its end, the requests that began to decode in it, the tokens one sequence got in it."""

    at_s: float
    requests: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Residence:
    """The last windows, how many sequences decode now, and the tokens they got so far, now and a window ago."""

    windows: tuple[Began, ...] = ()
    decoding: float = 0.0
    tokens: float | None = None
    tokens_before: float | None = None

    def observe(self, load: Load, window_s: float, now_s: float) -> "Residence":
        """Take one window; where a part of it is not known nothing is, until it is over."""
        if load.started_per_s is None or load.decoding is None:
            return Residence()
        tokens = window_s * 1000 / load.step_ms if load.step_ms else 0.0
        kept = [w for w in self.windows[1 - MOST_BEGAN :] if w.at_s > now_s - BEGAN_KEPT_S]
        windows = (*kept, Began(now_s, load.started_per_s * window_s, tokens))
        return Residence(windows, load.decoding, _tokens_so_far(windows, load.decoding), self.tokens)

    def longer_than(self, output_tokens: float) -> float | None:
        """The mean output so far of what decodes, where chance does not explain that it is above ``output_tokens``.

        The less of the last two: those that decode are counted at one moment, and requests begin in groups.
        """
        if self.tokens is None or self.tokens_before is None or self.decoding < LEAST_DECODING:
            return None
        tokens = min(self.tokens, self.tokens_before)
        unlikely = 1 + max(LEAST_EXCESS, CHANCE_DEVIATIONS / math.sqrt(self.decoding))
        return tokens if tokens > unlikely * output_tokens else None


def _tokens_so_far(windows: tuple[Began, ...], decoding: float) -> float | None:
    """What those that decode got so far, by when so many began, and by when all but the oldest few did.

    Where requests begin evenly these are the same. After a pause the few that still decode from before it would have
    it that all the others do.
    """
    since_all = _tokens_since(windows, decoding)
    since_most = _tokens_since(windows, (1 - MOST_OLD) * decoding)
    return since_all if since_all is None or since_most is None else min(since_all, since_most / (1 - MOST_OLD))


def _tokens_since(windows: tuple[Began, ...], requests: float) -> float | None:
    """What a sequence got since so many requests ago; None: they began before anything was seen."""
    tokens = 0.0
    for window in reversed(windows):
        if window.requests >= requests:
            return tokens + (window.tokens * requests / window.requests if window.requests > 0 else 0.0)
        tokens, requests = tokens + window.tokens, requests - window.requests
    return None
