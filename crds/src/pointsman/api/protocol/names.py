"""Labels, annotations, ports, environment variables and NATS subjects."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

GROUP: Final = "pointsman.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"


class Role(StrEnum):
    """What a worker does now. A decode worker may also prefill locally.

    Prefill and decode workers run the same engine, so a live worker can switch between the two. An encode worker runs
    the encoder of a multimodal model only: it has no other role.
    """

    PREFILL = "Prefill"
    DECODE = "Decode"
    ENCODE = "Encode"

    @property
    def label(self) -> str:
        """The value of ``ROLE_LABEL`` and of a pool's key in ``spec.pools``: ``prefill``, ``decode`` or ``encode``."""
        return self.value.lower()

    @classmethod
    def from_label(cls, value: str | None) -> "Role | None":
        """The role a label's value names; None for an absent or foreign value."""
        return next((role for role in cls if role.label == value), None)


LANGUAGE_ROLES: Final = (Role.PREFILL, Role.DECODE)
"""The roles between which a worker may switch, and whose pools every service has."""


def workers_in_words(workers: Mapping[Role, int]) -> str:
    """How many workers of each role, in the order of a request: ``2P4D``, with encode workers ``1E2P4D``."""
    order = (Role.ENCODE, *LANGUAGE_ROLES)
    return "".join(f"{workers[role]}{role.value[0]}" for role in order if role in workers)


class EmbeddingRole(StrEnum):
    """What a worker does with the embeddings of a service that has encode workers: vLLM's ``ec_role``."""

    PRODUCER = "ec_producer"  # an encode worker
    CONSUMER = "ec_consumer"  # a prefill or decode worker: it fetches embeddings, or computes them itself


# --- labels of pods (and, the first two, of everything the operator makes) ---
SERVICE_LABEL: Final = f"{GROUP}/service"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
COMPONENT_WORKER: Final = "worker"
COMPONENT_GATEWAY: Final = "gateway"
COMPONENT_INSTANCE: Final = "instance"  # of an elastic group, whose manager is the worker that gateways see
ELASTIC_GROUP_LABEL: Final = f"{GROUP}/elastic-group"  # on pods of a group, beside SERVICE_LABEL: its name
ROLE_LABEL: Final = f"{GROUP}/role"
LLMD_ROLE_LABEL: Final = "llm-d.ai/role"  # the same value, for those who run llm-d's tools
REVISION_LABEL: Final = f"{GROUP}/revision"
KV_COMPATIBILITY_LABEL: Final = f"{GROUP}/kv-compatibility"
METRICS_PORT_LABEL: Final = f"{GROUP}/metrics-port"  # where a worker serves its metrics alone; not set: ENGINE_PORT
ROUTABLE_LABEL: Final = f"{GROUP}/routable"  # "true" or "false"
ROUTABLE_CONDITION: Final = ROUTABLE_LABEL  # readiness gate of worker pods: the pod is Ready only while it is routable
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "pointsman"

# --- annotations ---
SKIP_DRAIN_ANNOTATION: Final = f"{GROUP}/skip-drain"  # "true" on an LLMService: delete without waiting for streams
FOLLOW_DEFAULT_IMAGE_ANNOTATION: Final = (
    f"{GROUP}/follow-default-image"  # "true" on an LLMService: its new workers run the operator's default image
)
COPIED_REPLICAS_ANNOTATION: Final = (
    f"{GROUP}/copied-replicas"  # on a WorkerPool: the last value copied from the service
)
DRAIN_STARTED_ANNOTATION: Final = f"{GROUP}/drain-started"  # on a pod: RFC 3339 time its drain began

FINALIZER: Final = f"{GROUP}/drain"

# --- status.routing of an LLMService ---
ROUTING_SET_BY_PLANNER: Final = "planner"  # its setBy where the planner published the numbers

