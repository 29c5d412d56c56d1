"""What is seen of an elastic group, and what is decided."""

from dataclasses import dataclass, replace

from pointsman.planner.core.types import SERVES, Alternative, Observation, Reason, Switch, Worker, WorkerCondition
from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.step_sums import StepSums


@dataclass(frozen=True, slots=True)
class ManagerWindow:
    """What the manager counted between two looks, and what it holds now.

    ``steps``: decode steps. ``slots``: tokens of KV that all instances keep; ``free_slots``: that more would fit.
    ``waiting``: requests.
    """

    steps: StepSums
    slots: float
    free_slots: float
    waiting: float


@dataclass(frozen=True, slots=True)
class GroupObservation:
    """One elastic group at one moment.

    ``seen``: what its gateways say. ``instances``: its pods. ``latency``: measured times of prefills, by degree.
    ``desired``: instances that are asked for. ``manager`` None: not known.
    """

    seen: Observation
    instances: tuple[Worker, ...]
    desired: int
    max_degree: int
    latency: LatencyModel
    manager: ManagerWindow | None = None
    gpus_each: int = 1
    awaiting_approval: int | None = None  # instances of the plan that waits for a person
    needs_approval: bool = True  # … for what it changes, also by the policy and the layout of now
    stuck: frozenset[str] = frozenset()  # of instances that start: those that nobody should wait for

    @property
    def serving(self) -> int:
        """Instances that serve."""
        return sum(each.condition in SERVES for each in self.instances)

    @property
    def starting(self) -> int:
        """Instances that load the model and are expected to serve."""
        return sum(w.condition is WorkerCondition.STARTING and w.name not in self.stuck for w in self.instances)


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """How many instances there are to be, and why. Has what the ledger reads of a service's decision."""

    reason: Reason
    message: str
    instances: int
    changes_layout: bool = False
    withdraws: bool = False
    inputs: tuple[tuple[str, float], ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    switches: tuple[Switch, ...] = ()  # instances have no roles

    @property
    def target(self) -> tuple[int, ...]:
        """As ``Plan.spec.target``."""
        return (self.instances,)

    @property
    def changes_pools(self) -> bool:
        """Whether there are to be more or fewer instances."""
        return self.changes_layout

    def without_change(self, now: tuple[int, ...]) -> "GroupDecision":
        """Without the change of the layout, which stays ``now``: (instances,)."""
        return replace(self, instances=now[0], changes_layout=False)
