"""The boundary of the planner: an Observation goes in, a Decision comes out, a State is carried from tick to tick.

Units are in names. None is unknown, never 0. Everything is frozen and made of plain values, so that it can be written
to a ledger, sent to a person, and replayed.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role, workers_in_words
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET


class Layout(NamedTuple):
    """Workers of each role. As text: 1P2D."""

    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill}P{self.decode}D"

    @property
    def total(self) -> int:
        """Workers of both roles."""
        return self.prefill + self.decode

    def of(self, role: Role) -> int:
        """Workers of one role."""
        return self.prefill if role is Role.PREFILL else self.decode

    def most(self, *others: "Layout") -> "Layout":
        """Of each role the most that any of them has."""
        return Layout(max(self.prefill, *(o.prefill for o in others)), max(self.decode, *(o.decode for o in others)))

    def has(self, other: "Layout") -> bool:
        """Whether no role has fewer than in ``other``."""
        return self.prefill >= other.prefill and self.decode >= other.decode


def target_in_words(target: tuple[int, ...]) -> str:
    """``Plan.spec.target`` of a service: 1P2D, or 1E1P2D."""
    return workers_in_words(dict(zip((*LANGUAGE_ROLES, Role.ENCODE), target, strict=False)))


class WorkerCondition(StrEnum):
    """What a worker can do at the moment. Only ``ACTIVE`` ones are capacity now; all of them are billed."""

    STARTING = "Starting"
    ACTIVE = "Active"
    SWITCHING = "Switching"
    DRAINING = "Draining"
    UNREACHABLE = "Unreachable"  # counted as running, but nothing is known of it


SERVES: Final = (WorkerCondition.ACTIVE, WorkerCondition.UNREACHABLE)
MAX_WORKERS: Final = 512  # of which something is remembered by name


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker. ``role`` is the role it has, or (Switching, Starting) will have."""

    name: str
    role: Role
    condition: WorkerCondition
    gpus: int = 1  # its weight in the budget; a CPU engine weighs 1
    in_flight: int | None = None  # requests it has, waiting or running
    queued: int | None = None  # of those, waiting
    kv_usage: float | None = None  # 0..1


@dataclass(frozen=True, slots=True)
class EncodeLoad:
    """What came to the encode workers in the observation's window."""

    requests_per_s: float  # that have images
    images: float | None = None  # of those requests, mean; None: none came
    squared_images: float | None = None  # mean of the squares
    image_ms: float | None = None  # of a worker's time, mean over images; None: none was encoded
    waiting: float | None = None  # images that no worker has begun


@dataclass(frozen=True, slots=True)
class Uncached:
    """Tokens of the window's prompts that were not cached where they were asked for; sums."""

    requests: float  # that were given to a decode worker …
    prompt_tokens: float  # … tokens of their prompts …
    tokens: float  # … and what it lacked of them
    length_shares: tuple[tuple[float, float], ...] = ()  # (tokens it lacked, share of those requests)
    prefilled: float = 0.0  # requests that prefill workers computed …
    asked_tokens: float = 0.0  # … tokens of their prompts …
    computed_tokens: float = 0.0  # … and what they lacked of them
    only_local: tuple[tuple[str, float], ...] = ()  # (why no prefill worker can take them, share of all prompts)


