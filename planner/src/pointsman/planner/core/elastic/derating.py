"""Derates the modelled decode capacity of an elastic group when clients miss TPOT although the group should be large
enough.

The model uses means. Clients also notice uneven routing, bursts, and long contexts that meet on one worker. So if the
model found enough workers and the objective was missed all the same, fewer sequences are planned per worker. That does
not apply if prompts that are computed between the steps can be the cause: then the threshold is lowered. The factor
rises slowly, because the capacity proved necessary. If it has to be lowered again, the next rise waits twice as long.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final

from pointsman.planner.core.hysteresis import RaiseHoldoff, more_than_enough
from pointsman.planner.core.tuning import SHIPPED, Tuning

LEAST: Final = 0.5  # twice as many workers as the model asks for


@dataclass(frozen=True, slots=True)
class Margin:
    """``share`` of what a decode worker can do by the model, that is counted on; the attainment it follows (None:
    unknown) of how many requests; and since when the pool is enough by the model (None: it is not)."""

    share: float = 1.0
    attainment: float | None = None
    requests: float = 0.0
    enough_since_s: float | None = None
    rest: RaiseHoldoff = field(default_factory=RaiseHoldoff)

    def observe(
        self,
        attainment: float,
        requests: float,
        window_s: float,
        goal: float,
        now_s: float,
        answer_s: float,
        tuning: Tuning = SHIPPED,
    ) -> "Margin":
        """Take a window with so many requests, in which the pool was enough by the model or clients got enough.

        ``answer_s``: how long an answer of the mean length takes. What began before the pool was enough says nothing of
        the model.
        """
        if self.enough_since_s is None:
            return replace(self, enough_since_s=now_s)
        if now_s - self.enough_since_s < 3 * answer_s or requests <= 0:
            return self  # until then nearly all have ended that began before
        counted = min(self.requests, 600.0) + requests
        before = attainment if self.attainment is None else self.attainment
        seen = before + requests / counted * (attainment - before)
        # Steps are for 2.5 s of what the model calls enough; of four at most, however long nothing was seen.
        share, rest, looks = self.share, self.rest, min(window_s / 2.5, 4.0)
        # Two standard errors; and of few answers one is late by chance.
        chance = 2 * math.sqrt(goal * (1 - goal) / counted) + 1 / counted
        # What is remembered of a shortage that is over lowers nothing.
        if attainment < goal and seen < goal - chance:
            first_s = 10 * tuning.holdoff_s
            share, rest = max(LEAST, share * 0.985**looks), rest.lowered(now_s, first_s, 12 * first_s)
        elif share < 1 and seen >= more_than_enough(goal) and rest.since_lowered_s(now_s) >= rest.rest_s:
            share, rest = min(1.0, share * 1.0005**looks), rest.raised(now_s)
        return replace(self, share=share, attainment=seen, requests=counted, rest=rest)

    def interrupted(self) -> "Margin":
        """After a window that says nothing of the model: the pool was short, or what it prefills can be why."""
        return replace(self, attainment=None, requests=0.0, enough_since_s=None)
