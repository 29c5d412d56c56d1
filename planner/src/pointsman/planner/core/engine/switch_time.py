"""How long a worker takes to change its role: believed at first, then learned from every one that does.

It is the drain that differs from service to service: seconds where answers are short, a minute and more where they are
not (and a policy has answers ended where they are).
"""

from dataclasses import dataclass
from statistics import median

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.startup_time import MOST_ENDED
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import MAX_WORKERS, SERVES, Observation, WorkerCondition


@dataclass(frozen=True, slots=True)
class SwitchLeads:
    """``running``: (name, the role it gets, when it was first seen switching) of those that still are."""

    running: tuple[tuple[str, Role, float], ...] = ()
    took_s: tuple[float, ...] = ()  # of the last ones that reached their role, the newest first
    looked_s: float | None = None

    def observe(self, observation: Observation, tuning: Tuning = SHIPPED) -> "SwitchLeads":
        """Compare who switches with before. One that ends in its old role was undone and teaches nothing."""
        now_s = observation.at_s
        gap_s = observation.window_s if self.looked_s is None else max(0.0, now_s - self.looked_s)
        there = {w.name: w for w in observation.workers}
        took_s, known = list(self.took_s), {}
        if gap_s <= max(
            tuning.max_evaluation_gap_s, 2 * observation.window_s
        ):  # else nobody knows when it ended, or began
            known = {name: since_s for name, _, since_s in self.running}
            for name, role, since_s in self.running:
                worker = there.get(name)
                if worker is not None and worker.condition in SERVES and worker.role is role:
                    took_s.insert(0, max(1.0, now_s - gap_s / 2 - since_s))
        running = tuple(
            (w.name, w.role, known.get(w.name, now_s - gap_s / 2))
            for w in observation.workers
            if w.condition is WorkerCondition.SWITCHING
        )[:MAX_WORKERS]
        return SwitchLeads(running, tuple(took_s[:MOST_ENDED]), now_s)

    def lead_s(self, tuning: Tuning = SHIPPED) -> float:
        """How long one typically takes, in seconds: the median of the last ones, and of the estimate."""
        return median([tuning.first_switch_s, *self.took_s])