@dataclass(frozen=True, slots=True)
class Load:
    """What arrived in the observation's window. Token counts are means per request."""

    arrivals_per_s: float
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    output_tokens: float | None = None
    prompt_length_shares: tuple[tuple[float, float], ...] = ()  # (tokens, share of requests), shares sum to 1
    answers: tuple[tuple[float, float, float], ...] = ()  # that ended: (prompt tokens, answers, their tokens)
    measured: float | None = None  # requests behind the means; None: about as many as arrived
    pulled_tokens: float | None = None  # whose KV came from prefill workers …
    pulling_s: float | None = None  # … in so many seconds, all pulls together
    uncached: Uncached | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """What clients got in the window. Attainments are shares of requests, 0..1, as gateways count them."""

    ttft_attainment: float | None = None  # of those that got their first token
    tpot_attainment: float | None = None  # of those that ended and had a second token
    attainment: float | None = None  # within both, of those that ended; without a second token TPOT cannot be missed
    prefill_queue_depth: float | None = None  # requests waiting for a prefill worker, mean of the window
    held: float | None = None  # requests the gateways hold back


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One measurement of the engine, for calibration: a pass, or a role's mean over the window."""

    role: Role
    observed_ms: float  # a prefill's time, or a decode step's
    tokens: float | None  # prefill: new tokens of all its prompts; decode: KV tokens of the batch (None: not known)
    batch: float = 1.0  # prompts or sequences in it
    tokens_scv: float | None = None  # squared coefficient of variation of a sequence's tokens
    local_tokens_per_s: float = 0.0  # decode: of prompts, computed on the same worker meanwhile
    lengths: tuple[tuple[float, float], ...] = ()  # prefill: (new tokens, share) of the window's prompts, about


@dataclass(frozen=True, slots=True)
class RoutingNumbers:
    """The live numbers of the local/remote rule, of flow control and of prefill workers' admission, as in
    ``LLMService.status.routing``."""

    max_local_prefill_tokens: int
    max_prefill_queue_size: int
    flow: FlowBounds = UNBOUNDED
    prefill_token_budget: int = DEFAULT_PREFILL_TOKEN_BUDGET  # prompt tokens a prefill worker computes at one time


@dataclass(frozen=True, slots=True)
class Observation:
    """One service at one moment. A part that is not known is None; ``age_s`` is the age of the oldest gateway's page or
    that of half of the workers, infinite where a gateway was never read; beside it those of both sources, as they are.
    """

    at_s: float
    window_s: float
    age_s: float
    workers: tuple[Worker, ...]
    routing: RoutingNumbers
    load: Load | None = None
    service: Service | None = None
    samples: tuple[EngineSample, ...] = ()
    kv_capacity_tokens: float | None = None  # of one worker
    max_sequences: float | None = None  # one worker decodes at once
    worker_gpus: int = 1  # of one that would be started
    pods_start_s: float | None = None  # what workers took until they served, by their pods; None: no pod shows it
    gateways: int = 1  # that share the requests
    new_gateways: int = 0  # of these, that were not read twice yet and will be: their requests are not in the load …
    unreadable_gateways: tuple[str, ...] = ()  # … and pods that should have been by now
    old_pages: int = 0  # of gateways or a group's manager, that stand for newer ones which could not be read
    long_unread: int = 0  # workers of which no page could be read for so long that nobody waits for one
    gateways_age_s: float | None = None  # of the oldest page; infinite: one was never read; None: nobody says
    workers_age_s: float | None = None  # … of those that serve
    plan_in_progress: bool = False  # the operator is still executing a plan's switches or scaling
    awaiting_approval: tuple[int, ...] | None = None  # ``Plan.spec.target`` of the plan that waits for a person
    needs_approval: bool = True  # … for what it changes, also by the policy and the layout of now
    encode_workers: tuple[Worker, ...] = ()  # they run another engine: no role switch reaches them
    encode_replicas: int | None = None  # that are asked for; None: no pool, only those that are left of one
    encode_gpus: int = 1  # of one encode worker, also where none is there
    encode: EncodeLoad | None = None  # None: not known, or there is no encode pool

    @property
    def unread(self) -> int:
        """Pages that could not be read at this look, but were lately. What they would show is taken to be as it was."""
        conditions = [w.condition for w in self.workers] + [w.condition for w in self.encode_workers]
        workers = max(0, conditions.count(WorkerCondition.UNREACHABLE) - self.long_unread)
        return self.old_pages + self.unread_gateways + workers

    @property
    def unread_gateways(self) -> int:
        """Gateways whose part of the load is not known. Above 0 the load is at least what is seen of it."""
        return self.new_gateways + len(self.unreadable_gateways)

    @property
    def gpus_each(self) -> int:
        """GPUs of one worker, by which a budget is divided."""
        return max([self.worker_gpus, *(w.gpus for w in self.workers)])

    @property
    def encode_desired(self) -> int:
        """Replicas of the encode pool, also while one of them is replaced. Draining workers are none."""
        there = sum(w.condition is not WorkerCondition.DRAINING for w in self.encode_workers)
        return there if self.encode_replicas is None else self.encode_replicas

    @property
    def gpus_in_use(self) -> int:
        """GPUs of the replicas of all pools, without draining workers and those of a pool that was removed."""
        return self.layout.total * self.gpus_each + (self.encode_replicas or 0) * self.encode_gpus

    def active(self, role: Role) -> int:
        """Workers that are known to serve ``role`` now."""
        return sum(w.role is role and w.condition is WorkerCondition.ACTIVE for w in self.workers)

    def serving(self, role: Role) -> int:
        """The same and those that could not be read: a page that is missing once is no worker that is missing."""
        return sum(w.role is role and w.condition in SERVES for w in self.workers)

    @property
    def layout(self) -> Layout:
        """Workers of each role that serve or soon will."""
        return Layout(self.committed(Role.PREFILL), self.committed(Role.DECODE))

    @property
    def pools(self) -> tuple[int, int, int]:
        """Replicas that prefill, decode and encode, as ``Plan.spec.target`` has them."""
        return (*self.layout, self.encode_desired)

    @property
    def serving_layout(self) -> Layout:
        """Workers of each role that serve, and those that could not be read."""
        return Layout(self.serving(Role.PREFILL), self.serving(Role.DECODE))

    def committed(self, role: Role) -> int:
        """Workers that serve ``role`` or soon will: starting and switching ones count at their new role."""
        return sum(w.role is role and w.condition is not WorkerCondition.DRAINING for w in self.workers)


