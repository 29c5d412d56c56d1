"""The instances of a group as Kubernetes has them: a StatefulSet whose highest ordinals go first.

A pod that is deleted drains: it hands its KV over and ends, at the latest at its drain timeout. Until then it has its
GPUs, and no pod of the same ordinal begins.
"""

import math
from dataclasses import dataclass, field
from random import Random

from pointsman.api.protocol.names import Role
from pointsman.planner.core.types import Worker, WorkerCondition
from pointsman.planner.simulator.elastic.serving import Serving
from pointsman.planner.simulator.elastic.types import GroupSimulation
from pointsman.planner.simulator.events import Events
from pointsman.planner.simulator.types import TransitionRecord


@dataclass(slots=True, eq=False)
class _Pod:
    ordinal: int
    since_s: float
    condition: WorkerCondition = WorkerCondition.STARTING
    open_record: int = -1
    gone: bool = False

    @property
    def name(self) -> str:
        return f"group-{self.ordinal}"


@dataclass
class Pods:
    """``desired``: spec.instances.replicas."""

    simulation: GroupSimulation
    serving: Serving
    events: Events
    rng: Random
    desired: int = 0
    peak_gpus: int = 0
    transitions: list[TransitionRecord] = field(default_factory=list)
    _pods: dict[int, _Pod] = field(default_factory=dict)
    _billed_s: float = 0.0
    _plan: int | None = None  # the number of the plan that is executed

    def begin(self) -> None:
        """With the instances that serve from the start."""
        self.desired = self.simulation.ready
        for ordinal in range(self.desired):
            pod = self._pods[ordinal] = _Pod(ordinal, self.events.now_s)
            self._serve(pod)
        self._count_peak()

    def submit(self, instances: int, gpus_allowed: int) -> str:
        """Have a plan executed. Returns why the operator refuses it, "" if it does not."""
        bounds, gpus = self.simulation.bounds, instances * self.simulation.instances.gpus
        if gpus > gpus_allowed:
            return f"it takes {gpus} GPUs, budget.maxGpus of the policy is {gpus_allowed}"
        if not bounds.least <= instances <= bounds.most:
            return f"{instances} is not within spec.instances ({bounds.least} to {bounds.most})"
        self._plan = instances
        self.events.at(self.events.now_s + self.simulation.leads.reaction_s, self._scale, instances)
        return ""

    @property
    def plan_in_progress(self) -> bool:
        """A plan is executing until all its instances are ready and no other one is left."""
        return self._plan is not None

    def workers(self) -> tuple[Worker, ...]:
        """As the planner sees the pods."""
        gpus = max(self.simulation.instances.gpus, 1)
        found = (Worker(pod.name, Role.DECODE, pod.condition, gpus=gpus) for pod in self._pods.values())
        return tuple(sorted(found, key=lambda worker: worker.name))

    def count(self, condition: WorkerCondition) -> int:
        """Pods in it."""
        return sum(pod.condition is condition for pod in self._pods.values())

    def gpu_hours(self) -> float:
        """Of all pods until now."""
        lasting_s = sum(self.events.now_s - pod.since_s for pod in self._pods.values())
        return (self._billed_s + lasting_s) * self.simulation.instances.gpus / 3600

    def dismissed(self, name: str) -> None:
        """An instance that drains holds nothing any more: it ends."""
        for pod in list(self._pods.values()):
            if pod.name == name:
                self.events.at(self.events.now_s, self._end, (pod, True))

    # --- reconciliation ---

    def _scale(self, instances: int) -> None:
        self.desired = instances
        self._reconcile()

    def _reconcile(self) -> None:
        for ordinal in sorted(self._pods, reverse=True):
            pod = self._pods[ordinal]
            if ordinal >= self.desired and pod.condition is not WorkerCondition.DRAINING:
                self._delete(pod)
        for ordinal in range(self.desired):
            if ordinal not in self._pods:
                self._start(ordinal)
        if len(self._pods) == self.desired == self.count(WorkerCondition.ACTIVE) and self._plan == self.desired:
            self._plan = None

    def _start(self, ordinal: int) -> None:
        pod = self._pods[ordinal] = _Pod(ordinal, self.events.now_s)
        self._count_peak()
        self._record(pod, "start")
        self.events.at(self._ready_at_s(), self._ready, pod)

    def _ready_at_s(self) -> float:
        leads = self.simulation.leads
        return self.events.now_s + leads.start_s * (1 + leads.start_spread * self.rng.uniform(-1, 1))

    def _ready(self, pod: _Pod) -> None:
        if pod.gone:
            return
        if self.rng.random() < self.simulation.faults.start_failure_share:
            self.events.at(self._ready_at_s(), self._ready, pod)
            return
        self._ended(pod, True)
        self._serve(pod)
        self.serving.plan()
        self._reconcile()

    def _serve(self, pod: _Pod) -> None:
        pod.condition = WorkerCondition.ACTIVE
        domain = pod.ordinal // self.simulation.max_degree
        self.serving.join(pod.name, self.simulation.instances.slots, domain)
        rate = self.simulation.faults.crashes_per_instance_hour
        if rate > 0:
            self.events.at(self.events.now_s + self.rng.expovariate(rate) * 3600, self._crash, pod)

    def _delete(self, pod: _Pod) -> None:
        started = pod.condition is WorkerCondition.STARTING
        if started:
            self._ended(pod, False)
        pod.condition = WorkerCondition.DRAINING
        self._record(pod, "stop")
        if started:
            self._end((pod, True))
            return
        self.events.at(self.events.now_s + self.simulation.leads.drain_timeout_s, self._end, (pod, False))
        self.serving.drain(pod.name)

    def _crash(self, pod: _Pod) -> None:
        if pod.gone:
            return
        self._ended(pod, False)
        self._record(pod, "crash")
        self._end((pod, True))

    def _end(self, what: tuple[_Pod, bool]) -> None:
        pod, handed_over = what
        if pod.gone:
            return
        pod.gone = True
        del self._pods[pod.ordinal]
        self._billed_s += self.events.now_s - pod.since_s
        self._ended(pod, handed_over)
        self.serving.leave(pod.name)
        self._reconcile()

    # --- records ---

    def _count_peak(self) -> None:
        self.peak_gpus = max(self.peak_gpus, len(self._pods) * self.simulation.instances.gpus)

    def _record(self, pod: _Pod, kind: str) -> None:
        pod.open_record = len(self.transitions)
        self.transitions.append(TransitionRecord(kind, pod.name, None, self.events.now_s, math.nan, False))

    def _ended(self, pod: _Pod, succeeded: bool) -> None:
        if pod.open_record >= 0:
            of = self.transitions[pod.open_record]
            self.transitions[pod.open_record] = TransitionRecord(
                of.kind, of.worker, of.role, of.began_s, self.events.now_s, succeeded
            )
            pod.open_record = -1
