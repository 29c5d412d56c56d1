"""The workers that the planner's decisions would have made, where nothing carries them out.

In ``Shadow`` and ``External``, and in ``Approve`` until a person has approved, the service stays as it is. What the
planner promises is judged on this fleet instead: a worker of it serves when its start or switch would have ended.
"""

from dataclasses import dataclass, field, replace

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.startup_time import Begun, Leads
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.sizing.pool_targets import Memory
from pointsman.planner.core.switch_guards import History
from pointsman.planner.core.types import Decision, Observation, Worker, WorkerCondition


@dataclass(frozen=True, slots=True)
class VirtualWorker:
    """``ready_s``: when it serves, or served first, in ``role``; ``switched``: it had the other role before."""

    role: Role
    ready_s: float
    switched: bool = False

    def shown(self, now_s: float, gpus: int) -> Worker:
        """As Kubernetes would show it."""
        condition = WorkerCondition.ACTIVE
        if self.ready_s > now_s:
            condition = WorkerCondition.SWITCHING if self.switched else WorkerCondition.STARTING
        return Worker("", self.role, condition, gpus)  # nothing that is estimated reads its name


@dataclass(frozen=True, slots=True)
class VirtualFleet:
    """Its workers, what the planner remembers of it, and requests that would wait."""

    workers: tuple[VirtualWorker, ...]
    memory: Memory = field(default_factory=Memory)
    history: History = field(default_factory=History)
    backlog: float = 0.0

    @classmethod
    def of(cls, observation: Observation) -> "VirtualFleet":
        """The workers that the service has, or soon will have."""
        there = (w for w in observation.workers if w.condition is not WorkerCondition.DRAINING)
        return cls(tuple(VirtualWorker(w.role, observation.at_s) for w in there))

    def serving(self, role: Role, now_s: float) -> int:
        """Workers that serve a role."""
        return sum(w.role is role and w.ready_s <= now_s for w in self.workers)

    def switches(self, now_s: float) -> bool:
        """Whether a worker is changing its role."""
        return any(w.switched and w.ready_s > now_s for w in self.workers)

    def leads(self, leads: Leads, lead_s: float, now_s: float) -> Leads:
        """``leads`` with the workers of this fleet that start, instead of those of the service."""
        starting = (w for w in self.workers if w.ready_s > now_s and not w.switched)
        begun = tuple(("", w.role, w.ready_s - lead_s, Begun.TIMED) for w in starting)
        return replace(leads, starting=begun, overtaken_s=None)

    def with_queue(self, point: OperatingPoint, arrivals_per_s: float, window_s: float, now_s: float) -> "VirtualFleet":
        """With the requests of a window that it could not serve, or without those of before that it could.

        A gateway refuses more than 4096 by default.
        """
        prefill, decode = (self.serving(role, now_s) for role in (Role.PREFILL, Role.DECODE))
        served_per_s = min(prefill * point.prefill_per_s, decode * point.drain_per_s)
        backlog = self.backlog + (arrivals_per_s - served_per_s) * window_s
        return replace(self, backlog=min(max(0.0, backlog), 4096.0))

    def carried_out(self, decision: Decision, now_s: float, lead_s: float, switch_s: float) -> "VirtualFleet":
        """With what a decision changes: workers switch, start or are removed; those that do not serve go first."""
        workers = list(self.workers)
        for switch in decision.switches:
            able = [w for w in workers if w.role is switch.source and w.ready_s <= now_s]
            for worker in able[: switch.count]:
                workers.remove(worker)
                workers.append(VirtualWorker(switch.target, now_s + switch_s, switched=True))
        for role, replicas in ((Role.PREFILL, decision.prefill), (Role.DECODE, decision.decode)):
            of_role = sorted((w for w in workers if w.role is role), key=lambda w: w.ready_s)
            for worker in of_role[replicas:]:
                workers.remove(worker)
            workers += [VirtualWorker(role, now_s + lead_s)] * (replicas - len(of_role))
        return replace(self, workers=tuple(workers))
