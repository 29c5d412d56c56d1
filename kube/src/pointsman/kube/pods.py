"""The slim pod that operator, gateway and planner share."""

from datetime import datetime
from typing import Final

from pydantic import Field

from pointsman.api.protocol.names import SERVICE_LABEL
from pointsman.kube.objects import KubeObject, Metadata, Slim

ServiceKey = tuple[str, str]
"""``(namespace, name)`` of an LLMService or ElasticGroup."""

LOST_AFTER_S: Final = 60.0  # beyond its grace period a deleted pod is still there: its kubelet does not answer


class Condition(Slim):
    """One of ``status.conditions``; ``status`` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Terminated(Slim):
    """How a container's run ended."""

    exit_code: int
    reason: str = ""
    message: str = ""


class Waiting(Slim):
    """Why a container does not run: ``reason`` is "ContainerCreating", "CrashLoopBackOff", "ImagePullBackOff" …"""

    reason: str = ""
    message: str = ""


class Running(Slim):
    """Since when a container runs."""

    started_at: datetime | None = None


class ContainerState(Slim):
    """Exactly one of the three, or none before the kubelet has looked."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Slim):
    """One of ``status.containerStatuses``; ``last_state`` is the run before the last restart."""

    name: str
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class ReadinessGate(Slim):
    """A condition that must be True, beside the probes of the containers, for the pod to be Ready."""

    condition_type: str


class ContainerSpec(Slim):
    """Of a container's spec, what it runs."""

    name: str
    image: str = ""


class PodSpec(Slim):
    """Of a pod's spec, where it was put (``node_name`` is empty until then), its readiness gates, what it runs."""

    node_name: str = ""
    readiness_gates: tuple[ReadinessGate, ...] = ()
    containers: tuple[ContainerSpec, ...] = ()


class PodStatus(Slim):
    """What the kubelet (or, before it, the scheduler) says about the pod."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    # Not podIP's camelCase.
    pod_ip: str | None = Field(default=None, alias="podIP")
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(KubeObject):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def terminating(self) -> bool:
        """Deletion was asked for; the pod may serve until its grace period ends."""
        return self.metadata.deletion_timestamp is not None

    @property
    def lost_at_s(self) -> float | None:
        """Unix time at which a deleted pod is given up: its node does not answer. None: it was not deleted."""
        gone_by = self.metadata.deletion_timestamp  # the end of its grace period, not when it was asked for
        return None if gone_by is None else gone_by.timestamp() + LOST_AFTER_S

    @property
    def finished(self) -> bool:
        """No container will run again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def ready(self) -> bool:
        """The condition Ready is True (readiness gates and probes passed)."""
        condition = self.condition("Ready")
        return condition is not None and condition.status == "True"

    @property
    def containers_ready(self) -> bool:
        """The condition ContainersReady is True: all containers answer their probes, whatever the readiness gates."""
        condition = self.condition("ContainersReady")
        return condition is not None and condition.status == "True"

    @property
    def node_lost(self) -> bool:
        """The node lifecycle controller set Ready to False, because the pod's node does not answer.

        It leaves all else as it was and gives no reason; a kubelet gives one (ContainersNotReady or
        ReadinessGatesNotReady). Reference: MarkPodsNotReady in pkg/controller/util/node of Kubernetes.
        """
        condition = self.condition("Ready")
        marked = condition is not None and condition.status == "False" and not condition.reason
        return marked and self.containers_ready

    @property
    def unschedulable(self) -> str | None:
        """The scheduler's message when it found no node; None otherwise.

        A pod that has a node was bound, whatever was written of an attempt before.
        """
        condition = self.condition("PodScheduled")
        if self.spec.node_name or condition is None:
            return None
        if condition.status != "False" or condition.reason != "Unschedulable":
            return None
        return condition.message

    def condition(self, kind: str) -> Condition | None:
        """The condition of type ``kind``, None when it was never set."""
        return next((condition for condition in self.status.conditions if condition.type == kind), None)

    def image(self, name: str) -> str | None:
        """The image reference of a container as its spec has it; None without such a container."""
        return next((each.image or None for each in self.spec.containers if each.name == name), None)

    def container(self, name: str) -> ContainerStatus | None:
        """The status of a container, None before the kubelet has reported it."""
        return next((status for status in self.status.container_statuses if status.name == name), None)


def service_key(pod: Pod) -> ServiceKey | None:
    """The service or group that a pod belongs to by its label: the index of a mirror of pods."""
    return label_key(pod.metadata)


def label_key(metadata: Metadata) -> ServiceKey | None:
    """The service or group that an object belongs to by its label."""
    name = metadata.labels.get(SERVICE_LABEL)
    return (metadata.namespace, name) if name else None