# --- policy: what the PlannerPolicy says, as plain values ---


@dataclass(frozen=True, slots=True)
class Objectives:
    """``ttft = ttft_ms + ttft_ms_per_prompt_token · prompt``; ``attainment`` is the share that must meet both."""

    ttft_ms: float = 1500.0
    tpot_ms: float = 40.0
    ttft_ms_per_prompt_token: float = 0.0
    attainment: float = 0.95

    def ttft_for(self, prompt_tokens: float) -> float:
        """The TTFT objective of one prompt, in milliseconds."""
        return self.ttft_ms + self.ttft_ms_per_prompt_token * prompt_tokens


@dataclass(frozen=True, slots=True)
class Bounds:
    """Replicas of a pool, or instances of an elastic group."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything ``decide`` may and must respect. Defaults are those of the custom resource, or the planner's own where
    it has no such field."""

    mode: Mode = Mode.SHADOW
    objectives: Objectives = Objectives()
    max_gpus: int = 16
    min_gpus: int = 2
    reserved_gpus: int = 0  # for encode workers: a part of the budget that ``max_gpus`` is without
    prefill: Bounds = Bounds(1, 8)
    decode: Bounds = Bounds(1, 12)
    encode: Bounds | None = None  # None: the service has no encode pool
    interval_s: float = 2.5
    stale_after_s: float = 20.0
    remote_prefill: bool = True
    flow_control: bool = True
    role_switch: bool = True
    role_switch_needs_approval: bool = False  # of a person, also where the mode is Active
    max_in_transition_share: float = 0.20
    scale_out: bool = True
    scale_in: bool = True
    scale_in_stabilization_s: float = 120.0
    start_s: float = 90.0  # what a new worker is believed to take until it serves, before any start was seen
    seasonal: bool = True  # rises at the same time of earlier days are foreseen
    start_is_told: bool = False  # start_s is the user's and holds, whatever starts are seen to take
    tuning: Tuning = field(default=SHIPPED, repr=False)  # the planner's own constants

    @property
    def switchable(self) -> bool:
        """Whether a role changes in seconds: nobody is asked, but where somebody is asked for everything."""
        return self.role_switch and not self.role_switch_needs_approval

    def bounds(self, role: Role) -> Bounds:
        """The replicas a role's pool may have."""
        return self.prefill if role is Role.PREFILL else self.decode


