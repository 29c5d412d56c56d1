"""The simulator's boundary: a Trace and a Simulation go in, a Result comes out.

Times are seconds since the trace's start, engine times milliseconds as in ``core.performance``; units are in names.
Arrays have one entry a request, in the order of arrival. What did not happen is NaN, never 0.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Decision, NextTick, Objectives, Observation, Policy, RoutingNumbers
from pointsman.serving.local_remote import DEFAULT_RULE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


LEAST_RATED_S = 5.0  # a trace that is shorter has no rate
FIRST_ROUTING = RoutingNumbers(DEFAULT_RULE.max_local_prefill_tokens, DEFAULT_RULE.max_prefill_queue_size)


# --- what goes in ---


@dataclass(frozen=True, slots=True)
class Trace:
    """What clients asked. ``arrival_s`` rises and begins at 0 or later; lengths are tokens, at least 1.

    ``prefix_blocks``: per request the ids of its prompt's blocks of ``block_tokens`` tokens, equal ids for an equal
    prefix (Mooncake's ``hash_ids``); None: the trace does not know, see ``PrefixCache.assumed_hit_share``.
    ``images``: per request how many it has; None: none has any. Raises ValueError naming the field that is wrong.
    """

    name: str
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    prefix_blocks: tuple[tuple[int, ...], ...] | None = None
    block_tokens: int = 512
    images: Ints | None = None

    def __post_init__(self) -> None:
        count = len(self.arrival_s)
        for name in ("prompt_tokens", "output_tokens"):
            values = getattr(self, name)
            if len(values) != count:
                raise ValueError(f"{name} has {len(values)} entries, arrival_s has {count}: one each a request")
            if count and values.min() < 1:
                raise ValueError(f"{name} has {values.min()}: at least 1 token")
        if count and (
            not np.isfinite(self.arrival_s).all() or self.arrival_s[0] < 0 or (np.diff(self.arrival_s) < 0).any()
        ):
            raise ValueError("arrival_s must be finite, 0 or more, and rising")
        if self.prefix_blocks is not None and len(self.prefix_blocks) != count:
            raise ValueError(f"prefix_blocks has {len(self.prefix_blocks)} entries, arrival_s has {count}")
        if self.images is not None and (len(self.images) != count or (count and self.images.min() < 0)):
            raise ValueError("images must be a whole number of 0 or more, one each a request")
        if self.block_tokens < 1:
            raise ValueError(f"block_tokens is {self.block_tokens}: at least 1")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """When the last request arrives; 0 for an empty trace."""
        return float(self.arrival_s[-1]) if len(self) else 0.0


@dataclass(frozen=True, slots=True)
class Engine:
    """One worker's engine as it is *believed* to be: what the planner may be given. ``Truth`` says how it really is."""

    performance: PerformanceModel
    kv_capacity_tokens: int
    kv_bytes_per_token: int
    max_batch: int = 256  # sequences that decode at once
    max_batched_tokens: int = 8192  # of one engine step: the chunk of a prefill
    max_context_tokens: int = 131_072
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Truth:
    """How the real engine differs from ``Engine.performance``: factors on times, and a log-normal noise on each batch.

    Tables composed from kernel times are optimistic: 1.15 and 1.2 with σ = 0.08 is what a first comparison with
    end-to-end measurements gives.
    """

    prefill_kappa: float = 1.0
    decode_kappa: float = 1.0
    noise_sigma: float = 0.0
    encode_kappa: float = 1.0  # on ``EncodePool.image_ms``


@dataclass(frozen=True, slots=True)
class Leads:
    """How long changes take. A switch is drain + flip + verify; the drain ends by itself or at its timeout."""

    start_s: float = 120.0
    start_spread: float = 0.0  # a start takes start_s · (1 ± spread), uniformly
    flip_s: float = 2.0
    verify_s: float = 1.0
    drain_timeout_s: float = 60.0  # then what still runs is moved: computed again elsewhere
    reaction_s: float = 0.5  # from a decision to the operator's first act
    first_start_s: float | None = None  # what the workers of the beginning took, by their pods; None: ``start_s``
    first_starts_shown: bool = True  # False: those pods do not show it


@dataclass(frozen=True, slots=True)
class Network:
    """KV transfer from a prefill to a decode worker: ``hop_s + bytes / bytes_per_s``, one at a time from each."""

    bytes_per_s: float = 25e9
    hop_s: float = 0.003


@dataclass(frozen=True, slots=True)
class EncodePool:
    """Workers that make embeddings of images before prompts are prefilled, one image at a time each."""

    image_ms: float  # of a worker's time
    workers: int = 1  # at the start, ready
    gpus: int = 1  # of one worker


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Prefixes a worker still holds.

    Traces with ``prefix_blocks`` are looked up per worker, least recently used goes first; of others
    ``assumed_hit_share`` of every prompt is taken as cached, on any worker.
    """

    enabled: bool = True
    assumed_hit_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, all of it drawn from the simulation's seed."""

    start_failure_share: float = 0.0  # of starts: never ready, begun again after ``start_s``
    switch_failure_share: float = 0.0  # of switches: back in the old role after flip and verify
    crashes_per_worker_hour: float = 0.0
    metric_delay_s: float = 0.0
    metric_dropout_share: float = 0.0  # of scrapes, each target by itself
    metric_outages_s: tuple[tuple[float, float], ...] = ()  # (begin, end): no gateway can be read


@dataclass(frozen=True, slots=True)
class Simulation:
    """Everything but trace, policy and planner. The same values and ``seed`` give the same Result, bit by bit."""

    engine: Engine
    prefill_workers: int  # at the start, ready
    decode_workers: int
    routing: RoutingNumbers = FIRST_ROUTING
    truth: Truth = Truth()
    leads: Leads = Leads()
    network: Network = Network()
    prefix_cache: PrefixCache = PrefixCache()
    faults: Faults = Faults()
    encode: EncodePool | None = None  # needed where requests have images
    planner_knows_performance: bool = True  # ``base`` of decide; False: it learns from the service alone
    gateways: int = 1  # that requests go to in turn; flow control is one for all
    whole_answers_share: float = 0.0  # of clients, that do not stream
    added_s: tuple[float, float] = (0.0, 0.0)  # to the first token, and to each other, on its way to the client
    refused_per_s: float = 0.0  # that gateways refuse beside the trace, as of another model
    max_waiting: int | None = None  # requests waiting for prefill, per prefill worker, above which arrivals are shed
    drain_s: float = 300.0  # how long after the last arrival requests may end; later ones are UNFINISHED
    seed: int = 0


class Decide(Protocol):
    """``core.decide.decide`` or another planner of the same form; ``state`` is what it returned before."""

    def __call__(
        self, state: Any, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None, /
    ) -> tuple[Any, Decision, NextTick]: ...


@dataclass(frozen=True, slots=True)
class Planner:
    """A planner under test: its function and the state it begins with.

    ``measured``: it is given the engine's true times instead of the believed ones. For planners that profile the engine
    beforehand and have no calibration of their own here; ours must find the difference out. ``damped``: its routing
    numbers are in force when the live planner would publish them (``is_due``), not at once.
    """

    name: str
    decide: Decide
    first_state: Callable[[], Any]
    measured: bool = False
    damped: bool = False


# --- what comes out ---


class Outcome(IntEnum):
    """How a request ended. Every request has exactly one."""

    COMPLETED = 0
    SHED = 1
    UNFINISHED = 2  # not ended ``drain_s`` after the last arrival
    REFUSED = 3  # larger than a worker's KV cache or the context


class PrefillPlace(IntEnum):
    """Where a prompt was computed."""

    NOWHERE = 0
    LOCAL = 1
    REMOTE = 2


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """The service when the planner looked. Counts of workers are by role they have (or are about to have)."""

    at_s: float
    prefill_active: int
    decode_active: int
    starting: int
    switching: int
    draining: int
    prefill_queue: int
    held: int
    decoding: int
    decode_waiting: int
    kv_usage: float  # 0..1, mean over decode workers
    max_local_prefill_tokens: int
    arrivals: int  # since the point before
    observed: bool  # False: the metrics could not be read
    encode_active: int = 0
    encode_starting: int = 0
    encode_draining: int = 0
    images_waiting: int = 0
    unreachable_share: float | None = None  # of requests, as the planner takes it; None: its decision has no numbers


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision that changed something, or whose reason is another than the one before."""

    at_s: float
    decision: Decision
    refused: str = ""  # why the operator would not carry it out: outside the policy's bounds or budget


@dataclass(frozen=True, slots=True)
class TransitionRecord:
    """A worker's change. ``kind``: start, stop, switch, crash. ``ended_s`` NaN: not ended with the simulation."""

    kind: str
    worker: str
    role: Role | None  # the new one of a switch; None: it encodes
    began_s: float
    ended_s: float
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram with logarithmic bins: ``counts[i]`` values in ``edges[i]..edges[i+1]``."""

    edges: Floats
    counts: Floats

    def quantile(self, share: float) -> float:
        """The value below which ``share`` of the values are, interpolated; NaN without values."""
        total = self.counts.sum()
        if total <= 0:
            return float("nan")
        cumulative = np.concatenate(([0.0], np.cumsum(self.counts)))
        return float(np.interp(share * total, cumulative, self.edges))


@dataclass(frozen=True, slots=True)
class Served:
    """What happened to every request, and what it took."""

    trace: str
    planner: str
    seed: int
    objectives: Objectives
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    outcome: NDArray[np.int8]  # Outcome
    ttft_s: Floats
    tpot_s: Floats  # mean gap after the first token; NaN for one token and for what did not complete
    end_s: Floats
    gpu_hours: float  # all workers that exist: starting, switching and draining ones too
    peak_gpus: int
    ended_s: float

    @property
    def met(self) -> Flags:
        """Which requests met both objectives."""
        return self.ttft_met & self.tpot_met

    @property
    def ttft_met(self) -> Flags:
        """Which requests completed and had their first token in time."""
        goals_ms = np.array([self.objectives.ttft_for(tokens) for tokens in self.prompt_tokens.tolist()])
        in_time: Flags = self.ttft_s * 1000 <= goals_ms
        return in_time & self._completed

    @property
    def tpot_met(self) -> Flags:
        """Which requests completed and had the tokens after the first in time; one token is."""
        in_time: Flags = np.isnan(self.tpot_s) | (self.tpot_s * 1000 <= self.objectives.tpot_ms)
        return in_time & self._completed

    @property
    def _completed(self) -> Flags:
        completed: Flags = self.outcome == int(Outcome.COMPLETED)
        return completed

    @property
    def attainment(self) -> float:
        """Share of all arrived requests that met both objectives; 1 for an empty trace."""
        return float(self.met.mean()) if len(self.arrival_s) else 1.0

    @property
    def goodput_per_s(self) -> float | None:
        """Requests that met both objectives, per second of the trace; None: it is too short to speak of a rate."""
        lasted_s = float(self.arrival_s[-1]) if len(self.arrival_s) else 0.0
        return float(self.met.sum()) / lasted_s if lasted_s >= LEAST_RATED_S else None

    @property
    def goodput_per_gpu_hour(self) -> float:
        """Requests that met both objectives, per GPU-hour billed."""
        return float(self.met.sum()) / self.gpu_hours if self.gpu_hours > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Result(Served):
    """What happened to every request and to the workers of a service."""

    prefilled: NDArray[np.int8]  # PrefillPlace
    held_s: Floats  # that flow control held it back
    preemptions: Ints
    itl_s: Distribution  # of every gap between two tokens
    timeline: tuple[TimelinePoint, ...]
    decisions: tuple[DecisionRecord, ...]
    transitions: tuple[TransitionRecord, ...]
    unreachable: Decision | None = None  # the last one by which some requests miss an objective even if they are alone

    @property
    def switches(self) -> int:
        """Role switches that were begun."""
        return sum(t.kind == "switch" for t in self.transitions)

    def reversals(self, within_s: float = 600.0) -> int:
        """How often a pool was moved one way and, less than ``within_s`` later, the other way."""
        return reversals(self.transitions, within_s)


def reversals(transitions: tuple[TransitionRecord, ...], within_s: float = 600.0) -> int:
    """How often a pool was moved one way and, less than ``within_s`` later, the other way."""
    found = 0
    for role in (*LANGUAGE_ROLES, None):
        moves = sorted((t.began_s, _direction(t, role)) for t in transitions if _direction(t, role))
        for (before_s, before), (at_s, sign) in itertools.pairwise(moves):
            found += sign != before and at_s - before_s < within_s
    return found


def _direction(transition: TransitionRecord, role: Role | None) -> int:
    """+1 where a pool gets a worker by decision, -1 where it loses one, 0 where it is not concerned."""
    if transition.kind == "switch" and role is not None:
        return 1 if transition.role is role else -1
    if transition.role is not role:
        return 0
    return {"start": 1, "stop": -1}.get(transition.kind, 0)
