"""The boundary of a simulated elastic group: a Trace and a GroupSimulation go in, a GroupResult comes out.

Times are seconds since the trace's start; lengths are tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.types import Bounds, Policy
from pointsman.planner.simulator.types import Served, TransitionRecord
from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.requests import MemberLoad
from pointsman.serving.elastic.types import Settings

# --- what goes in ---


class Times(Protocol):
    """How long iterations take in truth, which need not be what the manager measured."""

    def prefill_s(self, members: int, lengths: Sequence[int]) -> float:
        """Of prompts of ``lengths`` on a group of ``members``."""

    def decode_s(self, loads: Sequence[MemberLoad]) -> float:
        """Of a token of each request; a load for each member."""

    def move_s(self, tokens: int) -> float:
        """Of the hand-over of the KV of ``tokens``."""


@dataclass(frozen=True, slots=True)
class Instances:
    """What every instance of a group is like.

    ``slots``: tokens of KV of one. ``latency``: what the manager measures of prefills, by degree. ``gpus``: of one.
    """

    times: Times
    latency: LatencyModel
    slots: int
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class GroupLeads:
    """How long changes take."""

    start_s: float = 120.0  # of a new instance: scheduling, image, weights
    start_spread: float = 0.0  # a start takes start_s * (1 ± spread), uniformly
    drain_timeout_s: float = 60.0  # then an instance ends with the KV that it could not hand over
    reaction_s: float = 0.5  # from a decision to the operator's first act
    status_s: float = 10.0  # between two looks of the operator at the manager, whose measurements it publishes


@dataclass(frozen=True, slots=True)
class GroupFaults:
    """What goes wrong, all of it drawn from the simulation's seed."""

    start_failure_share: float = 0.0  # of starts: never ready, begun again
    crashes_per_instance_hour: float = 0.0
    metric_dropout_share: float = 0.0  # of scrapes, each target by itself
    metric_outages_s: tuple[tuple[float, float], ...] = ()  # (begin, end): neither gateways nor manager can be read


@dataclass(frozen=True, slots=True)
class GroupSimulation:
    """Everything but trace, policy and planner. The same values and ``seed`` give the same GroupResult, bit by bit.

    ``ready``: instances that serve at the start. ``settings``: of the manager; its objectives are the policy's.
    ``streaming_share``: of requests, those whose clients stream. ``noise_sigma``: of a log-normal factor on the time of
    each iteration. ``drain_s``: how long after the last arrival requests may end.
    """

    instances: Instances
    ready: int
    bounds: Bounds
    max_degree: int
    settings: Settings = field(default_factory=Settings)
    leads: GroupLeads = GroupLeads()
    faults: GroupFaults = GroupFaults()
    gateways: int = 1
    streaming_share: float = 1.0
    noise_sigma: float = 0.0
    drain_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        least, most = self.bounds.least, self.bounds.most
        if not least <= self.ready <= most:
            raise ValueError(f"ready is {self.ready}; it must be within the bounds, {least} to {most}")
        if self.max_degree < 1 or self.gateways < 1:
            raise ValueError("max_degree and gateways must be at least 1")


class DecideGroup(Protocol):
    """``core.elastic.decide.decide`` or another planner of the same form; ``state`` is what it returned before."""

    def __call__(
        self, state: Any, observation: GroupObservation, policy: Policy, bounds: Bounds, now_s: float, /
    ) -> tuple[Any, GroupDecision]: ...


@dataclass(frozen=True, slots=True)
class GroupPlanner:
    """A planner under test: its function and the state it begins with."""

    name: str
    decide: DecideGroup
    first_state: Callable[[], Any]


# --- what comes out ---


@dataclass(frozen=True, slots=True)
class GroupPoint:
    """The group when the planner looked. ``degree``: of the largest group that computes; 0: nothing is computed."""

    at_s: float
    desired: int
    serving: int
    starting: int
    draining: int
    degree: int
    running: int
    waiting: int
    slots: int
    used_slots: int
    arrivals: int  # since the point before
    observed: bool  # False: the metrics could not be read


@dataclass(frozen=True, slots=True)
class GroupDecisionRecord:
    """A decision that changed something, or whose reason is another than the one before."""

    at_s: float
    decision: GroupDecision
    refused: str = ""  # why the operator would not carry it out: outside the group's bounds or the policy's budget


@dataclass(frozen=True, slots=True)
class GroupResult(Served):
    """What happened to every request and to the instances.

    ``iterations``: how many by (phase, members). ``moved_tokens``: by reason. ``recomputed``: prefills of requests that
    had lost KV.
    """

    timeline: tuple[GroupPoint, ...]
    decisions: tuple[GroupDecisionRecord, ...]
    transitions: tuple[TransitionRecord, ...]
    iterations: dict[tuple[str, int], int]
    moved_tokens: dict[str, int]
    recomputed: int

    @property
    def peak_instances(self) -> int:
        """The most that served at once, as the planner saw them."""
        return max((each.serving for each in self.timeline), default=0)
