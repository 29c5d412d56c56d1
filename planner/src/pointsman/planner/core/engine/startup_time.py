"""How long a new worker takes until it serves: estimated at first, then learned from every one that starts.

The first estimate is what the workers that serve took, as their pods show; before any worker serves, it is made from
the size of the model.

Starts are a distribution, not a number: some fail and begin again, some never end. What is planned with is the median
of the last ones, which one worker that takes far longer moves by a little. While none has ended, those that are late
say that it is longer than was told.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import (
    MAX_WORKERS,
    SERVES,
    Policy,
    Worker,
    WorkerCondition,
)

MOST_ENDED: Final = 9  # starts remembered: five that take something else change the median
_SIZE: Final = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z0-9])", re.IGNORECASE)


class Begun(StrEnum):
    """What is known of how a start began, and so what its end teaches."""

    TIMED = "Timed"
    UNTIMED = "Untimed"  # nobody saw it begin, so it took longer than is known
    RETURNING = "Returning"  # the worker served before, so it is no start and teaches nothing


@dataclass(frozen=True, slots=True)
class Leads:
    """``starting``: (name, role, when it was first seen starting, how it began) of those that still are."""

    start_s: float | None = None  # learned; None: nothing started yet
    starting: tuple[tuple[str, Role, float, Begun], ...] = ()
    took_s: tuple[float, ...] = ()  # of the last ones that then served, the newest first
    looked_s: float | None = None
    overtaken_s: float | None = None  # the latest beginning of a start that ended: earlier ones were overtaken
    serving: tuple[str, ...] = ()  # at the last look, or before the switch that they are in

    def look(
        self,
        workers: Iterable[Worker],
        now_s: float,
        window_s: float,
        believed_s: float,
        tuning: Tuning = SHIPPED,
    ) -> "Leads":
        """Compare who starts and who serves with before."""
        workers = tuple(workers)
        gap_s = window_s if self.looked_s is None else max(0.0, now_s - self.looked_s)
        # The planner was away: when a start ended meanwhile nobody knows.
        away = gap_s > max(tuning.max_evaluation_gap_s, 2 * window_s)
        # What happened since the last look happened half of that ago, on average.
        half_s = (window_s if away else gap_s) / 2
        conditions = {w.name: w.condition for w in workers}
        known = {name: (since_s, begun) for name, _, since_s, begun in self.starting}
        took_s, overtaken_s = list(self.took_s), self.overtaken_s
        for name, (since_s, begun) in known.items():
            if begun is Begun.RETURNING or conditions.get(name) not in SERVES:
                continue
            if not away and begun is Begun.TIMED:
                took_s.insert(0, max(1.0, now_s - half_s - since_s))
            overtaken_s = since_s if overtaken_s is None else max(overtaken_s, since_s)
        served = {*self.serving, *(name for name, (_, begun) in known.items() if begun is Begun.RETURNING)}
        seen_begin = Begun.UNTIMED if away or self.looked_s is None else Begun.TIMED

        def start(worker: Worker) -> tuple[str, Role, float, Begun]:
            since_s, begun = known.get(worker.name, (now_s - half_s, seen_begin))
            return worker.name, worker.role, since_s, Begun.RETURNING if worker.name in served else begun

        starting = tuple(start(w) for w in workers if w.condition is WorkerCondition.STARTING)[:MAX_WORKERS]
        seen = replace(
            self,
            starting=starting,
            took_s=tuple(took_s[:MOST_ENDED]),
            looked_s=now_s,
            overtaken_s=overtaken_s,
            serving=tuple(
                w.name
                for w in workers
                if w.condition in SERVES or (w.condition is WorkerCondition.SWITCHING and w.name in served)
            )[:MAX_WORKERS],
        )
        return replace(seen, start_s=seen._typical_s(now_s, believed_s, tuning))

    def lead_s(self, believed_s: float) -> float:
        """How long a start typically takes, learned or believed."""
        return self.start_s if self.start_s is not None else believed_s

    def ready_in_s(self, role: Role, now_s: float, believed_s: float, tuning: Tuning = SHIPPED) -> list[float]:
        """When each starting worker of a role is expected to serve, soonest first, in seconds from now.

        Those that are stuck are not among them.
        """
        return sorted(
            self._remaining_s(now_s - since_s, believed_s, tuning)
            for _, r, since_s, _ in self.starting
            if r is role and not self._is_stuck(since_s, now_s, believed_s, tuning)
        )

    def stuck(self, now_s: float, believed_s: float, tuning: Tuning = SHIPPED) -> frozenset[str]:
        """Names of starting workers that nobody should wait for."""
        return frozenset(
            name for name, _, since_s, _ in self.starting if self._is_stuck(since_s, now_s, believed_s, tuning)
        )

    def _is_stuck(self, since_s: float, now_s: float, believed_s: float, tuning: Tuning) -> bool:
        """Far beyond what any start took, while one that began no earlier serves already; or far beyond any belief.

        What starts took counts also where the user sets the lead: else each slower start would be replaced.
        """
        age_s, lead_s = now_s - since_s, self.lead_s(believed_s)
        hopeless_s = tuning.stuck_start_factor * max(lead_s, believed_s, median(self.took_s or [0.0]))
        if self.overtaken_s is None or since_s > self.overtaken_s:
            return age_s > hopeless_s
        # It may have failed and begun again once.
        longest_s = max(self.took_s, default=0.0)
        return age_s > min(hopeless_s, tuning.late_start_factor * max(2 * lead_s, longest_s))

    def _remaining_s(self, age_s: float, believed_s: float, tuning: Tuning) -> float:
        lead_s, late = self.lead_s(believed_s), tuning.late_start_factor
        if age_s <= late * lead_s:
            return max(0.0, lead_s - age_s)
        longer = sorted(took_s for took_s in self.took_s if took_s > age_s)
        if longer:  # as those that were late before
            return longer[len(longer) // 2] - age_s
        # Nothing is known but that most would serve by now: it failed, and begins again.
        return max(0.0, lead_s * math.ceil(age_s / lead_s - (late - 1)) - age_s)

    def _typical_s(self, now_s: float, believed_s: float, tuning: Tuning) -> float | None:
        """The median; before any start ended, no less than what the longest took so far."""
        if self.took_s:
            return median(self.took_s)
        running = [now_s - since_s for _, _, since_s, begun in self.starting if begun is not Begun.RETURNING]
        longest_s = max((age for age in running if age < tuning.stuck_start_factor * believed_s), default=0.0)
        return longest_s if longest_s > self.lead_s(believed_s) else self.start_s


def start_of_model(model: str, gpus: int, tuning: Tuning = SHIPPED) -> float:
    """Seconds until a worker serves, by the size in the model's name (``…-70B``, ``…-8x7B``), else by its GPUs.

    90 s for a model of 8 billion parameters, 5 minutes for 70, half an hour at most.
    """
    size = _SIZE.search(model)
    if size is not None:
        billions = float(size[2]) * float(size[1] or 1)
    else:
        billions = 8.0 if gpus <= 1 else 20.0 * gpus
    return min(1800.0, tuning.base_start_s + tuning.start_s_per_billion * billions)


def with_pods_start(policy: Policy, pods_start_s: float | None) -> Policy:
    """The policy with what workers that serve took to start, unless the user says what a start takes."""
    return policy if policy.start_is_told or pods_start_s is None else replace(policy, start_s=pods_start_s)
