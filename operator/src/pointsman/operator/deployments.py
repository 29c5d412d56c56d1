"""The Deployments of gateways: how many pods they ask for, and why they cannot make them."""

from collections.abc import Callable

from pointsman.api.protocol.names import COMPONENT_GATEWAY, COMPONENT_LABEL, SERVICE_LABEL
from pointsman.kube.client import Kube
from pointsman.kube.mirror import Mirror
from pointsman.kube.objects import KubeObject, Slim
from pointsman.kube.pods import Condition
from pointsman.kube.resources import DEPLOYMENTS
from pointsman.operator.core.naming import gateway_name
from pointsman.operator.core.snapshot import GatewayDeployment, Service


class DeploymentSpec(Slim):
    """Of a Deployment's spec, its number."""

    replicas: int = 1


class DeploymentStatus(Slim):
    """What the Deployment controller reports."""

    conditions: tuple[Condition, ...] = ()


class Deployment(KubeObject):
    """A Deployment."""

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def refused(self) -> str | None:
        """The API server's words when it refuses a pod (quota, admission, Pod Security); None otherwise."""
        for condition in self.status.conditions:
            if condition.type == "ReplicaFailure" and condition.status == "True":
                return condition.message or condition.reason
        return None


class GatewayDeployments:
    """A mirror of all gateways' Deployments.

    ``changed(kind, namespace, name)`` is called with the service or elastic group whose Deployment changed.
    """

    def __init__(self, kube: Kube, namespace: str | None, changed: Callable[[str, str, str], None]) -> None:
        def on_change(old: Deployment | None, new: Deployment | None) -> None:
            found = new or old
            owner = found.metadata.controller if found is not None else None
            if found is not None and owner is not None:
                changed(owner.kind, found.metadata.namespace, owner.name)

        self._kube = kube
        self.mirror: Mirror[Deployment] = Mirror(
            kube,
            DEPLOYMENTS,
            Deployment,
            namespace=namespace,
            label_selector=f"{SERVICE_LABEL},{COMPONENT_LABEL}={COMPONENT_GATEWAY}",
            on_change=on_change,
        )

    def known(self, service: Service) -> GatewayDeployment | None:
        """The service's, as the mirror has it; None: there is none of its own."""
        return _of(service, self.mirror.get(gateway_name(service.name), service.namespace))

    async def read(self, service: Service) -> GatewayDeployment | None:
        """The same, as the API server has it now."""
        live = await self._kube.find(DEPLOYMENTS, gateway_name(service.name), service.namespace)
        return _of(service, Deployment.model_validate(live) if live is not None else None)


def _of(service: Service, found: Deployment | None) -> GatewayDeployment | None:
    if found is None or found.metadata.deletion_timestamp is not None:
        return None
    owner = found.metadata.controller
    if owner is None or owner.uid != service.uid:
        return None
    return GatewayDeployment(replicas=found.spec.replicas, refused=found.refused)
