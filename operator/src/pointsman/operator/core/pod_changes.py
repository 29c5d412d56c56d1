"""Writes to worker pods: what each says in labels and annotations."""

from datetime import UTC, datetime

from pointsman.api.protocol.names import (
    DRAIN_STARTED_ANNOTATION,
    LLMD_ROLE_LABEL,
    METRICS_PORT_LABEL,
    ROLE_LABEL,
    ROUTABLE_LABEL,
    Role,
)
from pointsman.operator.core.actions import PatchPod, PodChange
from pointsman.operator.core.messages import outcomes
from pointsman.operator.core.naming import (
    DRAIN_REASON_ANNOTATION,
    DRAIN_SCORE_ANNOTATION,
    SWITCH_ANNOTATION,
    VERIFIED_CONTAINER_ANNOTATION,
)
from pointsman.operator.core.snapshot import UNKNOWN_SCORE, DrainReason, DrainScore, Hold, Worker

_NOT_ROUTABLE = {ROUTABLE_LABEL: "false"}


def add_to_routing(worker: Worker, metrics_port: int | None, why: str) -> PatchPod:
    """With what was verified, and the port where the worker reports that it serves metrics."""
    port = None if metrics_port is None else str(metrics_port)
    return PatchPod(
        worker=worker.name,
        uid=worker.uid,
        why=why,
        change=PodChange.ROUTABLE,
        labels={ROUTABLE_LABEL: "true", METRICS_PORT_LABEL: port},
        annotations={VERIFIED_CONTAINER_ANNOTATION: worker.proof},
        text=outcomes.routing_started(worker.name, why),
    )


def remove_from_routing(worker: Worker, why: str) -> PatchPod:
    """Gateways stop sending it requests."""
    return PatchPod(
        worker=worker.name,
        uid=worker.uid,
        why=why,
        change=PodChange.ROUTABLE,
        labels=_NOT_ROUTABLE,
        text=outcomes.routing_stopped(worker.name, why),
    )


def begin_drain(
    worker: Worker, reason: DrainReason, now_s: float, why: str, score: DrainScore = UNKNOWN_SCORE
) -> PatchPod:
    """Mark the pod as leaving, and not routable."""
    started = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")
    return PatchPod(
        worker=worker.name,
        uid=worker.uid,
        why=why,
        change=PodChange.DRAIN,
        labels=_NOT_ROUTABLE,
        annotations={
            DRAIN_STARTED_ANNOTATION: started,
            DRAIN_REASON_ANNOTATION: reason,
            DRAIN_SCORE_ANNOTATION: str(score),
        },
        text=outcomes.drain_begun(worker.name, reason, why),
    )


def cancel_drain(worker: Worker, why: str) -> PatchPod:
    """The worker is needed again; it gets its role anew."""
    return PatchPod(
        worker=worker.name,
        uid=worker.uid,
        why=why,
        change=PodChange.CANCEL_DRAIN,
        annotations=dict.fromkeys((DRAIN_STARTED_ANNOTATION, DRAIN_REASON_ANNOTATION, DRAIN_SCORE_ANNOTATION)),
        text=outcomes.drain_cancelled(worker.name, why),
    )


def claim(worker: Worker, hold: Hold, why: str) -> PatchPod:
    """Mark the pod as a switch's, and not routable."""
    return PatchPod(
        worker=worker.name,
        uid=worker.uid,
        why=why,
        change=PodChange.CLAIM,
        labels=_NOT_ROUTABLE,
        annotations={SWITCH_ANNOTATION: str(hold)},
        text=outcomes.worker_claimed(worker.name, why),
    )


def relabel(worker: Worker, role: Role, why: str) -> PatchPod:
    """Move the pod to another pool: its role labels; what was verified of the old role is taken away."""
    return PatchPod(
        worker=worker.name,
        uid=worker.uid,
        why=why,
        change=PodChange.ROLE,
        labels={ROLE_LABEL: role.label, LLMD_ROLE_LABEL: role.label, **_NOT_ROUTABLE},
        annotations={VERIFIED_CONTAINER_ANNOTATION: None},
        text=outcomes.role_changed(worker.name, role, why),
    )


def release(worker: Worker, why: str) -> PatchPod:
    """Take a switch's mark off the pod."""
    return PatchPod(
        worker=worker.name,
        uid=worker.uid,
        why=why,
        change=PodChange.RELEASE,
        annotations={SWITCH_ANNOTATION: None},
        text=outcomes.worker_released(worker.name, why),
    )
