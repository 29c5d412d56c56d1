"""The worker of a service that is profiled: a decode worker, found as the gateway finds it."""

from pathlib import Path

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.pods import Pod
from pointsman.planner.errors import ProfileError


async def decode_worker(service: str, namespace: str | None, kubeconfig: Path | None) -> tuple[str, str]:
    """(name, address) of a decode worker that serves. Raises ProfileError if there is none, KubeError."""
    async with await Kube.connect(kubeconfig, field_manager="pointsman-profile") as kube:
        namespace = namespace or kube.namespace
        if await kube.find(resources.LLM_SERVICES, service, namespace) is None:
            raise ProfileError(f"there is no LLMService '{service}' in namespace '{namespace}'")
        selector = f"{names.SERVICE_LABEL}={service},{names.COMPONENT_LABEL}={names.COMPONENT_WORKER}"
        listed = await kube.list(resources.PODS, namespace, label_selector=selector)
    pods = [Pod.model_validate(item) for item in listed.items]
    serving = [
        pod
        for pod in pods
        if pod.ready
        and not pod.terminating
        and pod.metadata.labels.get(names.ROUTABLE_LABEL) == "true"
        and names.DRAIN_STARTED_ANNOTATION not in pod.metadata.annotations
        and Role.from_label(pod.metadata.labels.get(names.ROLE_LABEL)) is Role.DECODE
    ]
    for pod in sorted(serving, key=lambda pod: pod.metadata.name, reverse=True):
        if pod.status.pod_ip:
            return pod.metadata.name, names.address_url("http", pod.status.pod_ip, names.ENGINE_PORT)
    raise ProfileError(f"{namespace}/{service} has no decode worker that serves, of {len(pods)} workers: wait for one")
