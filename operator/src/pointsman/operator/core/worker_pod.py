"""A worker's pod, whatever its engine: environment of the protocol, model, probes, security, and the user's template.

Pods of prefill and decode workers are alike but for labels: the role is state, given to a running worker. Encode
workers have flags, GPUs and a template of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.engine_flags import ENGINE_CONTAINER
from pointsman.api.v1alpha1.limits import WORKER_SETTINGS, environment
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.api.v1alpha1.model_source import (
    ClaimModel,
    HubModel,
    ModelSource,
    ModelSourceError,
    PathModel,
    parse_model_source,
)
from pointsman.api.v1alpha1.pods import GPU_RESOURCE
from pointsman.api.v1alpha1.worker_environment import SETTABLE_ENVIRONMENT, is_owned_variable
from pointsman.operator.core import children
from pointsman.operator.core.install import Install
from pointsman.operator.core.messages import specs as text
from pointsman.operator.core.revision import kv_compatibility, revision
from pointsman.operator.core.snapshot import Service
from pointsman.operator.core.strategic_merge import strategic_merge
from pointsman.operator.errors import Refused

DRAIN: Final = ("python", "-m", "pointsman.workers.drain")
_GRACE_MARGIN_S: Final = 30  # the kubelet's patience beyond the drain's own deadline
_STARTUP_S: Final = 1800  # default of spec.worker.startupTimeoutSeconds: weights are pulled from a hub
_SHARED_MEMORY: Final = "16Gi"  # far more than vLLM's queues, its cache of multimodal inputs (4 GiB) and UCX take
# The root file system is read-only, so caches (torch, Triton, FlashInfer …) need another home. And the user's number
# need not be in the image's /etc/passwd: then Python's getpass.getuser() fails unless USER says who it is.
_HOME: Final = {"HOME": "/tmp", "USER": "pointsman"}
_HUB_CACHE_PATH: Final = "/var/cache/huggingface"
_CLAIM_PATH: Final = "/models"

_OWNED_POD_FIELDS: Final = ("enableServiceLinks", "restartPolicy", "terminationGracePeriodSeconds")
_OWNED_CONTAINER_FIELDS: Final = (
    "args",
    "command",
    "image",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
)


def worker_pod(
    service: Service,
    install: Install,
    name: str,
    role: Role,
    *,
    command: Sequence[str],
    block_size: int,
    kv_inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """The manifest of one worker: ours, with the user's template merged over it.

    Of the engine: the ``command`` that starts it with Pointsman inside, the ``block_size`` of its KV in tokens, and
    what decides whether two workers may exchange KV (``EngineAdapter.kv_inputs``).
    """
    spec = service.spec
    template = spec.template_of(role)
    compatibility = kv_compatibility(kv_inputs)
    environment = {names.ENV_KV_COMPATIBILITY: compatibility, names.ENV_BLOCK_SIZE: str(block_size)}
    ours = pod_spec(service, install, command, environment | _embedding_env(spec, role), role)

    meta = children.metadata(service, name, names.COMPONENT_WORKER, role)
    user_meta = template.get("metadata") or {}
    meta["labels"] = {
        **(user_meta.get("labels") or {}),
        **meta["labels"],
        names.LLMD_ROLE_LABEL: role.label,
        names.REVISION_LABEL: revision(spec, role),
        names.KV_COMPATIBILITY_LABEL: compatibility,
        names.ROUTABLE_LABEL: "false",
    }
    if user_meta.get("annotations"):
        meta["annotations"] = dict(user_meta["annotations"])
    of = f"spec.{'encode' if role is Role.ENCODE else 'worker'}.template"
    merged = strategic_merge(ours, template.get("spec") or {}, "spec", of=of)
    # After the merge: a list of the template's takes the place of ours.
    merged["readinessGates"] = [*merged.get("readinessGates", ()), {"conditionType": names.ROUTABLE_CONDITION}]
    if spec.worker.lost_node_seconds is not None:
        merged["tolerations"] = [*_tolerate_lost(spec.worker.lost_node_seconds), *merged.get("tolerations", ())]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": merged}


def _tolerate_lost(seconds: int) -> list[dict[str, Any]]:
    """Tolerations with which Kubernetes deletes the pod so long after it has found its node lost.

    They come first: the first toleration of a taint is the one that counts.
    """
    return [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in ("not-ready", "unreachable")
    ]


def _resources(gpus: int, template: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine's container asks for, as far as the user's template says nothing of it.

    A pod without requests is of class BestEffort: the first that a kubelet evicts when memory is short. A request above
    a limit of the template would be refused, and without one Kubernetes takes the limit.
    """
    of_engine = engine_container(template).get("resources") or {}
    of_pod = (template.get("spec") or {}).get("resources") or {}
    written = {name for each in (of_engine, of_pod) for kind in ("requests", "limits") for name in each.get(kind) or ()}
    wanted = {"cpu": "500m", "memory": f"{4 * gpus}Gi"} if gpus else {"cpu": "100m", "memory": "1Gi"}
    requests = {name: amount for name, amount in wanted.items() if name not in written}
    limits = {GPU_RESOURCE: gpus} if gpus else {}
    return {kind: amounts for kind, amounts in (("limits", limits), ("requests", requests)) if amounts}


