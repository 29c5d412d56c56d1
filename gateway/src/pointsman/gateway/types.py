"""The values that pass between discovery, router, forwarder and server. Frozen; None is unknown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType

from pointsman.api.protocol.names import Role
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds
from pointsman.serving.local_remote import RoutingRule
from pointsman.serving.objectives import Objectives

WorkerKey = NewType("WorkerKey", str)
"""Identity of a worker: its pod's uid, so a new pod of an old name is another worker."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker as discovery found it. Being here means: label says routable and the pod is Ready.

    ``ignores_embeddings``: there are encode workers, and this worker was started before them and does not fetch.
    """

    key: WorkerKey
    name: str  # the pod's name
    url: str  # http://host:port of engine and control API
    role: Role
    ignores_embeddings: bool = False


@dataclass(frozen=True, slots=True)
class Discovered:
    """What discovery knows. ``workers``: the routable set; ``rule``: the numbers, None where nobody set them.

    ``bounds``: how much this gateway may have under way before it queues requests. ``objectives``: of the policy,
    None where the service has none.
    """

    workers: tuple[Worker, ...] = ()
    rule: RoutingRule | None = None
    service_uid: str | None = None
    bounds: FlowBounds = UNBOUNDED
    objectives: Objectives | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker last published about itself; a value too old to be believed is None."""

    kv_usage: float | None = None  # 0..1
    waiting: int | None = None  # requests in the engine's queue
    running: int | None = None  # requests that the engine computes, of all gateways
    kv_active_blocks: int | None = None  # KV blocks that those use


UNKNOWN_LOAD = Load()


class Candidate(NamedTuple):
    """One worker in one routing decision (a tuple, because each decision makes one per worker).

    ``pending_tokens`` are prompt tokens that this gateway sent there and that have no first token yet;
    ``active_tokens`` prompt plus generated tokens of the requests that stream from there. Both are exact for this
    gateway and run ahead of the worker's own metrics.
    """

    key: WorkerKey
    overlap_tokens: int = 0
    load: Load = UNKNOWN_LOAD
    pending_requests: int = 0
    pending_tokens: int = 0
    active_requests: int = 0
    active_tokens: int = 0
    last_chosen: int = 0  # sequence number of this gateway's last choice of it; 0: never
    prefilled_elsewhere: bool = False  # there are prefill workers: what is pending there is computed by them
    engine_context_tokens: int | None = None  # of all gateways' requests there, as last reported; None: unknown


class Choice(NamedTuple):
    """A routing decision and the numbers it rests on (the debug log line shows them)."""

    chosen: Candidate
    candidates: Sequence[Candidate]
    costs: Sequence[float]
