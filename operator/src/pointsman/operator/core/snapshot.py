"""Everything the operator knows about one service at one moment, as one frozen value."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from pointsman.api.protocol.control import WorkerState
from pointsman.api.protocol.names import ENGINE_PORT, Role, address_url
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.api.v1alpha1.plan import PlanSpec, PlanStatus
from pointsman.api.v1alpha1.plannerpolicy import Mode, PlannerPolicySpec
from pointsman.api.v1alpha1.roleswitch import RoleSwitchSpec, RoleSwitchStatus, SwitchPhase
from pointsman.api.v1alpha1.workerpool import WorkerPoolStatus
from pointsman.operator.core.ledger import Ledger, PoolChange, apply_changes
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET

FINISHED_KEPT_S: Final = 30.0


class DrainReason(StrEnum):
    """Why a worker leaves; kept on the pod, so that a restarted operator goes on where it was."""

    SCALE_DOWN = "ScaleDown"  # may be taken back while the worker still lives
    SERVICE_DELETED = "ServiceDeleted"
    ROLE_SWITCH = "RoleSwitch"  # told to a worker that finishes its old role; the pod stays
    UNHEALTHY = "Unhealthy"  # it serves in no role: replaced


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainScore:
    """What a worker was chosen by when its pool shrank. None: unknown."""

    in_flight_tokens: int | None = None
    cached_blocks: int | None = None

    @classmethod
    def of(cls, state: WorkerState | None) -> "DrainScore":
        """Of a worker's state; None: it did not answer."""
        if state is None:
            return cls()
        return cls(in_flight_tokens=state.in_flight_tokens, cached_blocks=state.cached_blocks)

    def __str__(self) -> str:
        """As the pod's annotation has it."""
        return "/".join("" if number is None else str(number) for number in (self.in_flight_tokens, self.cached_blocks))

    @classmethod
    def parse(cls, annotation: str | None) -> "DrainScore":
        """From the annotation; a foreign value is unknown."""
        tokens, _, blocks = (annotation or "").partition("/")
        known = [int(text) if text.isascii() and text.isdigit() else None for text in (tokens, blocks)]
        return cls(in_flight_tokens=known[0], cached_blocks=known[1])