def model_source(spec: LLMServiceSpec) -> ModelSource:
    """Where the model comes from; raises Refused for what is no source."""
    try:
        return parse_model_source(spec.model.source)
    except ModelSourceError as error:
        raise Refused(str(error)) from error


def engine_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the user's pod template the container that is the engine; empty if there is none."""
    containers: Sequence[Mapping[str, Any]] = (template.get("spec") or {}).get("containers") or []
    return next((item for item in containers if item.get("name") == ENGINE_CONTAINER), {})


def check_template(
    template: Mapping[str, Any], of: str = "worker", arguments: str = "engine", *, settable: bool = True
) -> None:
    """Raise Refused, with the field, for what a user's pod template sets and Pointsman sets, and for wrong settings.

    The template is that of ``spec.<of>``, and flags for its engine are in ``spec.<arguments>.args``. ``settable``: it
    may have the variables of SETTABLE_ENVIRONMENT.
    """
    spec = template.get("spec") or {}
    for field in _OWNED_POD_FIELDS:
        if field in spec:
            raise Refused(text.field_is_set(f"spec.{of}.template.spec.{field}"), Reason.TEMPLATE_REFUSED)
    container = engine_container(template)
    for field in _OWNED_CONTAINER_FIELDS:
        if field in container:
            at = f"spec.{of}.template.spec.containers[name={ENGINE_CONTAINER}].{field}"
            refusal = text.arguments_are_set(at, arguments) if field == "args" else text.field_is_set(at)
            raise Refused(refusal, Reason.TEMPLATE_REFUSED)
    for item in container.get("env") or []:
        name = str(item.get("name", ""))
        at = text.variable(of, ENGINE_CONTAINER, name)
        if is_owned_variable(name, settable=settable):
            raise Refused(text.field_is_set(at), Reason.TEMPLATE_REFUSED)
        if of == "encode" and name == names.ENV_EMBEDDING_CACHE_MIB:  # gateways count on the same number
            raise Refused(text.set_elsewhere(at, "spec.multimodal.cacheMiB"), Reason.TEMPLATE_REFUSED)
        setting, value = SETTABLE_ENVIRONMENT.get(name), item.get("value")
        if setting is not None and value is not None and not setting.is_right(str(value)):
            raise Refused(text.wrong_value(at, str(value), setting.values), Reason.TEMPLATE_REFUSED)
    for label in ((template.get("metadata") or {}).get("labels")) or {}:
        if label.startswith(f"{names.GROUP}/") or label in (names.LLMD_ROLE_LABEL, names.COMPONENT_LABEL):
            raise Refused(text.label_is_set(of, label), Reason.TEMPLATE_REFUSED)


def uncounted_gpus(template: Mapping[str, Any], gpus: int, of: str) -> str | None:
    """A sentence if the template asks for other GPUs than ``spec.<of>.gpus``, which is what budgets count.

    Admission refuses such a template. One that was stored before keeps what it has.
    """
    found = []
    for container in (template.get("spec") or {}).get("containers") or ():
        of_engine = container.get("name") == ENGINE_CONTAINER
        for asked in (container.get("resources") or {}).values():
            amount = asked.get(GPU_RESOURCE) if isinstance(asked, Mapping) else None
            if amount is not None and not (of_engine and str(amount) == str(gpus)):
                found.append((str(amount), str(container.get("name"))))
    return text.uncounted_gpus(of, GPU_RESOURCE, tuple(dict.fromkeys(found)), gpus) if found else None


