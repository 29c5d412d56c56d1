"""How long a worker takes to change its role: believed at first, then learned from every one that does.

It is the drain that differs from service to service: seconds where answers are short, a minute and more where they are
not (and a policy has answers ended where they are).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.startup_time import MOST_ENDED
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import MAX_WORKERS, SERVES, Observation, Worker, WorkerCondition


@dataclass(frozen=True, slots=True)
class SwitchLeads:
    """``workers`` at the last look: (name, the role it has or gets, when it was first seen switching, if it is)."""

    workers: tuple[tuple[str, Role, float | None], ...] = ()
    took_s: tuple[float, ...] = ()  # of the last ones that reached their role, the newest first
    looked_s: float | None = None

    def begun(self, workers: Iterable[Worker]) -> list[Role]:
        """The new role of each worker that began to switch since the last look, also if it has ended: each once.

        One that was seen switching and now has another role was undone. One that starts is no switch: a new pod may
        have the name of an old one.
        """
        before, targets = {name: (role, since_s) for name, role, since_s in self.workers}, list[Role]()
        for w in workers:
            switching = w.condition is WorkerCondition.SWITCHING
            role, since_s = before.get(w.name, (None if switching else w.role, None))
            if w.role is not role and (switching or (since_s is None and w.condition in SERVES)):
                targets.append(w.role)
        return targets

    def observe(self, observation: Observation, tuning: Tuning = SHIPPED) -> "SwitchLeads":
        """Compare who switches with before. One that ends in its old role was undone and teaches nothing."""
        now_s = observation.at_s
        gap_s = observation.window_s if self.looked_s is None else max(0.0, now_s - self.looked_s)
        there = {w.name: w for w in observation.workers}
        took_s, known = list(self.took_s), {}
        # After a longer gap nobody knows when it ended, or began.
        if gap_s <= max(tuning.max_evaluation_gap_s, 2 * observation.window_s):
            known = {name: since_s for name, _, since_s in self.workers if since_s is not None}
            for name, role, _ in self.workers:
                worker = there.get(name)
                if name in known and worker is not None and worker.condition in SERVES and worker.role is role:
                    took_s.insert(0, max(1.0, now_s - gap_s / 2 - known[name]))
        switching = {w.name for w in observation.workers if w.condition is WorkerCondition.SWITCHING}
        workers = tuple(
            (w.name, w.role, known.get(w.name, now_s - gap_s / 2) if w.name in switching else None)
            for w in sorted(observation.workers, key=lambda w: w.name not in switching)
        )[:MAX_WORKERS]
        return SwitchLeads(workers, tuple(took_s[:MOST_ENDED]), now_s)

    def lead_s(self, tuning: Tuning = SHIPPED) -> float:
        """How long one typically takes, in seconds: the median of the last ones, and of the estimate."""
        return median([tuning.first_switch_s, *self.took_s])