UNKNOWN_SCORE: Final = DrainScore()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The LLMService as the API server has it now, or what an object of another ``kind`` has in common with one."""

    kind: str = "LLMService"
    namespace: str
    name: str
    uid: str
    generation: int
    spec: LLMServiceSpec
    has_finalizer: bool = True
    deleting_since_s: float | None = None
    skip_drain: bool = False
    follows_default_image: bool = False  # FOLLOW_DEFAULT_IMAGE_ANNOTATION is "true"

    @property
    def served_name(self) -> str:
        """The model's name in requests."""
        return self.spec.model.served_name or self.name

    @property
    def key(self) -> str:
        """``namespace/name``, in every log line."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchClaim:
    """The mark of a RoleSwitch on the worker it switches."""

    uid: str  # of the RoleSwitch
    source: Role
    target: Role

    def __str__(self) -> str:
        """As the pod's annotation has it."""
        return f"{self.uid}/{self.source.label}/{self.target.label}"

    @classmethod
    def parse(cls, annotation: str | None) -> "SwitchClaim | None":
        """From the annotation; None for an absent or foreign value."""
        uid, _, roles = (annotation or "").partition("/")
        source, target = (Role.from_label(label) for label in (*roles.split("/"), "")[:2])
        if not uid or source is None or target is None or Role.ENCODE in (source, target):
            return None
        return cls(uid=uid, source=source, target=target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One RoleSwitch of the service."""

    name: str
    uid: str
    created_s: float
    spec: RoleSwitchSpec
    status: RoleSwitchStatus = field(default_factory=RoleSwitchStatus)

    @property
    def source(self) -> Role:
        return self.spec.from_role

    @property
    def target(self) -> Role:
        return self.spec.to_role

    @property
    def ended(self) -> bool:
        return self.status.phase is not None and self.status.phase.ended

    def began_s(self, phase: SwitchPhase) -> float | None:
        """When the status first said ``phase``; None: it never did."""
        return next((entry.at.timestamp() for entry in self.status.phases if entry.phase is phase), None)

    def age_s(self, now_s: float) -> float:
        """Since its creation. A creation stamp has whole seconds, so the first status is used where it is that near."""
        first_s = self.status.phases[0].at.timestamp() if self.status.phases else now_s
        began_s = first_s if first_s - self.created_s < 1 else self.created_s
        return max(0.0, now_s - began_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One decision of the planner about the service."""

    name: str
    uid: str
    spec: PlanSpec
    status: PlanStatus = field(default_factory=PlanStatus)

    @property
    def ended(self) -> bool:
        return self.status.phase is not None and self.status.phase.ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The PlannerPolicy the service refers to."""

    name: str
    spec: PlannerPolicySpec

    @property
    def mode(self) -> Mode:
        return self.spec.mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Ledger):
    """One WorkerPool as it is, with its ledger."""

    uid: str
    resource_version: str
    replicas: int
    copied_replicas: int | None
    status: WorkerPoolStatus = field(default_factory=WorkerPoolStatus)
    generation: int = 0

    def after(self, changes: Iterable[PoolChange]) -> "Pool":
        """As it is once the changes are written."""
        number, ledger = apply_changes(self.replicas, self.ledger, changes)
        return replace(self, replicas=number, **{each.name: getattr(ledger, each.name) for each in fields(Ledger)})

    @property
    def ledger(self) -> Ledger:
        """Its ledger alone."""
        return Ledger(**{each.name: getattr(self, each.name) for each in fields(Ledger)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The engine container of a worker pod as the kubelet reports it."""

    id: str | None = None  # new at every start of the container
    running: bool = False
    restarts: int = 0
    waiting_reason: str | None = None  # e.g. CrashLoopBackOff, ImagePullBackOff
    waiting_message: str = ""
    last_exit_code: int | None = None
    last_exit_reason: str | None = None
    last_exit_message: str = ""  # the tail of its log (terminationMessagePolicy FallbackToLogsOnError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One worker pod, with the worker's own state where it was asked (``state`` None: not asked, or no answer)."""

    name: str
    uid: str
    resource_version: str
    created_s: float
    role: Role | None  # by label
    revision: str
    kv_compatibility: str
    image: str | None = None  # of its engine
    phase: str = "Pending"  # the pod's
    message: str = ""  # the kubelet's about the whole pod
    pod_ip: str | None = None
    node: str | None = None
    terminating: bool = False
    lost_at_s: float | None = None  # when its deleted pod, if it is still there, is given up
    node_lost: bool = False  # its node does not answer
    pod_ready: bool = False  # the engine answers its probe, as far as the kubelet and the node are known to work
    gates_open: bool = True  # the kubelet reports that the readiness gates of the pod are open too
    routable_label: bool = False
    routable_condition: bool | None = None  # ROUTABLE_CONDITION; None: the pod, of an earlier version, has no such gate
    verified_container: str | None = None  # VERIFIED_CONTAINER_ANNOTATION
    drain_started_s: float | None = None
    drain_reason: DrainReason | None = None
    drain_score: DrainScore = UNKNOWN_SCORE
    container: Container = field(default_factory=Container)
    unschedulable: str | None = None  # the scheduler's message
    node_requested_s: float | None = None  # when a node autoscaler last reported a node for it; None: it did not
    state: WorkerState | None = None
    suspect: bool = False  # by the last poll it does not serve in the role of its label, or does not answer
    asked: bool = False  # the worker was asked for ``state`` for this snapshot
    claim: SwitchClaim | None = None  # the switch that has it
    verify_error: str | None = None  # why its last verification in this role failed, if it did
    busy: str | None = None  # the operator is doing this to the worker now: "role", "verify", …
    metrics_port: int | None = None  # by label
    confirmed_budget: int | None = None  # the prefill token budget this container reported last; None: not known

    @property
    def finished(self) -> bool:
        """The kubelet will not start it again (evicted, node shut down): it is replaced."""
        return self.phase in ("Failed", "Succeeded")

    def stays_finished(self, now_s: float) -> bool:
        """It ended right after its creation: its successor would too, so it is kept (and counted) for a while."""
        return self.finished and not self.draining and now_s < self.created_s + FINISHED_KEPT_S

    @property
    def draining(self) -> bool:
        return self.drain_started_s is not None

    @property
    def active(self) -> bool:
        """Counts towards what the pool should have."""
        return not (self.terminating or self.draining or self.finished)

    def holds_gpus(self, now_s: float) -> bool:
        """Its container runs, will, or has not been seen to end: until a pod is gone its GPUs are nobody else's."""
        return not (self.finished or (self.lost_at_s is not None and now_s >= self.lost_at_s))

    @property
    def container_mark(self) -> str | None:
        """What VERIFIED_CONTAINER_ANNOTATION holds once this container was verified in this role."""
        return f"{self.role.label}/{self.container.id}" if self.role and self.container.id else None

    @property
    def is_verified(self) -> bool:
        """This very container answered a real request in this role."""
        mark = self.container_mark
        return mark is not None and self.verified_container == mark and self.container.running

    @property
    def ready(self) -> bool:
        """Ready means that it could serve: engine healthy, role given, a real request answered."""
        return self.active and self.is_verified and self.pod_ready

    @property
    def routable(self) -> bool:
        """What a gateway may use: the label says so and the pod is ready, its readiness gates included."""
        return self.routable_label and self.pod_ready and self.gates_open and not self.terminating

    @property
    def serves(self) -> bool:
        """Gateways may use it, and it counts towards what its pool should have."""
        return self.ready and self.routable

    @property
    def control_url(self) -> str | None:
        """Base URL of engine and control API; None while the pod has no address."""
        return address_url("http", self.pod_ip, ENGINE_PORT) if self.pod_ip else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayDeployment:
    """The Deployment of the gateway. ``refused``: the API server's words when it refuses a pod of it."""

    replicas: int
    refused: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPod:
    """One gateway pod. ``uses`` are the uids of the workers it routes to; None: not asked or no answer."""

    name: str
    ready: bool
    terminating: bool = False
    uses: frozenset[str] | None = None
    avoids: frozenset[str] = frozenset()  # of those, the ones that failed lately and are not used while others are
    node: str | None = None
    node_lost: bool = False  # its node does not answer
    unreachable: bool = False  # asked, and no answer came in the time a drain waits for one gateway
    waiting_reason: str | None = None
    message: str = ""
    unschedulable: str | None = None  # the scheduler's message


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One service at one moment. ``taken_names`` are pod names that exist, whoever they belong to."""

    now_s: float  # seconds since the epoch: it is compared with time stamps of the API server
    service: Service
    pools: Mapping[Role, Pool]
    workers: tuple[Worker, ...] = ()
    gateways: tuple[GatewayPod, ...] = ()
    switches: tuple[Switch, ...] = ()
    plans: tuple[Plan, ...] = ()
    policy: Policy | None = None  # None: the service refers to none, or it is missing
    routing_set_by: str | None = None  # status.routing.setBy
    routing_updated_at: datetime | None = None  # status.routing.updatedAt
    prefill_token_budget: int = DEFAULT_PREFILL_TOKEN_BUDGET  # status.routing.prefillTokenBudget, if it is set
    acting_since_s: float = (
        0.0  # since when this process acts on the service without a pause: no wait counts from before
    )
    taken_names: frozenset[str] = frozenset()
    worker_image: str | None = None  # of workers that are created now; None: the spec is refused
    default_image: str | None = None  # the operator's
    kv_compatibility: str | None = None  # of language workers that are created now; None: the spec is refused
    gateway_deployment: GatewayDeployment | None = None

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles of the service's pools, and of a pool that was removed from its spec and is not gone yet."""
        spec = self.service.spec.roles
        leaving = Role.ENCODE in self.pools or any(worker.role is Role.ENCODE for worker in self.workers)
        return (*spec, Role.ENCODE) if leaving and Role.ENCODE not in spec else spec

    def of(self, role: Role) -> tuple[Worker, ...]:
        """The workers of a pool, terminating ones left out: a pod that goes is not "there"."""
        return tuple(worker for worker in self.workers if worker.role is role and not worker.terminating)

    def claimed_by(self, switch_uid: str) -> Worker | None:
        """The worker a switch has; None: none yet, or its pod goes."""
        return next((w for w in self.workers if w.claim and w.claim.uid == switch_uid and not w.terminating), None)

    def running_claims(self) -> tuple[SwitchClaim, ...]:
        """Marks of switches that have not ended (a mark whose switch was deleted has not)."""
        ended = {switch.uid for switch in self.switches if switch.ended}
        return tuple(w.claim for w in self.workers if w.claim and w.claim.uid not in ended and not w.terminating)

    def plan_of(self, switch: Switch) -> Plan | None:
        """The plan that made a switch; None: a person did, or the plan is gone."""
        return next((p for p in self.plans if switch.spec.reason == f"plan/{p.name}"), None)

    def counted(self, role: Role) -> tuple[Worker, ...]:
        """The workers that count in a pool: a worker on its way counts in none until its +1 is in the books."""
        running = {claim.uid for claim in self.running_claims()}
        pool = self.pools.get(role)
        moved = pool.moved_by if pool else ()
        return tuple(
            worker
            for worker in self.of(role)
            if worker.claim is None
            or worker.claim.uid not in running
            or (worker.claim.target is role and worker.claim.uid in moved)
        )

    def coming_by_switch(self, role: Role) -> int:
        """Workers on their way into a pool that are not yet in its number."""
        pool = self.pools.get(role)
        moved = pool.moved_by if pool else ()
        return sum(claim.target is role and claim.uid not in moved for claim in self.running_claims())

    def waited_s(self, began_s: float) -> float:
        """How long something has been waited for since ``began_s``: time in which nobody looked does not count."""
        return self.now_s - max(began_s, self.acting_since_s)

    def leaving_by_switch(self, role: Role) -> int:
        """Replicas of a pool that belong to workers on their way out of it, not yet taken off its number."""
        pool = self.pools.get(role)
        moved = pool.moved_by if pool else ()
        return sum(claim.source is role and claim.uid not in moved for claim in self.running_claims())
