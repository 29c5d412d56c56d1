"""Reports of what was done: one log line, one Event and one count for each decision."""

import logging
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from pointsman.api.protocol.names import API_VERSION
from pointsman.api.v1alpha1.conditions import ConditionType, Reason
from pointsman.api.v1alpha1.plan import PlanPhase, PlanStatus
from pointsman.api.v1alpha1.roleswitch import RoleSwitchStatus, SwitchPhase
from pointsman.kube import resources
from pointsman.kube.client import Object
from pointsman.kube.events import EventRecorder, Reference
from pointsman.kube.mirror import Unreadable
from pointsman.kube.resources import Resource
from pointsman.operator.core import actions as act
from pointsman.operator.core.elastic.news import News
from pointsman.operator.core.elastic.status import GroupReport
from pointsman.operator.core.ledger import PoolChange
from pointsman.operator.core.messages import outcomes
from pointsman.operator.core.messages import status as texts
from pointsman.operator.core.snapshot import Service, Snapshot
from pointsman.operator.core.status import Report
from pointsman.operator.metrics import GROUP_EVENTS, OperatorMetrics

log = logging.getLogger(__name__)

EVENT_OF_ACTION: Final[Mapping[str, str]] = {
    "CreateWorker": "WorkerCreated",
    "SetRoutable": "WorkerRoutable",
    "BeginDrain": "WorkerDraining",
    "CancelDrain": "DrainCancelled",
    "DeleteWorker": "WorkerDeleted",
    "GiveRole": "RoleGiven",
    "SetPrefillTokenBudget": "PrefillTokenBudgetSet",
    "VerifyWorker": "WorkerVerified",
    "AskDrain": "DrainRequested",
    "CopyReplicas": "Scaled",
    "DeletePool": "PoolDeleted",
    "StopGateway": "GatewayStopping",
    "AddFinalizer": "FinalizerAdded",
    "RemoveFinalizer": "FinalizerRemoved",
    "HoldWorker": "SwitchStarted",
    "Relabel": "RoleChanged",
    "ReleaseWorker": "WorkerReleased",
    "MoveReplica": "ReplicaMoved",
    "SetReplicas": "Scaled",
    "RestoreReplicas": "ReplicasPutBack",
    "OwnReplicas": "ReplicasOwned",
    "CreateSwitch": "SwitchCreated",
    "DeleteSwitch": "SwitchDeleted",
    "SetRouting": "RoutingSet",
}
OTHER_EVENTS: Final = ("WorkerUnroutable", "GatewaySkipped", "StreamNotDeleted", "Unreadable")


def _status_fields(
    service: Service, kind: str, name: str, status: PlanStatus | RoleSwitchStatus
) -> Mapping[str, object]:
    return {
        "service": service.key,
        kind: name,
        "phase": status.phase,
        "reason": status.reason,
        "detail": status.message,
    }


