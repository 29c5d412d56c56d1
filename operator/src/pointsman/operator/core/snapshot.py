"""Everything the operator knows about one service at one moment, as one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pointsman.api.protocol.control import WorkerState
from pointsman.api.protocol.names import ENGINE_PORT, Role
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.api.v1alpha1.workerpool import WorkerPoolStatus

FINISHED_KEPT_S: Final = 30.0


class DrainReason(StrEnum):
    """Why a worker leaves; kept on the pod, so that a restarted operator goes on where it was."""

    SCALE_DOWN = "ScaleDown"  # may be taken back while the worker still lives
    SERVICE_DELETED = "ServiceDeleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The LLMService as the API server has it now."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: LLMServiceSpec
    has_finalizer: bool = True
    deleting_since_s: float | None = None
    skip_drain: bool = False

    @property
    def served_name(self) -> str:
        """The model's name in requests."""
        return self.spec.model.served_name or self.name

    @property
    def key(self) -> str:
        """``namespace/name``, in every log line."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One WorkerPool as it is. ``copied_replicas`` is what was last copied into it from the service's spec."""

    uid: str
    resource_version: str
    replicas: int
    copied_replicas: int | None
    status: WorkerPoolStatus = field(default_factory=WorkerPoolStatus)
    generation: int = 0


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
    phase: str = "Pending"  # the pod's
    message: str = ""  # the kubelet's about the whole pod
    pod_ip: str | None = None
    node: str | None = None
    terminating: bool = False
    pod_ready: bool = False  # the kubelet's word: the engine answers its probe
    routable_label: bool = False
    verified: str | None = None  # VERIFIED_CONTAINER_ANNOTATION
    drain_started_s: float | None = None
    drain_reason: DrainReason | None = None
    container: Container = field(default_factory=Container)
    unschedulable: str | None = None  # the scheduler's message
    state: WorkerState | None = None
    asked: bool = False  # the worker was asked for ``state`` for this snapshot
    busy: str | None = None  # the operator is doing this to the worker now: "role", "verify", …

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

    @property
    def proof(self) -> str | None:
        """What VERIFIED_CONTAINER_ANNOTATION holds once this container was verified in this role."""
        return f"{self.role.label}/{self.container.id}" if self.role and self.container.id else None

    @property
    def proved(self) -> bool:
        """This very container answered a real request in this role."""
        return self.proof is not None and self.verified == self.proof and self.container.running

    @property
    def ready(self) -> bool:
        """Ready means that it could serve: engine healthy, role given, a real request answered."""
        return self.active and self.proved and self.pod_ready

    @property
    def routable(self) -> bool:
        """What a gateway may use: the label says so and the pod is ready."""
        return self.routable_label and self.pod_ready and not self.terminating

    @property
    def control_url(self) -> str | None:
        """Base URL of engine and control API; None while the pod has no address."""
        return f"http://{self.pod_ip}:{ENGINE_PORT}" if self.pod_ip else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPod:
    """One gateway pod. ``uses`` are the uids of the workers it routes to; None: not asked or no answer."""

    name: str
    ready: bool
    terminating: bool = False
    uses: frozenset[str] | None = None
    unreachable: bool = False  # asked, and no answer came in the time a drain waits for one gateway
    waiting_reason: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One service at one moment. ``taken_names`` are pod names that exist, whoever they belong to."""

    now_s: float  # seconds since the epoch: it is compared with time stamps of the API server
    service: Service
    pools: Mapping[Role, Pool]
    workers: tuple[Worker, ...] = ()
    gateways: tuple[GatewayPod, ...] = ()
    taken_names: frozenset[str] = frozenset()
    gateway_replicas: int | None = None  # what its Deployment asks for; None: there is no Deployment

    def of(self, role: Role) -> tuple[Worker, ...]:
        """The workers of a pool, terminating ones left out: a pod that goes is not "there"."""
        return tuple(worker for worker in self.workers if worker.role is role and not worker.terminating)
