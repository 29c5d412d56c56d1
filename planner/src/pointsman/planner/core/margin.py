"""What clients get corrects what the model promised: the share of the token objective that is planned for.

Sizing knows means. How unevenly a router spreads sequences, how bursts and long contexts meet on one worker, it does
not; what clients measure does. So where the pool was enough by the model and the objective was missed all the same,
the plan is made for a shorter step; unless prompts that are computed between the steps can be why, which is for the
threshold to mend. It comes back slowly: capacity that proved necessary is not taken away again soon.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

MARGIN_REQUESTS: Final = 600.0  # memory of the attainment
DOUBT: Final = 2.0  # standard errors, by which too few must have been in time before anything is made of it
LESS: Final = 0.985  # per window while too few are within the objective …
MORE: Final = 1.0005  # … and while more are than asked for
ATTAINMENT_HEADROOM: Final = 0.02  # of attainment, above the goal, before anything is given back or loaded more
LEAST: Final = 0.7
MOST_WORKERS: Final = 1.5  # of what the model alone asks for: near the engine's shortest step a little less takes many
ANSWERS: Final = 3.0  # of the mean length, until nearly all that began before the pool was enough have ended


@dataclass(frozen=True, slots=True)
class Margin:
    """``share`` of the token objective that decode is planned for, the attainment it follows (None: unknown) of how
    many requests, and since when the pool is enough by the model (None: it is not)."""

    share: float = 1.0
    attainment: float | None = None
    requests: float = 0.0
    enough_since_s: float | None = None

    def observe(self, attainment: float, requests: float, goal: float, now_s: float, answer_s: float) -> "Margin":
        """Take a window with so many requests, in which the pool was enough by the model or clients got enough.

        ``answer_s``: how long an answer of the mean length takes. What began before the pool was enough says nothing of
        the model.
        """
        if self.enough_since_s is None:
            return replace(self, enough_since_s=now_s)
        if now_s - self.enough_since_s < ANSWERS * answer_s or requests <= 0:
            return self
        counted = min(self.requests, MARGIN_REQUESTS) + requests
        before = attainment if self.attainment is None else self.attainment
        seen = before + requests / counted * (attainment - before)
        error = math.sqrt(goal * (1 - goal) / counted)
        enough = seen > min(goal + ATTAINMENT_HEADROOM, 1.0)
        factor = LESS if seen < goal - DOUBT * error else MORE if enough else 1.0
        return replace(self, share=min(1.0, max(LEAST, self.share * factor)), attainment=seen, requests=counted)

    def interrupted(self) -> "Margin":
        """After a window that says nothing of the model: the pool was short, or what it prefills can be why."""
        return replace(self, attainment=None, requests=0.0, enough_since_s=None)