# --- decision ---


class Reason(StrEnum):
    """Why a decision is what it is: a stable machine word; the sentence is beside it."""

    STEADY = "Steady"
    NOT_ENOUGH_DATA = "NotEnoughData"
    STALE_METRICS = "StaleMetrics"
    PLAN_IN_PROGRESS = "PlanInProgress"
    AWAITING_APPROVAL = "AwaitingApproval"  # a person has the plan for what is still wanted
    WITHDRAWN = "Withdrawn"  # … and for what is not: the plan is withdrawn
    SWITCH_DEFERRED = "SwitchDeferred"  # another split would be better, but a guard waits
    THRESHOLD = "Threshold"
    FLOW_CONTROL = "FlowControl"  # from when on gateways hold requests back
    PREFILL_SHORT = "PrefillShort"
    DECODE_SHORT = "DecodeShort"
    BOTH_SHORT = "BothShort"
    ENCODE_SHORT = "EncodeShort"
    INSTANCES_SHORT = "InstancesShort"  # of an elastic group
    SPARE_CAPACITY = "SpareCapacity"
    UNSATISFIABLE = "Unsatisfiable"


@dataclass(frozen=True, slots=True)
class Switch:
    """``count`` workers change their role."""

    source: Role
    target: Role
    count: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """A layout that was considered. ``expected_attainment`` is at the load that is planned for, with the queue to be
    cleared, once all of its workers serve: in ``lead_s``. ``rejected_because`` is empty for the chosen one."""

    prefill: int
    decode: int
    gpus: int
    expected_attainment: float
    lead_s: float
    action: str
    rejected_because: str = ""
    instances: int | None = None  # of an elastic group, which has no prefill and decode

    @property
    def layout(self) -> Layout:
        """Workers of each role."""
        return Layout(self.prefill, self.decode)

    @property
    def target(self) -> tuple[int, ...]:
        """(prefill, decode), or (instances,)."""
        return self.layout if self.instances is None else (self.instances,)

    @property
    def in_words(self) -> str:
        """For example 1P2D, or 4 instances."""
        if self.instances is None:
            return str(self.layout)
        return f"{self.instances} instance{'' if self.instances == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now. ``prefill``/``decode`` are the replicas *after* the switches have ended."""

    reason: Reason
    message: str
    prefill: int
    decode: int
    routing: RoutingNumbers
    switches: tuple[Switch, ...] = ()
    changes_layout: bool = False
    encode: int | None = None  # replicas that encode; None: there is no such pool, or it could not be seen
    changes_encode: bool = False
    routing_reason: Reason | None = None  # why routing changes; None: it does not
    withdraws: bool = False  # the plan that awaits approval: nobody wants it any more
    inputs: tuple[tuple[str, float], ...] = ()  # the numbers used, by name with unit
    alternatives: tuple[Alternative, ...] = ()

    @property
    def layout(self) -> Layout:
        """Workers of each role after the decision."""
        return Layout(self.prefill, self.decode)

    @property
    def changes_routing(self) -> bool:
        """Whether the numbers of routing are others than before."""
        return self.routing_reason is not None

    @property
    def target(self) -> tuple[int, ...]:
        """As ``Plan.spec.target``: (prefill, decode), and encode where it is decided."""
        return (self.prefill, self.decode) if self.encode is None else (self.prefill, self.decode, self.encode)

    @property
    def in_words(self) -> str:
        """For example 1P2D or 1E1P2D."""
        return target_in_words(self.target)

    @property
    def changes_pools(self) -> bool:
        """Whether any pool gets another number of workers."""
        return self.changes_layout or self.changes_encode

    def without_change(self, now: tuple[int, ...]) -> "Decision":
        """Without the change of the pools, which stay ``now``, as ``target`` has them."""
        prefill, decode, *encode = now
        reason = self.routing_reason or self.reason
        return replace(
            self, reason=reason, prefill=prefill, decode=decode, encode=encode[0] if encode else None, switches=(),
            changes_layout=False, changes_encode=False,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NextTick:
    """When the core wants to be called next."""

    after_s: float
