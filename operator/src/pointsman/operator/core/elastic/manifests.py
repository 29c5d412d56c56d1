"""The objects of an elastic group: gateway, manager, instances.

Manager and instances are StatefulSets. Kubernetes runs at most one pod of each of their names at a time, so a group
never has two managers. An instance that is deleted, by whomever, hands over what it has before it ends
(``pointsman.workers.elastic.instance``), so a scale-down is a smaller number and nothing more.

``OnDelete``: a changed template, as after an upgrade of the operator, restarts nothing.
"""

from collections.abc import Mapping
from typing import Any, Final

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup, ElasticGroupSpec
from pointsman.api.v1alpha1.llmservice import EngineSpec, LLMServiceSpec, WorkerSpec
from pointsman.api.v1alpha1.pods import GPU_RESOURCE
from pointsman.operator.core import children
from pointsman.operator.core.gateway import gateway_objects
from pointsman.operator.core.install import Install
from pointsman.operator.core.naming import manager_name
from pointsman.operator.core.snapshot import Service
from pointsman.operator.core.strategic_merge import strategic_merge
from pointsman.operator.core.worker_pod import check_template, pod_spec

MANAGER: Final = ("python", "-m", "pointsman.workers.elastic.manager")
INSTANCE: Final = ("python", "-m", "pointsman.workers.elastic.instance")

_BLOCK_SIZE: Final = 32  # of the manager's vLLM, which has no KV: any that its check accepts
_DTYPE: Final = "--dtype="


def service_of(group: ElasticGroup) -> Service:
    """What the group has in common with a service; its worker is the manager."""
    return _service(group, WorkerSpec(gpus=0))


def group_objects(group: ElasticGroup, install: Install) -> list[dict[str, Any]]:
    """All objects but the Secret, in the order in which they are applied. Raises Refused for a template."""
    template = group.spec.instance.template
    check_template(template.as_written() if template else {}, "instance", settable=False)
    service = service_of(group)
    own = (_manager(group, install), _instances(group, install), _disruption_budget(group))
    return [*gateway_objects(service, install), *(children.stamped(item) for item in own)]


def instance_selector(name: str) -> dict[str, str]:
    """Labels that select the instances of a group."""
    return {names.ELASTIC_GROUP_LABEL: name, names.COMPONENT_LABEL: names.COMPONENT_INSTANCE}


def instance_name(group: str, ordinal: int) -> str:
    """As the StatefulSet names its pods."""
    return f"{group}-{ordinal}"


def dtype(spec: ElasticGroupSpec) -> str | None:
    """Of the weights and KV, if the user's arguments name it."""
    found = [argument.removeprefix(_DTYPE) for argument in spec.engine.args if argument.startswith(_DTYPE)]
    return found[-1] if found and found[-1] != "auto" else None


def _service(group: ElasticGroup, worker: WorkerSpec) -> Service:
    spec, meta = group.spec, group.metadata
    return Service(
        kind=group.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        generation=meta.generation,
        spec=LLMServiceSpec(
            model=spec.model,
            engine=EngineSpec(image=spec.engine.image, args=spec.engine.args),
            worker=worker,
            gateway=spec.gateway,
            drain=spec.drain,
            paused=spec.paused,
        ),
        has_finalizer=False,
        follows_default_image=meta.annotations.get(names.FOLLOW_DEFAULT_IMAGE_ANNOTATION) == "true",
        deleting_since_s=meta.deletion_timestamp.timestamp() if meta.deletion_timestamp else None,
    )


def _manager(group: ElasticGroup, install: Install) -> dict[str, Any]:
    service = service_of(group)
    labels = children.labels(service, names.COMPONENT_WORKER, Role.DECODE) | {
        names.ELASTIC_GROUP_LABEL: service.name,
        names.ROUTABLE_LABEL: "true",  # it has its role from its start, and is ready when it answers
    }
    environment = {
        names.ENV_KV_COMPATIBILITY: "elastic",
        names.ENV_BLOCK_SIZE: str(_BLOCK_SIZE),
        names.ENV_MAX_DEGREE: str(group.spec.max_degree),
        names.ENV_MIN_DEGREE: str(group.spec.parallelism.min_degree),
        # Survives a restart of the container. With the pod's uid: nodes of a local cluster share their /tmp.
        names.ENV_LATENCY_MODEL_FILE: f"/tmp/latency-model-$({names.ENV_POD_UID}).json",
    }
    spec = pod_spec(service, install, MANAGER, environment)
    if not group.spec.engine.args:
        del spec["containers"][0]["args"]  # the API server keeps no empty list, so it would always differ
    return _stateful_set(service, manager_name(service.name), 1, labels, spec)


def _instances(group: ElasticGroup, install: Install) -> dict[str, Any]:
    instance = group.spec.instance
    worker = WorkerSpec(
        gpus=instance.gpus, template=instance.template, startup_timeout_seconds=instance.startup_timeout_seconds
    )
    service = _service(group, worker)
    environment = {}
    if instance.kv_tokens is not None:
        environment[names.ENV_SLOTS] = str(instance.kv_tokens)
    if (chosen := dtype(group.spec)) is not None:
        environment[names.ENV_DTYPE] = chosen
    if instance.tensor_parallel > 1:
        environment[names.ENV_TENSOR_PARALLEL] = str(instance.tensor_parallel)
    ours = pod_spec(service, install, INSTANCE, environment)
    engine = ours["containers"][0]
    del engine["args"]  # they are for the manager's API server
    if instance.gpus:
        engine["resources"]["limits"] = {GPU_RESOURCE: str(instance.gpus)}  # as the API server keeps it
    engine["ports"] = [{"name": "http", "containerPort": names.ENGINE_PORT}]
    del engine["lifecycle"]  # it drains when it is told to stop
    template = service.spec.worker.template_dict()
    user_meta: Mapping[str, Any] = template.get("metadata") or {}
    labels = {
        **(user_meta.get("labels") or {}),
        **children.labels(service, names.COMPONENT_INSTANCE),
        names.ELASTIC_GROUP_LABEL: service.name,
    }
    spec = strategic_merge(ours, template.get("spec") or {}, "spec", of="spec.instance.template")
    return _stateful_set(
        service, service.name, group.spec.instances.replicas, labels, spec, user_meta.get("annotations")
    )


def _stateful_set(
    service: Service,
    name: str,
    replicas: int,
    labels: Mapping[str, str],
    spec: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    component = labels[names.COMPONENT_LABEL]
    selector = {names.ELASTIC_GROUP_LABEL: service.name, names.COMPONENT_LABEL: component}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": children.metadata(service, name, component),
        "spec": {
            "replicas": replicas,
            "serviceName": name,  # required by older API servers; the pods need no DNS name
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": dict(labels), **({"annotations": dict(annotations)} if annotations else {})},
                "spec": dict(spec),
            },
        },
    }


def _disruption_budget(group: ElasticGroup) -> dict[str, Any]:
    """At most one instance is evicted at a time, and never the last."""
    service = service_of(group)
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": children.metadata(service, service.name, names.COMPONENT_INSTANCE),
        "spec": {
            "minAvailable": max(1, group.spec.instances.replicas - 1),
            "selector": {"matchLabels": instance_selector(service.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