# --- ports of every pod (a pod has an address of its own, so they are fixed) ---
ENGINE_PORT: Final = 8000  # OpenAI API of the engine and the control API, one server
NIXL_PORT: Final = 5600
EMBEDDING_PORT: Final = 5650  # of an encode worker: language workers fetch embeddings here
KV_EVENTS_PORT: Final = 5557
KV_EVENTS_REPLAY_PORT: Final = 5558
GATEWAY_PORT: Final = 8000
METRICS_PORT: Final = 8080  # operator, planner
WORKER_METRICS_PORT: Final = 8090  # of a worker: its metrics and nothing else
GATEWAY_METRICS_PORT: Final = 8090  # of a gateway: the same
NATS_PORT: Final = 4222

# --- keys of the Secret ``<service>-pointsman`` that the operator makes beside each service ---
SECRET_SUFFIX: Final = "-pointsman"
SECRET_CONTROL_TOKEN: Final = "control-token"
SECRET_NATS_USER: Final = "nats-user"
SECRET_NATS_PASSWORD: Final = "nats-password"
SECRET_NATS_CA_CERTIFICATE: Final = "nats-ca.crt"  # PEM; absent: public authorities

# --- environment of a worker pod (rendered by the operator, read by pointsman.workers.settings) ---
ENV_NAMESPACE: Final = "POINTSMAN_NAMESPACE"
ENV_SERVICE: Final = "POINTSMAN_SERVICE"
ENV_SERVICE_UID: Final = "POINTSMAN_SERVICE_UID"
ENV_WORKER: Final = "POINTSMAN_WORKER"  # the pod's name
ENV_POD_UID: Final = "POINTSMAN_POD_UID"
ENV_POD_IP: Final = "POD_IP"
ENV_BIND_HOST: Final = "POINTSMAN_BIND_HOST"  # default 0.0.0.0; $(POD_IP) where a pod shares the host's network
ENV_NATS_URL: Final = "POINTSMAN_NATS_URL"
ENV_NATS_USER: Final = "POINTSMAN_NATS_USER"
ENV_NATS_PASSWORD: Final = "POINTSMAN_NATS_PASSWORD"
ENV_NATS_CA_CERTIFICATE: Final = "POINTSMAN_NATS_CA_CERTIFICATE"  # PEM, of a tls:// URL; not set: public authorities
ENV_CONTROL_TOKEN: Final = "POINTSMAN_CONTROL_TOKEN"
ENV_KV_COMPATIBILITY: Final = "POINTSMAN_KV_COMPATIBILITY"
ENV_BLOCK_SIZE: Final = "POINTSMAN_BLOCK_SIZE"
ENV_MODEL: Final = "POINTSMAN_MODEL"  # what the engine's --model gets: a path or a hub name
ENV_MODEL_REVISION: Final = "POINTSMAN_MODEL_REVISION"  # of a hub's model: branch, tag or commit; not set: its default
ENV_SERVED_NAME: Final = "POINTSMAN_SERVED_NAME"
ENV_GPUS: Final = "POINTSMAN_GPUS"  # "0" = CPU engine
ENV_DRAIN_TIMEOUT_SECONDS: Final = "POINTSMAN_DRAIN_TIMEOUT_SECONDS"
ENV_EMBEDDING_ROLE: Final = "POINTSMAN_EMBEDDING_ROLE"  # an EmbeddingRole; not set: the service has no encode workers
ENV_EMBEDDING_CACHE_MIB: Final = "POINTSMAN_EMBEDDING_CACHE_MIB"  # of an encode worker: spec.multimodal.cacheMiB
ENV_MAX_DEGREE: Final = "POINTSMAN_MAX_DEGREE"  # of an elastic group's manager, as the next two
ENV_MIN_DEGREE: Final = "POINTSMAN_MIN_DEGREE"
ENV_LATENCY_MODEL_FILE: Final = "POINTSMAN_LATENCY_MODEL_FILE"
ENV_SLOTS: Final = "POINTSMAN_SLOTS"  # of an elastic instance, tokens of KV
ENV_DTYPE: Final = "POINTSMAN_DTYPE"
ENV_TENSOR_TRANSPORT: Final = "ELASTIC_TENSOR_TRANSPORT"  # of an elastic instance; users may set it
ENV_TENSOR_PARALLEL: Final = "POINTSMAN_TENSOR_PARALLEL"
MAX_TENSOR_PARALLEL: Final = 8  # GPUs of a node


