"""The gateway's pod: ours, with the user's template merged over it."""

from collections.abc import Mapping
from typing import Any, Final

from pointsman.api.protocol import names
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.gateway import GATEWAY_CONTAINER
from pointsman.api.v1alpha1.limits import GATEWAY_SETTINGS, environment
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.api.v1alpha1.multimodal import multimodal_environment
from pointsman.operator.core import children
from pointsman.operator.core.install import Install
from pointsman.operator.core.messages import specs as text
from pointsman.operator.core.naming import gateway_name
from pointsman.operator.core.snapshot import Service
from pointsman.operator.core.strategic_merge import strategic_merge
from pointsman.operator.errors import Refused

_GRACE_MARGIN_S: Final = 15
_REQUESTS: Final = {"cpu": "250m", "memory": "512Mi"}  # others are set in spec.gateway.template
_TRUST_MEDIA_OPTIONS: Final = "--trust-request-mm-kwargs"  # vLLM's: clients may set mm_processor_kwargs and so on
# What the API server cannot refuse for us: it sees these fields only as something that is passed through. From
# envFrom, unlike from env, a variable of ours that is absent today could be set.
_OWNED_CONTAINER_FIELDS: Final = (
    "args",
    "command",
    "envFrom",
    "lifecycle",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "startupProbe",
)


def gateway_template(service: Service, install: Install) -> dict[str, Any]:
    """The pod template of the gateway's Deployment. Raises Refused for a field of the user's that Pointsman sets."""
    template = service.spec.gateway.template_dict()
    _check(template)
    user_meta: Mapping[str, Any] = template.get("metadata") or {}
    meta: dict[str, Any] = {
        "labels": {
            **(user_meta.get("labels") or {}),
            **children.labels(service, names.COMPONENT_GATEWAY),
            **_group_label(service),
        }
    }
    if user_meta.get("annotations"):
        meta["annotations"] = dict(user_meta["annotations"])
    ours = _pod_spec(service, install)
    return {
        "metadata": meta,
        "spec": strategic_merge(ours, template.get("spec") or {}, "spec", of="spec.gateway.template"),
    }


def _check(template: Mapping[str, Any]) -> None:
    containers = (template.get("spec") or {}).get("containers") or []
    for container in containers:
        if container.get("name") != GATEWAY_CONTAINER:
            continue
        for field in _OWNED_CONTAINER_FIELDS:
            if field in container:
                at = f"spec.gateway.template.spec.containers[name={GATEWAY_CONTAINER}].{field}"
                refusal = text.variables_are_set(at) if field == "envFrom" else text.field_is_set(at)
                raise Refused(refusal, Reason.TEMPLATE_REFUSED)


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
            install.gateway_linger_seconds + service.spec.drain.timeout_seconds + _GRACE_MARGIN_S
        ),
        "securityContext": dict(children.POD_SECURITY),
        "containers": [
            {
                "name": GATEWAY_CONTAINER,
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
                "resources": {"requests": dict(_REQUESTS)},
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
