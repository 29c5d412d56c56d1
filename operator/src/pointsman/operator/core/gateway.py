"""The gateway of a service: Deployment, Service, ServiceAccount and the RoleBinding that lets it see the workers."""

from typing import Any

from pointsman.api.protocol import names
from pointsman.api.v1alpha1.limits import GATEWAY_SETTINGS, environment
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.api.v1alpha1.multimodal import multimodal_environment
from pointsman.operator.core import children
from pointsman.operator.core.install import Install
from pointsman.operator.core.naming import gateway_name
from pointsman.operator.core.snapshot import Service

_GRACE_MARGIN_SECONDS = 15
_TRUST_MEDIA_OPTIONS = "--trust-request-mm-kwargs"  # vLLM's: clients may set mm_processor_kwargs and media_io_kwargs


def gateway_objects(service: Service, install: Install) -> list[dict[str, Any]]:
    """The objects in the order they are applied: identity and rights before the pods that need them."""
    objects = [_service_account(service), _role_binding(service, install), _service(service)]
    return [children.stamped(item) for item in (*objects, _deployment(service, install))]


def endpoint(service: Service, install: Install) -> str:
    """Where clients reach the service inside the cluster."""
    host = f"{gateway_name(service.name)}.{service.namespace}.{install.cluster_domain}"
    return f"http://{host}:{service.spec.gateway.service.port}/v1"


def _metadata(service: Service) -> dict[str, Any]:
    return children.metadata(service, gateway_name(service.name), names.COMPONENT_GATEWAY)


def _service_account(service: Service) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(service),
        "automountServiceAccountToken": True,
    }


def _role_binding(service: Service, install: Install) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(service),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": install.gateway_cluster_role,
        },
        "subjects": [
            {"kind": "ServiceAccount", "name": gateway_name(service.name), "namespace": service.namespace},
        ],
    }


def _service(service: Service) -> dict[str, Any]:
    wanted = service.spec.gateway.service
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(service),
        "spec": {
            "type": str(wanted.type),
            "selector": children.labels(service, names.COMPONENT_GATEWAY),
            "ports": [{"name": "http", "port": wanted.port, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _deployment(service: Service, install: Install) -> dict[str, Any]:
    selector = {names.SERVICE_LABEL: service.name, names.COMPONENT_LABEL: names.COMPONENT_GATEWAY}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(service),
        "spec": {
            "replicas": service.spec.gateway.replicas,
            "selector": {"matchLabels": selector},
            # A new gateway is ready before an old one stops accepting.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": children.labels(service, names.COMPONENT_GATEWAY) | _group_label(service)},
                "spec": _pod_spec(service, install),
            },
        },
    }


def _group_label(service: Service) -> dict[str, str]:
    """What tells the operator whose pods these are; a gateway of an LLMService has no such label."""
    return {names.ELASTIC_GROUP_LABEL: service.name} if service.kind == "ElasticGroup" else {}


def _settings(service: Service) -> dict[str, str]:
    """What the user wrote about router, limits and images; nothing for what is absent."""
    wanted = service.spec.gateway
    router = {} if wanted.router is None else {"POINTSMAN_ROUTER": wanted.router.value}
    trusts = {"POINTSMAN_TRUST_REQUEST_MM_KWARGS": "true"} if _trusts_media_options(service.spec) else {}
    limits = environment(wanted.limits, GATEWAY_SETTINGS)
    return router | limits | multimodal_environment(service.spec.multimodal) | trusts


def _trusts_media_options(spec: LLMServiceSpec) -> bool:
    """Whether every engine of the service does; an engine without the flag would reject what the gateway passes on."""
    return all(
        any(argument.replace("_", "-") == _TRUST_MEDIA_OPTIONS for argument in spec.engine_args_of(role))
        for role in spec.roles
    )


def _pod_spec(service: Service, install: Install) -> dict[str, Any]:
    plain = {
        names.ENV_BIND_HOST: install.pod_bind_host,
        names.ENV_NAMESPACE: service.namespace,
        names.ENV_SERVICE: service.name,
        names.ENV_SERVICE_UID: service.uid,
        names.ENV_SERVED_NAME: service.served_name,
        names.ENV_NATS_URL: install.nats_url,
        "POINTSMAN_LINGER_SECONDS": str(install.gateway_linger_seconds),
        "POINTSMAN_SHUTDOWN_SECONDS": str(service.spec.drain.timeout_seconds),
        "POINTSMAN_LOG_LEVEL": install.log_level.lower(),
        "HOME": "/tmp",
        "USER": "pointsman",
        **_settings(service),
    }
    env: list[dict[str, Any]] = [
        {"name": names.ENV_POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "POINTSMAN_GATEWAY", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        *({"name": name, "value": value} for name, value in plain.items()),
        *children.secret_env(service, install),
    ]
    pod_spec: dict[str, Any] = {
        # A Service named "pointsman" would have the kubelet inject POINTSMAN_PORT=tcp://…
        "enableServiceLinks": False,
        "serviceAccountName": gateway_name(service.name),
        "terminationGracePeriodSeconds": (
            install.gateway_linger_seconds + service.spec.drain.timeout_seconds + _GRACE_MARGIN_SECONDS
        ),
        "securityContext": dict(children.POD_SECURITY),
        "containers": [
            {
                "name": "gateway",
                "image": install.gateway_image,
                "imagePullPolicy": install.image_pull_policy,
                "command": ["python", "-m", "pointsman.gateway"],
                "env": env,
                "ports": [{"name": "http", "containerPort": names.GATEWAY_PORT, "protocol": "TCP"}],
                # Ready once it knows the set of workers: its report counts when the operator drains one.
                "readinessProbe": {
                    "httpGet": {"path": "/ready", "port": names.GATEWAY_PORT},
                    "periodSeconds": 1,
                    "timeoutSeconds": 3,
                },
                "livenessProbe": {
                    "httpGet": {"path": "/health", "port": names.GATEWAY_PORT},
                    "periodSeconds": 10,
                    "timeoutSeconds": 10,
                    "failureThreshold": 6,
                },
                "resources": {"requests": {"cpu": install.gateway_cpu, "memory": install.gateway_memory}},
                "securityContext": dict(children.CONTAINER_SECURITY),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    if install.image_pull_secrets:
        pod_spec["imagePullSecrets"] = [{"name": name} for name in install.image_pull_secrets]
    return pod_spec