def address_url(scheme: str, host: str, port: int) -> str:
    """``scheme://host:port``; an IPv6 address goes into brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


_TOKEN = re.compile(r"^[A-Za-z0-9_-]+$")


def _subject_token(field: str, value: str) -> str:
    """``value`` if it is one NATS subject token; a dot or wildcard in it would reach other services' subjects."""
    if not _TOKEN.match(value):
        raise ValueError(f"{field} is {value!r}: a NATS subject token may hold letters, digits, '-' and '_' only")
    return value


def prefill_stream(namespace: str, service_uid: str) -> str:
    """The JetStream work-queue stream of one service; the uid keeps a re-created service apart from its predecessor."""
    return f"pointsman-prefill-{_subject_token('namespace', namespace)}-{_subject_token('service uid', service_uid)}"


def prefill_subjects(namespace: str, service_uid: str) -> str:
    """What the stream of one service listens to: every KV-compatibility group of it."""
    return f"pointsman.prefill.{_subject_token('namespace', namespace)}.{_subject_token('service uid', service_uid)}.*"


def prefill_subject(namespace: str, service_uid: str, kv_compatibility: str) -> str:
    """Where a decode worker publishes: only workers of the same KV-compatibility group pull from it."""
    group = _subject_token("kv compatibility", kv_compatibility)
    return prefill_subjects(namespace, service_uid).removesuffix("*") + group


def prefill_consumer(kv_compatibility: str) -> str:
    """The durable consumer of one KV-compatibility group (work-queue streams refuse overlapping consumers)."""
    return f"prefill-{_subject_token('kv compatibility', kv_compatibility)}"


def reply_inbox_prefix(namespace: str, service_uid: str, worker: str) -> str:
    """Inbox prefix of one worker's connection: replies to it are not readable under the default ``_INBOX``."""
    return ".".join(
        (
            "pointsman.reply",
            _subject_token("namespace", namespace),
            _subject_token("service uid", service_uid),
            _subject_token("worker", worker),
        )
    )


def prefill_signal_subject(namespace: str, service_uid: str, kv_compatibility: str) -> str:
    """Where decode workers tell the prefill workers of a group what became of a request (PrefillSignal, core NATS)."""
    return ".".join(
        (
            "pointsman.signal",
            _subject_token("namespace", namespace),
            _subject_token("service uid", service_uid),
            _subject_token("kv compatibility", kv_compatibility),
        )
    )


def prefill_presence_subject(namespace: str, service_uid: str, kv_compatibility: str) -> str:
    """Where prefill workers say that they serve the queue of their group (PrefillPresence, core NATS)."""
    return prefill_signal_subject(namespace, service_uid, kv_compatibility).replace(".signal.", ".presence.", 1)


def elastic_presence_subject(namespace: str, service_uid: str) -> str:
    """Where the instances of an elastic group say that they are there (InstancePresence, core NATS)."""
    return f"pointsman.elastic.{_subject_token('namespace', namespace)}.{_subject_token('service uid', service_uid)}"


def service_subjects(namespace: str, service_uid: str) -> tuple[str, ...]:
    """All subjects of the pods of one service, except those of its prefill queue."""
    of_service = f"{_subject_token('namespace', namespace)}.{_subject_token('service uid', service_uid)}"
    kinds = ("reply", "signal", "presence", "kv")
    return (*(f"pointsman.{kind}.{of_service}.>" for kind in kinds), elastic_presence_subject(namespace, service_uid))


def kv_metrics_subject(namespace: str, service_uid: str, worker: str = "*") -> str:
    """Where a worker publishes its KvMetrics; a gateway subscribes with the default ``*``."""
    token = worker if worker == "*" else _subject_token("worker", worker)
    return f"pointsman.kv.{_subject_token('namespace', namespace)}.{_subject_token('service uid', service_uid)}.{token}"
