"""The end of a service: the gateway stops accepting and finishes its streams, the workers drain, then it may go."""

from collections.abc import Iterator

from pointsman.operator.core.actions import Action, RemoveFinalizer, StopGateway
from pointsman.operator.core.drain import drain_step
from pointsman.operator.core.messages import reasons as text
from pointsman.operator.core.pod_changes import begin_drain
from pointsman.operator.core.snapshot import DrainReason, Snapshot


def deletion_actions(snapshot: Snapshot) -> Iterator[Action]:
    """What to do next for a service that is being deleted. Nothing is ever created here."""
    service = snapshot.service
    if not service.has_finalizer:
        return
    if service.skip_drain:
        yield RemoveFinalizer(why=text.skip_drain_annotation())
        return
    gateway_stops = snapshot.gateway_deployment is None or not snapshot.gateway_deployment.replicas
    if not gateway_stops:
        yield StopGateway(why=text.service_is_deleted())
    staying = [worker for worker in snapshot.workers if not worker.terminating]
    since_s = service.deleting_since_s if service.deleting_since_s is not None else snapshot.now_s
    streams_may_run = snapshot.now_s < since_s + service.spec.drain.timeout_seconds
    gateway_gone = gateway_stops and not snapshot.gateways
    for worker in staying:
        if worker.draining:
            action = drain_step(worker, snapshot)
            if action is not None:
                yield action
        elif gateway_gone or not streams_may_run:
            yield begin_drain(worker, DrainReason.SERVICE_DELETED, snapshot.now_s, text.gateway_is_gone())
    if not staying and (gateway_gone or not streams_may_run):
        yield RemoveFinalizer(why=text.nothing_left())
