"""Workers of one service from the Kubernetes API: pods by label, routing numbers from the LLMService's status.

With the API server away the mirrors keep what they have, so the last known workers go on serving.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from pydantic import ValidationError

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.gateway.types import Discovered, Worker, WorkerKey
from pointsman.kube.client import Kube
from pointsman.kube.mirror import Mirror
from pointsman.kube.objects import KubeObject, Slim
from pointsman.kube.pods import Pod
from pointsman.kube.resources import LLM_SERVICES, PODS
from pointsman.serving.flow_control import NOTHING_HELD, FlowBounds
from pointsman.serving.local_remote import RoutingRule

log = logging.getLogger(__name__)


class _Routing(Slim):
    max_local_prefill_tokens: int | None = None
    max_prefill_queue_size: int | None = None
    pending_tokens_per_prefill_worker: int | None = None
    decoding_per_decode_worker: int | None = None
    slack_milliseconds: int | None = None


class _Status(Slim):
    routing: _Routing | None = None


class Service(KubeObject):
    """Of an LLMService, what the gateway reads."""

    status: _Status = _Status()


def worker_of(pod: Pod) -> Worker | None:
    """The worker that ``pod`` is, if requests may go there: routable by label, Ready, not being deleted."""
    labels = pod.metadata.labels
    role = Role.from_label(labels.get(names.ROLE_LABEL))
    address = pod.status.pod_ip
    if labels.get(names.ROUTABLE_LABEL) != "true" or role is None or not address or not pod.ready or pod.terminating:
        return None
    return Worker(
        key=WorkerKey(pod.metadata.uid),
        name=pod.metadata.name,
        url=names.address_url("http", address, names.ENGINE_PORT),
        role=role,
    )


def discovered(pods: Iterable[Pod], service: Service | None) -> Discovered:
    """What the two mirrors say together."""
    workers = sorted(filter(None, map(worker_of, pods)), key=lambda worker: worker.name)
    rule, bounds = None, NOTHING_HELD
    if service is not None and service.status.routing is not None:
        routing = service.status.routing
        if routing.max_local_prefill_tokens is not None and routing.max_prefill_queue_size is not None:
            rule = RoutingRule(routing.max_local_prefill_tokens, routing.max_prefill_queue_size)
        bounds = FlowBounds(
            routing.pending_tokens_per_prefill_worker, routing.decoding_per_decode_worker, routing.slack_milliseconds
        )
    return Discovered(tuple(workers), rule, service.metadata.uid if service is not None else None, bounds)


async def follow_kubernetes(namespace: str, service: str, found: Callable[[Discovered], None]) -> None:
    """Report the service's workers now and after every change, until cancelled.

    Nothing is reported before both mirrors have had their first list: a set that is half known is not a set.
    """
    async with await Kube.connect(field_manager="pointsman-gateway") as kube:
        pods = Mirror(
            kube,
            PODS,
            Pod,
            namespace=namespace,
            label_selector=f"{names.SERVICE_LABEL}={service},{names.COMPONENT_LABEL}={names.COMPONENT_WORKER}",
            on_change=lambda _old, _new: report(),
        )
        services = Mirror(
            kube,
            LLM_SERVICES,
            Service,
            namespace=namespace,
            field_selector=f"metadata.name={service}",
            on_change=lambda _old, _new: report(),
        )
        last: Discovered | None = None

        def report() -> None:
            nonlocal last
            if not (pods.synced.is_set() and services.synced.is_set()):
                return
            try:
                now = discovered(pods.objects(), services.get(service, namespace))
            except (ValidationError, ValueError) as error:
                log.error("workers not understood", extra={"why": str(error)})
                return
            if now != last:
                last = now
                found(now)

        async def first_report() -> None:
            await pods.synced.wait()
            await services.synced.wait()
            report()
            await asyncio.Event().wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(pods.run(), name="mirror of pods")
            group.create_task(services.run(), name="mirror of the service")
            group.create_task(first_report(), name="first report")
