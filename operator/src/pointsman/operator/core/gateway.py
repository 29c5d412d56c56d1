"""The gateway of a service: Deployment, Service, PodDisruptionBudget, and an account with rights of its own.

The rights are a Role of the service, not of the chart: a gateway that restarts while the chart is uninstalled serves.
"""

from typing import Any

from pointsman.api.protocol import names
from pointsman.operator.core import children
from pointsman.operator.core.gateway_pod import gateway_template
from pointsman.operator.core.install import Install
from pointsman.operator.core.naming import gateway_name, gateway_role_binding_name
from pointsman.operator.core.snapshot import Service

_RBAC = "rbac.authorization.k8s.io"


def gateway_objects(service: Service, install: Install) -> list[dict[str, Any]]:
    """The objects in the order they are applied: identity and rights before the pods that need them.

    Raises Refused for a template.
    """
    deployment = _deployment(service, install)
    objects = [
        _service_account(service),
        _role(service),
        _service(service),
        _disruption_budget(service),
        _role_binding(service),  # late: the API server's authorizer hears of a new Role a moment after it was made
    ]
    return [children.stamped(item) for item in (*objects, deployment)]


def endpoint(service: Service) -> str:
    """Where clients reach the service inside the cluster."""
    host = f"{gateway_name(service.name)}.{service.namespace}.svc"
    return f"http://{host}:{service.spec.gateway.service.port}/v1"


def _metadata(service: Service) -> dict[str, Any]:
    return children.metadata(service, gateway_name(service.name), names.COMPONENT_GATEWAY)


def _selector(service: Service) -> dict[str, str]:
    """Labels that select the gateway's pods."""
    return {names.SERVICE_LABEL: service.name, names.COMPONENT_LABEL: names.COMPONENT_GATEWAY}


def _service_account(service: Service) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(service),
        "automountServiceAccountToken": True,
    }


def _role(service: Service) -> dict[str, Any]:
    """What a gateway reads: the pods beside it, and its own service."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": _metadata(service),
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
            {
                "apiGroups": [names.GROUP],
                "resources": ["llmservices"],
                "resourceNames": [service.name],  # a list or watch with metadata.name as field selector is allowed
                "verbs": ["list", "watch"],
            },
        ],
    }


def _role_binding(service: Service) -> dict[str, Any]:
    """Not of the gateway's name: earlier versions bound a ClusterRole under it, and a binding's role cannot change."""
    name = gateway_name(service.name)
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": children.metadata(service, gateway_role_binding_name(service.name), names.COMPONENT_GATEWAY),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": service.namespace}],
    }


def _service(service: Service) -> dict[str, Any]:
    desired = service.spec.gateway.service
    metadata = _metadata(service)
    if desired.annotations:
        metadata["annotations"] = dict(desired.annotations)
    optional: dict[str, Any] = {
        "loadBalancerClass": desired.load_balancer_class,
        "loadBalancerSourceRanges": desired.load_balancer_source_ranges and list(desired.load_balancer_source_ranges),
        "externalTrafficPolicy": desired.external_traffic_policy,
        "ipFamilyPolicy": desired.ip_family_policy,
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "type": str(desired.type),
            "selector": children.labels(service, names.COMPONENT_GATEWAY),
            "ports": [{"name": "http", "port": desired.port, "targetPort": "http", "protocol": "TCP"}],
            **{field: value for field, value in optional.items() if value},
        },
    }


def _disruption_budget(service: Service) -> dict[str, Any]:
    """At most one gateway is evicted at a time. The only one may be: it serves until its replacement is ready."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(service),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": _selector(service)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _deployment(service: Service, install: Install) -> dict[str, Any]:
    replicas = service.spec.gateway.desired_replicas
    metadata = _metadata(service)
    metadata["annotations"] = {names.COPIED_REPLICAS_ANNOTATION: str(replicas)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": _selector(service)},
            # A new gateway is ready before an old one stops accepting.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": gateway_template(service, install),
        },
    }