def pod_spec(
    service: Service,
    install: Install,
    command: Sequence[str],
    of_engine: Mapping[str, str],
    role: Role = Role.DECODE,
) -> dict[str, Any]:
    """The spec of a pod with one engine container: ``command`` with the user's arguments, and more environment."""
    spec, gpus = service.spec, service.spec.gpus_of(role)
    model, volumes, mounts, model_env = _model(spec)
    volumes.append({"name": "tmp", "emptyDir": {}})
    mounts.append({"name": "tmp", "mountPath": "/tmp"})
    # A container's own /dev/shm holds 64 MiB: too little for what vLLM's processes and UCX exchange.
    # Its files are the node's memory, so there is a limit; the template may name the volume with another one.
    volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}})
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    drain_seconds = spec.drain.timeout_seconds
    startup_seconds = spec.worker.startup_timeout_seconds or _STARTUP_S
    health = {"httpGet": {"path": "/health", "port": names.ENGINE_PORT}}
    container: dict[str, Any] = {
        "name": ENGINE_CONTAINER,
        "image": spec.engine.image or install.worker_image,
        "imagePullPolicy": install.image_pull_policy,
        "command": list(command),
        "args": list(spec.engine_args_of(role)),
        "env": [*_protocol_env(service, install, model, of_engine, gpus), *model_env],
        "ports": [{"name": name, "containerPort": port} for name, port in _ports(role).items()],
        "startupProbe": {**health, "periodSeconds": 1, "timeoutSeconds": 3, "failureThreshold": startup_seconds},
        "readinessProbe": {**health, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        # Evicted or deleted by whomever: it finishes what it has before its SIGTERM.
        "lifecycle": {"preStop": {"exec": {"command": list(DRAIN)}}},
        "securityContext": dict(children.CONTAINER_SECURITY),
        # The tail of a crashed engine's log is then in the pod's status: no permission to read logs is needed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if resources := _resources(gpus, spec.template_of(role)):
        container["resources"] = resources
    result: dict[str, Any] = {
        "containers": [container],
        "volumes": volumes,
        "restartPolicy": "Always",
        # A Service called "vllm" would have the kubelet inject VLLM_PORT=tcp://…, and vLLM would refuse to start.
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": drain_seconds + _GRACE_MARGIN_S,
        "securityContext": dict(children.POD_SECURITY),
    }
    if install.image_pull_secrets:
        result["imagePullSecrets"] = [{"name": name} for name in install.image_pull_secrets]
    return result


def _ports(role: Role) -> dict[str, int]:
    """Of the engine container, by name."""
    if role is Role.ENCODE:  # it has no KV cache
        return {"http": names.ENGINE_PORT, "embeddings": names.EMBEDDING_PORT}
    return {
        "http": names.ENGINE_PORT,
        "nixl": names.NIXL_PORT,
        "kv-events": names.KV_EVENTS_PORT,
        "kv-replay": names.KV_EVENTS_REPLAY_PORT,
    }


def _embedding_env(spec: LLMServiceSpec, role: Role) -> dict[str, str]:
    """What a worker is told about embeddings; nothing in a service without encode workers."""
    if spec.encode is None:
        return {}
    if role is not Role.ENCODE:
        return {names.ENV_EMBEDDING_ROLE: names.EmbeddingRole.CONSUMER}
    cache = {} if spec.multimodal is None else {names.ENV_EMBEDDING_CACHE_MIB: str(spec.multimodal.cache_mib)}
    return {names.ENV_EMBEDDING_ROLE: names.EmbeddingRole.PRODUCER, **cache}


def _protocol_env(
    service: Service, install: Install, model: str, of_engine: Mapping[str, str], gpus: int
) -> list[dict[str, Any]]:
    spec = service.spec

    def field(path: str) -> dict[str, Any]:
        return {"fieldRef": {"fieldPath": path}}

    plain = {
        names.ENV_BIND_HOST: install.pod_bind_host,
        names.ENV_NAMESPACE: service.namespace,
        names.ENV_SERVICE: service.name,
        names.ENV_SERVICE_UID: service.uid,
        names.ENV_NATS_URL: install.nats_url,
        **of_engine,
        names.ENV_MODEL: model,
        names.ENV_SERVED_NAME: service.served_name,
        names.ENV_GPUS: str(gpus),
        names.ENV_DRAIN_TIMEOUT_SECONDS: str(max(1, spec.drain.timeout_seconds)),
        **_HOME,
        **environment(spec.worker.limits, WORKER_SETTINGS),
    }
    return [
        {"name": names.ENV_POD_IP, "valueFrom": field("status.podIP")},  # first: $(POD_IP) in later values means it
        {"name": names.ENV_WORKER, "valueFrom": field("metadata.name")},
        {"name": names.ENV_POD_UID, "valueFrom": field("metadata.uid")},
        *({"name": name, "value": value} for name, value in plain.items()),
        *children.secret_env(service, install),
    ]


def _model(
    spec: LLMServiceSpec,
) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """What ``--model`` gets, and the volumes, mounts and environment it needs."""
    match source := model_source(spec):
        case HubModel():
            env: list[dict[str, Any]] = [{"name": "HF_HOME", "value": _HUB_CACHE_PATH}]
            if source.revision is not None:
                env.append({"name": names.ENV_MODEL_REVISION, "value": source.revision})
            if spec.model.token_secret_ref is not None:
                reference = {"name": spec.model.token_secret_ref.name, "key": spec.model.token_secret_ref.key}
                env.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
            volume: dict[str, Any] = {"name": "model", "emptyDir": {}}
            return source.repository, [volume], [{"name": "model", "mountPath": _HUB_CACHE_PATH}], env
        case ClaimModel():
            volume = {"name": "model", "persistentVolumeClaim": {"claimName": source.claim, "readOnly": True}}
            mount = {"name": "model", "mountPath": _CLAIM_PATH, "readOnly": True}
            return f"{_CLAIM_PATH}/{source.path}", [volume], [mount], []
        case PathModel():
            # The identical path on every node: the path is part of what engines compare before they exchange KV.
            volume = {"name": "model", "hostPath": {"path": source.path, "type": "Directory"}}
            return source.path, [volume], [{"name": "model", "mountPath": source.path, "readOnly": True}], []
