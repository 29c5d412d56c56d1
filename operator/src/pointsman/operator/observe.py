"""From Kubernetes objects to the parts of a snapshot."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.engine_flags import ENGINE_CONTAINER
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plan import Plan as PlanObject
from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.api.v1alpha1.workerpool import WorkerPool
from pointsman.kube.pods import ContainerStatus, Pod
from pointsman.operator.core.ledger import number, read_ledger
from pointsman.operator.core.naming import (
    BEFORE_PLAN_ANNOTATION,
    DRAIN_REASON_ANNOTATION,
    DRAIN_SCORE_ANNOTATION,
    SWITCH_ANNOTATION,
    VERIFIED_CONTAINER_ANNOTATION,
    gateway_name,
)
from pointsman.operator.core.snapshot import (
    Container,
    DrainReason,
    DrainScore,
    GatewayPod,
    Plan,
    Pool,
    Service,
    Switch,
    SwitchClaim,
    Worker,
)

_POD_TEMPLATE_HASH_LABEL: Final = "pod-template-hash"  # of the Deployment controller: names the ReplicaSet


def service_of(found: LLMService) -> Service:
    """The service as the core sees it."""
    meta = found.metadata
    return Service(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        generation=meta.generation,
        spec=found.spec,
        has_finalizer=names.FINALIZER in meta.finalizers,
        deleting_since_s=meta.deletion_timestamp.timestamp() if meta.deletion_timestamp else None,
        skip_drain=meta.annotations.get(names.SKIP_DRAIN_ANNOTATION) == "true",
        follows_default_image=meta.annotations.get(names.FOLLOW_DEFAULT_IMAGE_ANNOTATION) == "true",
    )


def pool_of(found: WorkerPool) -> Pool:
    """A pool as the core sees it."""
    ledger = read_ledger(found.metadata.annotations)
    return Pool(
        uid=found.metadata.uid,
        resource_version=found.metadata.resource_version,
        replicas=found.spec.replicas,
        copied_replicas=ledger.copied_replicas,
        moved_by=ledger.moved_by,
        set_by=ledger.set_by,
        before_plan=ledger.before_plan,
        owned_replicas=ledger.owned_replicas,
        external=ledger.external,
        status=found.status,
        generation=found.metadata.generation,
    )


def before_plan_of(annotations: Mapping[str, str]) -> int | None:
    """The number that the last plan replaced, of an elastic group; None: not known."""
    return number(annotations.get(BEFORE_PLAN_ANNOTATION))


def switch_of(found: RoleSwitch) -> Switch:
    """A role switch as the core sees it."""
    created = found.metadata.creation_timestamp
    return Switch(
        name=found.metadata.name,
        uid=found.metadata.uid,
        created_s=created.timestamp() if created else 0.0,
        spec=found.spec,
        status=found.status,
    )


def plan_of(found: PlanObject) -> Plan:
    """A plan as the core sees it."""
    return Plan(name=found.metadata.name, uid=found.metadata.uid, spec=found.spec, status=found.status)


def is_owned_by(item: Mapping[str, Any], uid: str) -> bool:
    """The object's controller is the service of that uid."""
    owners = item["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("uid") == uid for owner in owners)


def is_left_by_predecessor(item: Mapping[str, Any], kind: str, name: str, uid: str) -> bool:
    """The object's controller is of that kind and name, and has another uid.

    With the live service's name and uid: that other one does not exist any more, since a name is held once. Garbage
    collection will take the object, be it in a minute.
    """
    owners = item["metadata"].get("ownerReferences") or ()
    controller = next((owner for owner in owners if owner.get("controller")), None)
    return (
        controller is not None
        and controller["apiVersion"].partition("/")[0] == names.GROUP
        and controller["kind"] == kind
        and controller["name"] == name
        and controller["uid"] != uid
    )


def owner_in_words(item: Mapping[str, Any]) -> str:
    """Who an object belongs to, for a sentence."""
    owners = item["metadata"].get("ownerReferences") or ()
    controller = next((owner for owner in owners if owner.get("controller")), None)
    return f"{controller['kind']} {controller['name']}" if controller else "somebody else"


def worker_of(pod: Pod, busy: str | None = None, verify_error: str | None = None) -> Worker:
    """A worker pod as the core sees it."""
    meta, status = pod.metadata, pod.status
    gate = routable_condition(pod)
    started = meta.annotations.get(names.DRAIN_STARTED_ANNOTATION)
    reason = meta.annotations.get(DRAIN_REASON_ANNOTATION)
    return Worker(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        created_s=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
        role=Role.from_label(meta.labels.get(names.ROLE_LABEL)),
        revision=meta.labels.get(names.REVISION_LABEL, ""),
        kv_compatibility=meta.labels.get(names.KV_COMPATIBILITY_LABEL, ""),
        image=pod.image(ENGINE_CONTAINER),
        phase=status.phase,
        message=status.message,
        pod_ip=status.pod_ip,
        node=pod.spec.node_name or None,
        terminating=pod.terminating,
        lost_at_s=pod.lost_at_s,
        node_lost=pod.node_lost,
        # With the gate, a pod is Ready only once it is routable: its engine answers before.
        pod_ready=pod.ready if gate is None else pod.containers_ready and not pod.node_lost,
        gates_open=gate is None or pod.ready,
        routable_condition=gate,
        routable_label=meta.labels.get(names.ROUTABLE_LABEL) == "true",
        verified_container=meta.annotations.get(VERIFIED_CONTAINER_ANNOTATION),
        drain_started_s=_seconds(started),
        drain_reason=DrainReason(reason) if reason in list(DrainReason) else None,
        drain_score=DrainScore.parse(meta.annotations.get(DRAIN_SCORE_ANNOTATION)),
        container=_container(pod.container(ENGINE_CONTAINER)),
        unschedulable=pod.unschedulable,
        claim=SwitchClaim.parse(meta.annotations.get(SWITCH_ANNOTATION)),
        verify_error=verify_error,
        busy=busy,
        metrics_port=number(meta.labels.get(names.METRICS_PORT_LABEL)),
    )


def routable_condition(pod: Pod) -> bool | None:
    """Whether the readiness gate of a worker pod is open; None: the pod has no such gate."""
    if all(gate.condition_type != names.ROUTABLE_CONDITION for gate in pod.spec.readiness_gates):
        return None
    condition = pod.condition(names.ROUTABLE_CONDITION)
    return condition is not None and condition.status == "True"


def _seconds(written: str | None) -> float | None:
    """A time stamp of ours; one that somebody spoiled counts as long ago, so that the drain still ends."""
    if written is None:
        return None
    try:
        return datetime.fromisoformat(written).timestamp()
    except ValueError:
        return 0.0


def _container(status: ContainerStatus | None) -> Container:
    if status is None:
        return Container()
    running, waiting = status.state.running, status.state.waiting
    ended = status.state.terminated or status.last_state.terminated
    started = running.started_at.timestamp() if running and running.started_at else None
    return Container(
        id=f"{status.restart_count}-{started:.0f}" if started is not None else f"{status.restart_count}",
        running=running is not None,
        restarts=status.restart_count,
        waiting_reason=waiting.reason if waiting else None,
        waiting_message=waiting.message if waiting else "",
        last_exit_code=ended.exit_code if ended else None,
        last_exit_reason=(ended.reason or None) if ended else None,
        last_exit_message=ended.message if ended else "",
    )


def is_of_group(pod: Pod) -> bool:
    """A pod of an elastic group, by label; it has a service's labels too, for gateways look for those."""
    return names.ELASTIC_GROUP_LABEL in pod.metadata.labels


def is_gateway(pod: Pod) -> bool:
    """A pod of a gateway's Deployment, by labels and owner: its ReplicaSet has the Deployment's name and the hash.

    No other Deployment of the namespace has that name, so a look-alike gets no control token and counts nowhere.
    """
    labels, owner = pod.metadata.labels, pod.metadata.controller
    if labels.get(names.COMPONENT_LABEL) != names.COMPONENT_GATEWAY or owner is None:
        return False
    deployment = gateway_name(labels.get(names.SERVICE_LABEL, ""))
    return owner.kind == "ReplicaSet" and owner.name == f"{deployment}-{labels.get(_POD_TEMPLATE_HASH_LABEL)}"


def is_of_stateful_set(pod: Pod, name: str) -> bool:
    """A pod of the StatefulSet of that name."""
    owner = pod.metadata.controller
    return owner is not None and (owner.kind, owner.name) == ("StatefulSet", name)


def gateway_of(
    pod: Pod,
    uses: frozenset[str] | None = None,
    unreachable: bool = False,
    avoids: frozenset[str] = frozenset(),
) -> GatewayPod:
    """A gateway pod as the core sees it."""
    status = next(iter(pod.status.container_statuses), None)
    waiting = status.state.waiting if status else None
    ended = status.last_state.terminated if status else None
    return GatewayPod(
        name=pod.metadata.name,
        ready=pod.ready,
        terminating=pod.terminating,
        uses=uses,
        avoids=avoids,
        node=pod.spec.node_name or None,
        node_lost=pod.node_lost,
        unreachable=unreachable,
        waiting_reason=waiting.reason if waiting else None,
        message=(ended.message.strip()[-600:] if ended and ended.message else waiting.message if waiting else ""),
        unschedulable=pod.unschedulable,
    )
