"""Derates an elastic group where clients miss objectives although the model finds enough instances.

The model uses means. Clients also notice uneven routing, bursts, and long contexts that meet in one instance. So where
the objectives were missed all the same, less load is planned per instance. The factor rises slowly, because the
capacity proved necessary. If it has to be lowered again, the next rise waits twice as long.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Final

from pointsman.planner.core.hysteresis import RaiseHoldoff, more_than_enough
from pointsman.planner.core.types import Observation, Policy, Service

LEAST: Final = 0.5  # twice as many instances as the model asks for


@dataclass(frozen=True, slots=True)
class Margin:
    """``share`` of what an instance can do by the model, that is counted on; the attainment it follows (None: unknown)
    of how many requests; and since when the group is large enough by the model (None: it is not)."""

    share: float = 1.0
    attainment: float | None = None
    requests: float = 0.0
    enough_since_s: float | None = None
    rest: RaiseHoldoff = field(default_factory=RaiseHoldoff)

    def observe(self, seen: Observation, policy: Policy, answer_s: float, now_s: float) -> "Margin":
        """Take a window in which the group was large enough by the model.

        ``answer_s``: how long an answer of the mean length takes. What began before the group was large enough says
        nothing of the model.
        """
        service, goal, window_s = seen.service or Service(), policy.objectives.attainment, seen.window_s
        if seen.load is None or service.ttft_attainment is None or service.tpot_attainment is None or seen.old_pages:
            return self  # no request ended in this window, or a part of it was judged before
        attainment, requests = service.ttft_attainment * service.tpot_attainment, seen.load.arrivals_per_s * window_s
        if self.enough_since_s is None:
            return replace(self, enough_since_s=now_s)
        if now_s - self.enough_since_s < 3 * answer_s or requests <= 0:
            return self  # until then nearly all have ended that began before
        counted = min(self.requests, 600.0) + requests
        before = attainment if self.attainment is None else self.attainment
        mean = before + requests / counted * (attainment - before)
        # Steps are for 2.5 s of what the model calls enough; of four at most, however long nothing was seen.
        share, rest, looks = self.share, self.rest, min(window_s / 2.5, 4.0)
        # Two standard errors; and of few answers one is late by chance.
        chance = 2 * math.sqrt(goal * (1 - goal) / counted) + 1 / counted
        # What is remembered of a shortage that is over lowers nothing.
        if attainment < goal and mean < goal - chance:
            first_s = 10 * policy.tuning.holdoff_s
            share, rest = max(LEAST, share * 0.985**looks), rest.lowered(now_s, first_s, 12 * first_s)
        elif share < 1 and mean >= more_than_enough(goal) and rest.since_lowered_s(now_s) >= rest.rest_s:
            share, rest = min(1.0, share * 1.0005**looks), rest.raised(now_s)
        return replace(self, share=share, attainment=mean, requests=counted, rest=rest)

    def interrupted(self) -> "Margin":
        """After a window that says nothing of the model: too few instances, or a part of the load is not known."""
        return replace(self, attainment=None, requests=0.0, enough_since_s=None)
