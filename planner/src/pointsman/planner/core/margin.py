"""What clients get corrects what the model promised: the share of the token objective that is planned for.

Sizing knows means. How unevenly a router spreads sequences, how bursts and long contexts meet on one worker, it does
not; what clients measure does. So where the pool was enough by the model and the objective was missed all the same,
the plan is made for a shorter step; unless prompts that are computed between the steps can be why, which is for the
threshold to mend. It comes back slowly: capacity that proved necessary is not taken away again soon.
"""

from dataclasses import dataclass, replace
from typing import Final

MARGIN_REQUESTS: Final = 60.0  # memory of the attainment
LESS: Final = 0.985  # per window while too few are within the objective …
MORE: Final = 1.0005  # … and while more are than asked for
ATTAINMENT_HEADROOM: Final = 0.02  # of attainment, above the goal, before anything is given back or loaded more
LEAST: Final = 0.7


@dataclass(frozen=True, slots=True)
class Margin:
    """``share`` of the token objective that decode is planned for, the attainment it follows (None: unknown), and since
    when the pool is enough by the model (None: it is not)."""

    share: float = 1.0
    attainment: float | None = None
    enough_since_s: float | None = None

    def observe(self, attainment: float, requests: float, goal: float, now_s: float, answer_s: float) -> "Margin":
        """Take a window in which the pool was enough by the model, with so many requests.

        ``answer_s``: how long an answer takes. What began before the pool was enough says nothing of the model.
        """
        if self.enough_since_s is None:
            return replace(self, enough_since_s=now_s)
        if now_s - self.enough_since_s < answer_s:
            return self
        weight = min(1.0, requests / MARGIN_REQUESTS)
        seen = attainment if self.attainment is None else self.attainment + weight * (attainment - self.attainment)
        factor = LESS if seen < goal else MORE if seen > min(goal + ATTAINMENT_HEADROOM, 1.0) else 1.0
        return replace(self, share=min(1.0, max(LEAST, self.share * factor)), attainment=seen)

    def interrupted(self) -> "Margin":
        """After a window that says nothing of the model: the pool was short, or what it prefills is why."""
        return replace(self, attainment=None, enough_since_s=None)
