"""How long a new worker takes until it serves: believed at first, then learned from every one that starts."""

from dataclasses import dataclass, replace
from typing import Final

from pointsman.planner.core.types import Observation, WorkerCondition, WorkerRole

LEARNING_WEIGHT: Final = 0.3  # of one start
MOST_STARTING: Final = 256  # remembered by name
STUCK_LEADS: Final = 4.0  # one that starts so many believed leads is stuck and teaches nothing
SHORTEST_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Leads:
    """``starting``: (name, role, when it was first seen starting) of those that still are."""

    start_s: float | None = None  # learned; None: nothing started yet
    starting: tuple[tuple[str, WorkerRole, float], ...] = ()

    def observe(self, observation: Observation, window_s: float, believed_s: float) -> "Leads":
        """Compare who starts and who serves with before. A start that vanished teaches nothing."""
        now_s = observation.at_s
        conditions = {w.name: w.condition for w in observation.workers}
        known = {name: since_s for name, _, since_s in self.starting}
        learned = self.start_s
        for name, since_s in known.items():
            if conditions.get(name) is WorkerCondition.ACTIVE:
                # On average it was ready half a window ago.
                took_s = max(SHORTEST_S, now_s - since_s - window_s / 2)
                learned = took_s if learned is None else learned + LEARNING_WEIGHT * (took_s - learned)
        lead_s = believed_s if learned is None else learned
        for since_s in known.values():
            if lead_s < now_s - since_s < STUCK_LEADS * believed_s:
                learned = lead_s = now_s - since_s  # it takes at least as long as it already does
        # One seen for the first time began some time in the window: half of it ago.
        starting = tuple(
            (w.name, w.role, known.get(w.name, now_s - window_s / 2))
            for w in observation.workers
            if w.condition is WorkerCondition.STARTING
        )[:MOST_STARTING]
        return replace(self, start_s=learned, starting=starting)

    def lead_s(self, believed_s: float) -> float:
        """How long a start takes, learned or believed."""
        return self.start_s if self.start_s is not None else believed_s

    def ready_in_s(self, role: WorkerRole, now_s: float, believed_s: float) -> list[float]:
        """When each starting worker of a role is expected to serve, soonest first, in seconds from now."""
        lead_s = self.lead_s(believed_s)
        return sorted(max(0.0, since_s + lead_s - now_s) for _, r, since_s in self.starting if r is role)
