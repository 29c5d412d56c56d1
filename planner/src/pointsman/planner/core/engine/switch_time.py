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


def is_switching(worker: Worker) -> bool:
    """Whether it leaves its role for the one that it is shown with."""
    return worker.condition is WorkerCondition.SWITCHING


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
        before = {name: (role, since_s) for name, role, since_s in self.workers}

        def begins(worker: Worker) -> bool:
            role, since_s = before.get(worker.name, (None if is_switching(worker) else worker.role, None))
            return worker.role is not role and (
                is_switching(worker) or (since_s is None and worker.condition in SERVES)
            )

        return [worker.role for worker in workers if begins(worker)]

    def observe(self, observation: Observation, tuning: Tuning = SHIPPED) -> "SwitchLeads":
        """Compare who switches with before. One that ends in its old role was undone and teaches nothing."""
        gap_s = observation.window_s if self.looked_s is None else max(0.0, observation.at_s - self.looked_s)
        between_s = observation.at_s - gap_s / 2  # what happened since the last look happened then, on average
        # After a longer gap nobody knows when it ended, or began.
        is_known = gap_s <= max(tuning.max_evaluation_gap_s, 2 * observation.window_s)
        known = {name: (role, s) for name, role, s in self.workers if is_known and s is not None}
        serve = {w.name: w.role for w in observation.workers if w.condition in SERVES}
        ended = [max(1.0, between_s - s) for name, (role, s) in known.items() if serve.get(name) is role]
        began_s = {name: s for name, (_, s) in known.items()}
        workers = tuple(
            (w.name, w.role, began_s.get(w.name, between_s) if is_switching(w) else None)
            for w in sorted(observation.workers, key=is_switching, reverse=True)
        )[:MAX_WORKERS]
        return SwitchLeads(workers, (*reversed(ended), *self.took_s)[:MOST_ENDED], observation.at_s)

    def lead_s(self, tuning: Tuning = SHIPPED) -> float:
        """How long one typically takes, in seconds: the median of the last ones, and of the estimate."""
        return median([tuning.first_switch_s, *self.took_s])
