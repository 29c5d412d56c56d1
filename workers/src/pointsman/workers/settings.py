"""Settings of one worker process, from the environment the operator renders (``POINTSMAN_*``, ``POD_IP``)."""

from pydantic import AliasChoices, Field, SecretStr, ValidationInfo, field_validator

from pointsman.api.protocol import names, prefill
from pointsman.api.protocol.names import LANGUAGE_ROLES, EmbeddingRole, Role
from pointsman.process.settings import ProcessSettings
from pointsman.serving.local_remote import DEFAULT_RULE
from pointsman.serving.token_budget import DEFAULT_MAX_CONCURRENT_PREFILLS


class NatsSettings(ProcessSettings):
    """Who a pod of a service is, and its way to NATS."""

    namespace: str
    service_uid: str
    worker: str = Field(description="name of the pod; stable over restarts of its container")
    nats_url: str | None = None
    nats_user: str | None = None
    nats_password: SecretStr | None = None
    nats_ca_certificate: str = Field(
        default="", description="PEM, of the authority of a tls:// server; empty: public authorities"
    )

    @property
    def log_fields(self) -> dict[str, str]:
        """See ProcessSettings."""
        return {"worker": self.worker}


class WorkerSettings(NatsSettings):
    """What a worker is and how it serves. Durations in seconds, lengths in tokens."""

    service: str
    pod_uid: str = ""
    pod_ip: str = Field(default="127.0.0.1", validation_alias=AliasChoices("pod_ip", names.ENV_POD_IP))
    bind_host: str = "0.0.0.0"
    kv_compatibility: str = Field(description="only workers with the same value exchange KV")
    block_size: int = Field(ge=1)
    prefix_cache: bool = Field(default=True, description="whether the engine has one, and publishes its events")
    model: str = Field(description="value of the engine's --model: a path or a hub name")
    model_revision: str | None = Field(default=None, description="of a hub's model; none: the hub's default")
    served_name: str
    gpus: int = Field(default=0, ge=0)
    control_token: SecretStr = Field(min_length=16)
    drain_timeout_seconds: float = Field(default=300.0, gt=0)
    embedding_role: EmbeddingRole | None = Field(
        default=None, description="role in the transfer of image embeddings; none: the service has no encode workers"
    )
    input_broadcast: bool | None = Field(
        default=None,
        description=(
            "whether image inputs are sent to the engine's ranks outside of its steps; none: if there are "
            "encode workers"
        ),
    )
    role: Role | None = Field(
        default=None, description="which it starts in; none: it waits for the operator to give one"
    )

    metrics_port: int | None = Field(
        default=names.WORKER_METRICS_PORT, ge=1, le=65535, description="serves the metrics alone; none: no such port"
    )
    body_memory_mib: int = Field(
        default=1024, ge=1, description="memory for the bodies of all requests at one time, and so of the largest, MiB"
    )

    max_local_prefill_tokens: int = Field(
        default=DEFAULT_RULE.max_local_prefill_tokens,
        ge=0,
        description="default until the operator or a request sets another",
    )
    max_prefill_queue_size: int = Field(default=DEFAULT_RULE.max_prefill_queue_size, ge=0)
    max_concurrent_prefills: int = Field(
        default=DEFAULT_MAX_CONCURRENT_PREFILLS, ge=1, description="prefills for other workers at one time"
    )
    prefill_queue_limit: int = Field(
        default=prefill.DEFAULT_QUEUE_LIMIT, ge=1, description="requests the service's stream holds at most"
    )
    ack_wait_seconds: float = Field(default=prefill.ACK_WAIT_SECONDS, gt=0)
    heartbeat_seconds: float = Field(default=prefill.HEARTBEAT_SECONDS, gt=0)
    lease_seconds: float = Field(
        default=prefill.LEASE_SECONDS, gt=0, description="kv_lease_duration the engine was started with"
    )

    @field_validator("namespace", "service_uid", "worker", "kv_compatibility")
    @classmethod
    def _one_subject_token(cls, value: str, info: ValidationInfo) -> str:
        names.prefill_stream("namespace", value)  # raises ValueError with a sentence
        return value

    @field_validator("heartbeat_seconds")
    @classmethod
    def _several_heartbeats_in_an_ack_wait(cls, value: float, info: ValidationInfo) -> float:
        ack_wait = info.data.get("ack_wait_seconds")
        if ack_wait is not None and value > ack_wait / 2:
            raise ValueError(f"heartbeat_seconds is {value}: it must be at most half of ack_wait_seconds ({ack_wait})")
        return value

    @property
    def possible_roles(self) -> tuple[Role, ...]:
        """The roles that this worker's engine can take: the engine of an encode worker has no language model."""
        return (Role.ENCODE,) if self.embedding_role is EmbeddingRole.PRODUCER else LANGUAGE_ROLES

    @property
    def broadcasts_inputs(self) -> bool:
        """Whether an engine of several ranks gets the inputs of images by input broadcast."""
        return self.embedding_role is not None if self.input_broadcast is None else self.input_broadcast

    @property
    def own_server(self) -> str:
        """Host and port at which other pods reach this one's server."""
        host = f"[{self.pod_ip}]" if ":" in self.pod_ip else self.pod_ip
        return f"{host}:{names.ENGINE_PORT}"

    @property
    def own_host(self) -> str:
        """The address at which this pod reaches its own servers."""
        return self.pod_ip if self.bind_host in ("0.0.0.0", "::") else self.bind_host
