"""Workers of one service from the Kubernetes API: pods by label, routing numbers from the LLMService's status.

With the API server away the mirrors keep what they have, so the last known workers go on serving.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import (
    NonNegativeFloat,
    PositiveFloat,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.engine_flags import ENGINE_CONTAINER
from pointsman.gateway.core.linger import OtherGateways
from pointsman.gateway.types import Discovered, Worker, WorkerKey
from pointsman.kube.client import Kube
from pointsman.kube.mirror import Mirror
from pointsman.kube.objects import KubeObject, Slim
from pointsman.kube.pods import Pod
from pointsman.kube.resources import LLM_SERVICES, PODS
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds
from pointsman.serving.local_remote import RoutingRule
from pointsman.serving.objectives import Objectives

log = logging.getLogger(__name__)


def _or_none(value: object, read: ValidatorFunctionWrapHandler) -> Any:
    """What a newer version wrote in a form that this one cannot read counts as not set: the workers serve on."""
    try:
        return read(value)
    except ValidationError:
        return None


_Number = Annotated[int | None, WrapValidator(_or_none)]


class _Objectives(Slim):
    ttft_ms: PositiveFloat
    ttft_ms_per_prompt_token: NonNegativeFloat = 0.0
    tpot_ms: PositiveFloat


class _Routing(Slim):
    max_local_prefill_tokens: _Number = None
    max_prefill_queue_size: _Number = None
    pending_tokens_per_prefill_worker: _Number = None
    decoding_per_decode_worker: _Number = None
    slack_milliseconds: _Number = None
    objectives: Annotated[_Objectives | None, WrapValidator(_or_none)] = None


class _Status(Slim):
    routing: Annotated[_Routing | None, WrapValidator(_or_none)] = None


class Service(KubeObject):
    """Of an LLMService, what the gateway reads."""

    status: Annotated[_Status | None, WrapValidator(_or_none)] = None


class WorkerPod(Pod):
    """Of a worker's pod, also whether its engine has anything to do with embeddings."""

    embedding_role: str | None = None  # as the operator rendered it; None: the service had no encode workers then

    @model_validator(mode="before")
    @classmethod
    def _read_environment(cls, pod: Any) -> Any:
        """The one variable, because a gateway keeps every pod and needs no other."""
        if not isinstance(pod, Mapping):
            return pod
        containers: list[dict[str, Any]] = (pod.get("spec") or {}).get("containers") or []
        engine = next((item for item in containers if item.get("name") == ENGINE_CONTAINER), {})
        variables = {item.get("name"): item.get("value") for item in engine.get("env") or []}
        return {**pod, "embeddingRole": variables.get(names.ENV_EMBEDDING_ROLE)}


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


def workers_of(pods: Iterable[WorkerPod]) -> tuple[Worker, ...]:
    """The workers that requests may go to, by name."""
    found = sorted(
        ((worker, pod.embedding_role) for pod in pods if (worker := worker_of(pod)) is not None),
        key=lambda each: each[0].name,
    )
    encodes = any(worker.role is Role.ENCODE for worker, _ in found)
    return tuple(replace(worker, ignores_embeddings=encodes and embeddings is None) for worker, embeddings in found)


def discovered(pods: Iterable[WorkerPod], service: Service | None) -> Discovered:
    """What the two mirrors say together."""
    workers = workers_of(pods)
    rule, bounds, objectives = None, UNBOUNDED, None
    if service is not None and service.status is not None and service.status.routing is not None:
        routing = service.status.routing
        if routing.max_local_prefill_tokens is not None and routing.max_prefill_queue_size is not None:
            rule = RoutingRule(routing.max_local_prefill_tokens, routing.max_prefill_queue_size)
        bounds = FlowBounds(
            routing.pending_tokens_per_prefill_worker, routing.decoding_per_decode_worker, routing.slack_milliseconds
        )
        if (goals := routing.objectives) is not None:
            objectives = Objectives(goals.ttft_ms / 1000, goals.tpot_ms / 1000, goals.ttft_ms_per_prompt_token / 1000)
    return Discovered(workers, rule, service.metadata.uid if service is not None else None, bounds, objectives)


async def follow_kubernetes(namespace: str, service: str, found: Callable[[Discovered], None]) -> None:
    """Report the service's workers now and after every change, until cancelled.

    Nothing is reported before both mirrors have had their first list: a set that is half known is not a set.
    """
    async with await Kube.connect(field_manager="pointsman-gateway") as kube:
        pods = Mirror(
            kube,
            PODS,
            WorkerPod,
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
            except ValueError as error:
                log.error("workers not understood", extra={"why": str(error)})
                return
            if now != last:
                last = now
                found(now)

        await _follow(report, pods, services)


def other_gateways(pods: Iterable[Pod], own_name: str) -> OtherGateways:
    """The gateway pods but ``own_name`` that are not being deleted and have not ended."""
    others = [pod for pod in pods if pod.metadata.name != own_name and not pod.terminating and not pod.finished]
    ready = sum(pod.ready for pod in others)
    return OtherGateways(ready=ready, starting=len(others) - ready)


async def follow_other_gateways(
    namespace: str, service: str, own_name: str, found: Callable[[OtherGateways], None]
) -> None:
    """Report the service's other gateways now and after every change, until cancelled."""
    async with await Kube.connect(field_manager="pointsman-gateway") as kube:
        pods = Mirror(
            kube,
            PODS,
            Pod,
            namespace=namespace,
            label_selector=f"{names.SERVICE_LABEL}={service},{names.COMPONENT_LABEL}={names.COMPONENT_GATEWAY}",
            on_change=lambda _old, _new: report(),
        )

        def report() -> None:
            if pods.synced.is_set():
                found(other_gateways(pods.objects(), own_name))

        await _follow(report, pods)


async def _follow(report: Callable[[], None], *mirrors: Mirror[Any]) -> None:
    """Run ``mirrors`` until cancelled, and ``report`` once all have had their first list."""
    async with asyncio.TaskGroup() as group:
        for mirror in mirrors:
            group.create_task(mirror.run(), name=f"mirror of {mirror.resource}")
        for mirror in mirrors:
            await mirror.synced.wait()
        report()
