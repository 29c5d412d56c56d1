"""The workers as the operator moves them: starts, switches, drains, crashes, and plans carried out step by step.

A plan's routing numbers hold at once; then its switches, then its replicas; a failed switch ends the plan without
scaling, and a newer plan supersedes an older one. A switch is drain, flip, verify; a failed one leaves the worker in
its old role.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import median_low

from pointsman.api.protocol.names import Role
from pointsman.planner.core.types import Decision, Policy, Worker, WorkerCondition
from pointsman.planner.simulator.budget import Budget
from pointsman.planner.simulator.decode_engine import DecodeEngine
from pointsman.planner.simulator.events import Events
from pointsman.planner.simulator.prefix_cache import PrefixBlocks
from pointsman.planner.simulator.request_path import RequestPath
from pointsman.planner.simulator.types import Simulation, TransitionRecord
from pointsman.planner.simulator.worker import SimulatedWorker

NOT_CAPACITY_SOON = (WorkerCondition.DRAINING,)


@dataclass(slots=True)
class _Plan:
    """The layout plan that is being carried out."""

    decision: Decision
    failed: bool = False
    scaled: bool = False


@dataclass(slots=True)
class _Transition:
    """A TransitionRecord in the making."""

    kind: str
    worker: str
    role: Role
    began_s: float
    ended_s: float = math.nan
    succeeded: bool = False

    def record(self) -> TransitionRecord:
        return TransitionRecord(self.kind, self.worker, self.role, self.began_s, self.ended_s, self.succeeded)


class Fleet:
    """All workers of the service, those that are gone included in the bill."""

    def __init__(
        self,
        simulation: Simulation,
        policy: Policy,
        path: RequestPath,
        events: Events,
        budget: Budget,
        rng: Random,
        new_engine: Callable[[], DecodeEngine],
        block_tokens: int,
    ) -> None:
        self._simulation = simulation
        self._policy = policy
        self._path = path
        self._events = events
        self._budget = budget
        budget.when_given_back(self._find_room)
        self._rng = rng
        self._new_engine = new_engine
        self._cache_blocks = simulation.engine.kv_capacity_tokens // block_tokens
        self._named = 0
        self._plan: _Plan | None = None
        self._lacks_room = False  # a worker is missing, and the budget has no room for it
        self._to_begin = 0  # plans decided, not yet seen by the operator
        self._billed_s = 0.0
        self._transitions: list[_Transition] = []
        self.workers: list[SimulatedWorker] = []
        self.wanted = {Role.PREFILL: simulation.prefill_workers, Role.DECODE: simulation.decode_workers}
        for role, count in self.wanted.items():
            for _ in range(count):
                worker = self._new(role)
                worker.condition = WorkerCondition.ACTIVE
                self._path.admit(worker, role is Role.PREFILL, 0.0)
                self._arm(worker)

    # --- what is seen ---

    def shown(self) -> list[Worker]:
        """Every worker as Kubernetes shows it."""
        return [
            Worker(
                name=worker.name,
                role=worker.shown_role,
                condition=worker.condition,
                gpus=self._simulation.engine.gpus,
            )
            for worker in self.workers
        ]

    @property
    def pods_start_s(self) -> float | None:
        """What workers that serve took to start, as their pods show it."""
        leads = self._simulation.leads
        first_s = leads.start_s if leads.first_start_s is None else leads.first_start_s
        serving = (worker for worker in self.workers if worker.condition is WorkerCondition.ACTIVE)
        shown = (
            worker.started_in_s for worker in serving if worker.started_in_s is not None or leads.first_starts_shown
        )
        took_s = [first_s if started_in_s is None else started_in_s for started_in_s in shown]
        return median_low(took_s) if took_s else None

    @property
    def plan_in_progress(self) -> bool:
        """A plan that changes the layout, or a switch, has not ended."""
        return self._plan is not None or self._to_begin > 0 or self._switching()

    def count(self, condition: WorkerCondition, role: Role | None = None) -> int:
        """Workers in a condition, of one role or of both."""
        return sum(w.condition is condition and (role is None or w.shown_role is role) for w in self.workers)

    def gpu_hours(self, now_s: float) -> float:
        """Of all workers so far, whatever they did."""
        running = sum(now_s - worker.since_s for worker in self.workers)
        return (self._billed_s + running) * self._simulation.engine.gpus / 3600

    def transitions(self) -> tuple[TransitionRecord, ...]:
        """All, in the order they began."""
        return tuple(transition.record() for transition in self._transitions)

    # --- plans ---

    def submit(self, decision: Decision) -> str:
        """Have a decision carried out; returns why it is refused, "" if it is not."""
        refusal = self._refusal(decision)
        if not refusal:
            self._to_begin += 1
            self._events.at(self._events.now_s + self._simulation.leads.reaction_s, self._begin, decision)
        return refusal

    def _refusal(self, decision: Decision) -> str:
        policy, gpus = self._policy, self._simulation.engine.gpus
        total = (decision.prefill + decision.decode) * gpus
        if total > policy.max_gpus:
            return f"it takes {total} GPUs, budget.maxGpus of the policy is {policy.max_gpus}"
        for role, replicas in ((Role.PREFILL, decision.prefill), (Role.DECODE, decision.decode)):
            bounds = policy.bounds(role)
            if not bounds.least <= replicas <= bounds.most:
                return f"{role} {replicas} is not within {bounds.least} to {bounds.most}"
        return ""

    def _begin(self, decision: Decision) -> None:
        self._to_begin -= 1
        self._plan = plan = _Plan(decision)
        for switch in decision.switches:
            able = [w for w in self.workers if w.role is switch.source and w.condition is WorkerCondition.ACTIVE]
            # Never the last of a role: nobody would serve it.
            victims = sorted(able, key=lambda w: w.in_flight_tokens)[: min(switch.count, len(able) - 1)]
            plan.failed = plan.failed or len(victims) < switch.count
            for worker in victims:
                self._switch(worker, switch.target)
        self._go_on()

    def _go_on(self) -> None:
        """The plan's next step, whenever something ended."""
        plan = self._plan
        if plan is None or self._switching():
            return
        if plan.failed:
            self._plan = None
            return
        if not plan.scaled:
            plan.scaled = True
            self.wanted = {Role.PREFILL: plan.decision.prefill, Role.DECODE: plan.decision.decode}
            self._reconcile()
        if all(self.count(WorkerCondition.ACTIVE, role) == count for role, count in self.wanted.items()):
            self._plan = None

    def _switching(self) -> bool:
        return any(worker.condition is WorkerCondition.SWITCHING for worker in self.workers)

    def _reconcile(self, _due: None = None) -> None:
        """As many workers of each role as are wanted: leaving ones are taken back first, unready ones leave first.

        All that live are within the budget, leaving ones included: what has no room there is started as others go.
        """
        self._lacks_room = False
        for role, wanted in self.wanted.items():
            counted = [w for w in self.workers if w.shown_role is role and w.condition not in NOT_CAPACITY_SOON]
            missing = wanted - len(counted)
            if missing > 0:
                leaving = [w for w in self.workers if w.role is role and w.condition is WorkerCondition.DRAINING]
                for worker in sorted(leaving, key=lambda w: -w.drain_ends_s)[:missing]:
                    self._return(worker)
                    missing -= 1
                room = max(0, self._budget.left // self._simulation.engine.gpus)
                self._lacks_room = self._lacks_room or room < missing
                for _ in range(min(missing, room)):
                    self._start(role)
            elif missing < 0:
                order = sorted(
                    (w for w in counted if w.condition is not WorkerCondition.SWITCHING),
                    key=lambda w: (w.condition is not WorkerCondition.STARTING, w.in_flight_tokens, -w.since_s),
                )
                for worker in order[:-missing]:
                    self._stop(worker)

    # --- starts ---

    def _new(self, role: Role) -> SimulatedWorker:
        self._named += 1
        worker = SimulatedWorker(
            name=f"worker-{self._named:03}",
            role=role,
            condition=WorkerCondition.STARTING,
            since_s=self._events.now_s,
            engine=self._new_engine(),
            cache=PrefixBlocks(self._cache_blocks),
        )
        self.workers.append(worker)
        self._budget.take(self._simulation.engine.gpus)
        return worker

    def _start(self, role: Role) -> None:
        worker = self._new(role)
        self._record(worker, "start", role)
        self._events.at(self._ready_at_s(), self._ready, worker)

    def _ready_at_s(self) -> float:
        leads = self._simulation.leads
        return self._events.now_s + leads.start_s * (1 + leads.start_spread * self._rng.uniform(-1, 1))

    def _ready(self, worker: SimulatedWorker) -> None:
        if worker.removed:
            return
        if self._rng.random() < self._simulation.faults.start_failure_share:
            self._events.at(self._ready_at_s(), self._ready, worker)
            return
        worker.condition, worker.started_in_s = WorkerCondition.ACTIVE, self._events.now_s - worker.since_s
        self._ended(worker, True)
        self._path.admit(worker, worker.role is Role.PREFILL, self._events.now_s)
        self._arm(worker)
        self._go_on()

    # --- switches ---

    def _switch(self, worker: SimulatedWorker, target: Role) -> None:
        self._path.withdraw(worker, worker.role is Role.PREFILL)
        worker.condition, worker.next_role = WorkerCondition.SWITCHING, target
        self.wanted[worker.role] -= 1
        self.wanted[target] += 1
        self._record(worker, "switch", target)
        self._drain(worker)

    def _flipped(self, worker: SimulatedWorker) -> None:
        if worker.removed or worker.next_role is None:
            return
        succeeded = self._rng.random() >= self._simulation.faults.switch_failure_share
        if succeeded:
            worker.role = worker.next_role
        else:
            self.wanted[worker.next_role] -= 1
            self.wanted[worker.role] += 1
            if self._plan is not None:
                self._plan.failed = True
        worker.next_role = None
        worker.condition = WorkerCondition.ACTIVE
        self._ended(worker, succeeded)
        self._path.admit(worker, worker.role is Role.PREFILL, self._events.now_s)
        self._go_on()

    # --- drains ---

    def _stop(self, worker: SimulatedWorker) -> None:
        starting = worker.condition is WorkerCondition.STARTING
        if not starting:
            self._path.withdraw(worker, worker.role is Role.PREFILL)
        worker.condition = WorkerCondition.DRAINING
        self._record(worker, "stop", worker.role)
        if starting:
            self._remove(worker, True)
        else:
            self._drain(worker)

    def _return(self, worker: SimulatedWorker) -> None:
        """A leaving worker is needed again."""
        worker.condition, worker.drain_ends_s = WorkerCondition.ACTIVE, math.inf
        self._ended(worker, False)
        self._record(worker, "start", worker.role)
        self._ended(worker, True)
        self._path.admit(worker, worker.role is Role.PREFILL, self._events.now_s)

    def _drain(self, worker: SimulatedWorker) -> None:
        worker.drain_ends_s = self._events.now_s + self._simulation.leads.drain_timeout_s
        if worker.busy:
            self._events.at(worker.drain_ends_s, self._drain_timeout, (worker, worker.drain_ends_s))
        else:
            self._drained(worker)

    def _drain_timeout(self, due: tuple[SimulatedWorker, float]) -> None:
        worker, ends_s = due
        if worker.removed or worker.drain_ends_s != ends_s:
            return
        self._path.displace(worker, self._events.now_s, died=True)
        self._drained(worker)

    def look_at_freed(self) -> None:
        """Leaving workers whose last request ended since the last look."""
        while self._path.freed:
            worker = self._path.freed.pop()
            leaving = worker.condition in (WorkerCondition.SWITCHING, WorkerCondition.DRAINING)
            if leaving and not worker.removed and not worker.busy and worker.drain_ends_s < math.inf:
                self._drained(worker)

    def _drained(self, worker: SimulatedWorker) -> None:
        worker.drain_ends_s = math.inf
        if worker.condition is WorkerCondition.DRAINING:
            self._remove(worker, True)
            return
        leads = self._simulation.leads
        self._events.at(self._events.now_s + leads.flip_s + leads.verify_s, self._flipped, worker)

    # --- ends ---

    def _remove(self, worker: SimulatedWorker, succeeded: bool) -> None:
        self._ended(worker, succeeded)
        worker.removed = True
        self.workers.remove(worker)
        self._billed_s += self._events.now_s - worker.since_s
        self._budget.give_back(self._simulation.engine.gpus)
        self._go_on()

    def _find_room(self) -> None:
        if self._lacks_room:
            self._events.at(self._events.now_s, self._reconcile)

    def _arm(self, worker: SimulatedWorker) -> None:
        """Draw when it crashes."""
        rate = self._simulation.faults.crashes_per_worker_hour
        if rate > 0:
            self._events.at(self._events.now_s + self._rng.expovariate(rate) * 3600, self._crash, worker)

    def _crash(self, worker: SimulatedWorker) -> None:
        """It is gone at once, with all KV; what it had is done again; another is started in its place."""
        if worker.removed:
            return
        role, stays = worker.shown_role, worker.condition is not WorkerCondition.DRAINING
        if worker.condition is WorkerCondition.ACTIVE:
            self._path.withdraw(worker, worker.role is Role.PREFILL)
        if worker.next_role is not None:
            self._ended(worker, False)
            if self._plan is not None:
                self._plan.failed = True
            worker.next_role = None
        worker.condition = WorkerCondition.DRAINING
        self._record(worker, "crash", role)
        worker.removed = True
        self._path.displace(worker, self._events.now_s, died=True)
        self._remove(worker, True)
        if stays:
            self._reconcile()

    # --- records ---

    def _record(self, worker: SimulatedWorker, kind: str, role: Role) -> None:
        worker.transition = len(self._transitions)
        self._transitions.append(_Transition(kind, worker.name, role, self._events.now_s))

    def _ended(self, worker: SimulatedWorker, succeeded: bool) -> None:
        if worker.transition >= 0:
            open_one = self._transitions[worker.transition]
            open_one.ended_s, open_one.succeeded = self._events.now_s, succeeded
            worker.transition = -1
