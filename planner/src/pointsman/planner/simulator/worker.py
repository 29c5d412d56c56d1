"""One simulated worker: its engine in both roles, and what a router knows of it."""

import math
from dataclasses import dataclass, field

from pointsman.api.protocol.names import Role
from pointsman.planner.core.types import WorkerCondition
from pointsman.planner.simulator.decode_engine import DecodeEngine
from pointsman.planner.simulator.pages import WorkerGauges, WorkerPage
from pointsman.planner.simulator.prefix_cache import PrefixBlocks
from pointsman.planner.simulator.request import Request


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """Mutable: the simulation moves it. A removed or crashed worker keeps its name and is never used again."""

    name: str
    role: Role
    condition: WorkerCondition
    since_s: float  # billed from here
    engine: DecodeEngine
    cache: PrefixBlocks
    started_in_s: float | None = None  # until it served; None: it does not yet, or it was there at the beginning
    next_role: Role | None = None  # while it switches
    removed: bool = False
    # as a decode worker
    assigned: dict[int, Request] = field(default_factory=dict)  # sent here and not ended
    pending_tokens: int = 0  # of them, prompts before their first token
    decoding: int = 0  # of them, after their first token
    scheduled: int = -1  # version of the engine that has an event
    # as a prefill worker
    batch: list[Request] = field(default_factory=list)
    batch_s: float = 0.0
    sending: dict[int, Request] = field(default_factory=dict)  # prefilled; the KV is not pulled yet
    link_free_s: float = 0.0
    drain_ends_s: float = math.inf
    transition: int = -1  # index of its open record

    @property
    def shown_role(self) -> Role:
        """As the operator shows it: a switching worker already has its new role."""
        return self.next_role or self.role

    @property
    def page(self) -> WorkerPage:
        """What is counted here, in either role."""
        return self.engine.page

    def gauges(self, now_s: float, queue_depth: int) -> WorkerGauges:
        """What it has now; ``queue_depth``: of the service's prefill queue."""
        return WorkerGauges(
            in_flight=len(self.assigned) + len(self.batch) + len(self.sending),
            queue_depth=queue_depth,
            running=max(self.engine.running, len(self.batch)),
            waiting=len(self.engine.waiting),
            used_tokens=self.engine.kv_tokens(now_s),
        )

    @property
    def busy(self) -> bool:
        """Something is in flight, queued or leased here."""
        return bool(self.assigned or self.batch or self.sending)

    @property
    def in_flight_tokens(self) -> int:
        """What would have to be waited for, in tokens: whose going costs least goes first."""
        here = sum(request.prompt_tokens + request.to_generate for request in self.assigned.values())
        return here + sum(request.prompt_tokens for request in self.batch)