class Announcer:
    """Writes logs, Events and metrics. Never raises, never waits."""

    def __init__(self, events: EventRecorder, metrics: OperatorMetrics) -> None:
        self._events = events
        self._metrics = metrics
        self._told: dict[str, tuple[Reason, str]] = {}  # by the service's uid

    def outcome(self, service: Service, outcome: Report) -> None:
        """The sentence a look ended with, if it is a new one; an Event too, if its reason is new."""
        self._metrics.looked(service.namespace, service.name, outcome.status.conditions)
        said, before = (outcome.reason, outcome.sentence), self._told.get(service.uid)
        if before == said:
            return
        log.info("service status", extra={"service": service.key, "reason": outcome.reason, "detail": outcome.sentence})
        if before is None or before[0] != outcome.reason:
            failed = any(
                item.type == ConditionType.DEGRADED and item.status == "True" for item in outcome.status.conditions
            )
            self.event(service, outcome.reason, outcome.sentence, failed)
        self._told[service.uid] = said

    def forget(self, namespace: str, name: str, uid: str) -> None:
        """The service is gone."""
        self._told.pop(uid, None)
        self._metrics.forget(namespace, name)

    def report_group(self, service: Service, outcome: GroupReport) -> None:
        """Show conditions and counts of an elastic group as metrics."""
        status = outcome.status
        self._metrics.set_group(service.namespace, service.name, status.conditions, status.instances)

    def record_group_event(self, service: Service, item: News) -> None:
        """An Event of an elastic group; those of instances and manager are counted too."""
        if item.reason in GROUP_EVENTS:
            self._metrics.group_events.labels(service.namespace, service.name, item.reason).inc()
        self.event(service, item.reason, item.note, item.warning)

    def forget_group(self, namespace: str, name: str) -> None:
        """The elastic group is deleted."""
        self._metrics.remove_group(namespace, name)

    def did(self, service: Service, action: act.Action, worker: str = "") -> None:
        """An action was executed, on the pod ``worker`` or on the service."""
        name = action.label
        log.info(
            "action done", extra={"service": service.key, "action": name, "worker": worker or None, "why": action.why}
        )
        self._metrics.actions.labels(name, "done").inc()
        lossy = isinstance(action, act.DeleteWorker) and not action.lossless
        reason = EVENT_OF_ACTION.get(name, name)
        if isinstance(action, act.PatchPod) and action.change is act.PodChange.ROUTABLE and not action.adds_to_routing:
            reason = "WorkerUnroutable"
        self.event(service, reason, action.outcome(), lossy)

    def changed(self, service: Service, change: PoolChange, outcome: str) -> None:
        """A pool was changed."""
        log.info("action done", extra={"service": service.key, "action": str(change.kind), "why": change.why})
        self._metrics.actions.labels(str(change.kind), "done").inc()
        self.event(service, EVENT_OF_ACTION[change.kind], outcome)

    def switch(self, service: Service, action: act.SetSwitchStatus) -> None:
        """A switch tells its story on itself; only its end is an Event of the service too."""
        status = action.status
        log.info("switch status", extra=_status_fields(service, "switch", action.name, status))
        resource = resources.ROLE_SWITCHES
        regarding = Reference(resource.api_version, resource.kind, service.namespace, action.name, action.uid)
        failed = status.phase in (SwitchPhase.FAILED, SwitchPhase.ROLLING_BACK, SwitchPhase.ROLLED_BACK)
        self._events.record(regarding, str(status.phase), status.message or "", warning=failed)
        if status.phase is not None and status.phase.ended:
            note = outcomes.switch_ended(action.name, status.seconds, status.message or "")
            self.event(service, f"Switch{status.phase}", note, failed)
            of_service = (service.namespace, service.name)
            self._metrics.switches.labels(*of_service, str(status.phase), str(status.reason)).inc()
            if status.phase is SwitchPhase.COMPLETED and status.seconds is not None:
                self._metrics.switch_seconds.labels(*of_service).observe(status.seconds)

    def plan(self, service: Service, action: act.SetPlanStatus) -> None:
        """A plan tells its story on itself; its end is an Event of the service too."""
        status = action.status
        log.info("plan status", extra=_status_fields(service, "plan", action.name, status))
        resource = resources.PLANS
        regarding = Reference(resource.api_version, resource.kind, service.namespace, action.name, action.uid)
        failed = status.phase is PlanPhase.FAILED
        self._events.record(regarding, str(status.phase), status.message or "", warning=failed)
        if status.phase is not None and status.phase.ended:
            self.event(service, f"Plan{status.phase}", outcomes.plan_ended(action.name, status.message or ""), failed)
            self._metrics.plans.labels(service.namespace, service.name, str(status.phase), str(status.reason)).inc()

    def event(self, service: Service, reason: str, note: str, warning: bool = False) -> None:
        """An Event of the service."""
        regarding = Reference(API_VERSION, service.kind, service.namespace, service.name, service.uid)
        self._events.record(regarding, reason, note, warning=warning)

    def invalid(self, resource: Resource, raw: Object, error: ValidationError) -> None:
        """An object that this operator cannot read: no status can be written for it."""
        problems = outcomes.invalid([(".".join(map(str, item["loc"])), item["msg"]) for item in error.errors()])
        reference = Reference.of(resource, raw)
        log.warning(
            "spec is invalid",
            extra={
                "service": f"{reference.namespace}/{reference.name}",
                "reason": Reason.INVALID_SPEC,
                "detail": problems,
            },
        )
        self._events.record(reference, Reason.INVALID_SPEC, problems, warning=True)

    def unreadable(self, resource: Resource, found: Unreadable) -> None:
        """An Event on an object that this version cannot read: it is left out, as if it were not there."""
        meta = found.metadata
        reference = Reference(resource.api_version, resource.kind, meta.namespace, meta.name, meta.uid)
        note = texts.not_read(found.why)
        self._events.record(reference, Reason.UNREADABLE, note, warning=True)

    def drained(self, snapshot: Snapshot, action: act.DeleteWorker) -> None:
        """A worker was deleted: how long its drain took."""
        worker = next((item for item in snapshot.workers if item.uid == action.uid), None)
        if worker is not None and worker.drain_started_s is not None:
            seconds = max(0.0, snapshot.now_s - worker.drain_started_s)
            self._metrics.drain_seconds.labels(str(action.lossless).lower()).observe(seconds)
