"""Writes to worker pods: what each says in labels and annotations."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

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
from pointsman.operator.core.snapshot import UNKNOWN_SCORE, DrainReason, DrainScore, SwitchClaim, Worker

_NONE: Final[Mapping[str, str | None]] = {}
_NOT_ROUTABLE: Final[Mapping[str, str | None]] = {ROUTABLE_LABEL: "false"}


def _patch(
    worker: Worker,
    change: PodChange,
    why: str,
    text: str,
    labels: Mapping[str, str | None] = _NONE,
    annotations: Mapping[str, str | None] = _NONE,
) -> PatchPod:
    return PatchPod(
        worker=worker.name, uid=worker.uid, change=change, why=why, text=text, labels=labels, annotations=annotations
    )


def add_to_routing(worker: Worker, metrics_port: int | None, why: str) -> PatchPod:
    """With what was verified, and the port where the worker reports that it serves metrics."""
    labels = {ROUTABLE_LABEL: "true", METRICS_PORT_LABEL: None if metrics_port is None else str(metrics_port)}
    verified = {VERIFIED_CONTAINER_ANNOTATION: worker.container_mark}
    return _patch(worker, PodChange.ROUTABLE, why, outcomes.routing_started(worker.name, why), labels, verified)


def remove_from_routing(worker: Worker, why: str) -> PatchPod:
    """Gateways stop sending it requests."""
    return _patch(worker, PodChange.ROUTABLE, why, outcomes.routing_stopped(worker.name, why), _NOT_ROUTABLE)


def begin_drain(
    worker: Worker, reason: DrainReason, now_s: float, why: str, score: DrainScore = UNKNOWN_SCORE
) -> PatchPod:
    """Mark the pod as leaving, and not routable."""
    started = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")
    marks = {DRAIN_STARTED_ANNOTATION: started, DRAIN_REASON_ANNOTATION: reason, DRAIN_SCORE_ANNOTATION: str(score)}
    return _patch(worker, PodChange.DRAIN, why, outcomes.drain_begun(worker.name, reason, why), _NOT_ROUTABLE, marks)


def cancel_drain(worker: Worker, why: str) -> PatchPod:
    """The worker is needed again; it gets its role anew."""
    marks = dict.fromkeys((DRAIN_STARTED_ANNOTATION, DRAIN_REASON_ANNOTATION, DRAIN_SCORE_ANNOTATION))
    return _patch(worker, PodChange.CANCEL_DRAIN, why, outcomes.drain_cancelled(worker.name, why), annotations=marks)


def claim_worker(worker: Worker, claim: SwitchClaim, why: str) -> PatchPod:
    """Mark the pod as a switch's, and not routable."""
    mark = {SWITCH_ANNOTATION: str(claim)}
    return _patch(worker, PodChange.CLAIM, why, outcomes.worker_claimed(worker.name, why), _NOT_ROUTABLE, mark)


def relabel(worker: Worker, role: Role, why: str) -> PatchPod:
    """Move the pod to another pool: its role labels; what was verified of the old role is taken away."""
    labels = {ROLE_LABEL: role.label, LLMD_ROLE_LABEL: role.label, **_NOT_ROUTABLE}
    verified = {VERIFIED_CONTAINER_ANNOTATION: None}
    return _patch(worker, PodChange.ROLE, why, outcomes.role_changed(worker.name, role, why), labels, verified)


def release(worker: Worker, why: str) -> PatchPod:
    """Take a switch's mark off the pod."""
    mark = {SWITCH_ANNOTATION: None}
    return _patch(worker, PodChange.RELEASE, why, outcomes.worker_released(worker.name, why), annotations=mark)
