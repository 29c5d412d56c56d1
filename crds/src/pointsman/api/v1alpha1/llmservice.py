"""LLMService: one model behind one OpenAI-compatible endpoint, served by prefill and decode workers."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.schema.rules import LIST_BY_TYPE, Rule, cel_list, cel_string, extra
from pointsman.api.v1alpha1.conditions import Condition
from pointsman.api.v1alpha1.counts import PoolCounts
from pointsman.api.v1alpha1.engine_flags import (
    ENCODE_OWNED_FLAGS,
    FLAG_NAME_PATTERN,
    OWNED_FLAGS,
    OWNED_SHORT_FLAG_PATTERN,
)
from pointsman.api.v1alpha1.gateway import GatewaySpec
from pointsman.api.v1alpha1.limits import WorkerLimits
from pointsman.api.v1alpha1.model_source import CLAIM_PATTERN, FORMS, HUB_PATTERN, PATH_PATTERN, SCHEMES
from pointsman.api.v1alpha1.multimodal import MultimodalSpec
from pointsman.api.v1alpha1.pods import PodTemplate
from pointsman.api.v1alpha1.resource import (
    LOWER_LIMIT,
    REPLICA_RULES,
    SERVICE_NAME_RULES,
    UPPER_LIMIT,
    ApiModel,
    Column,
    Kind,
    LocalReference,
    Resource,
)

MAX_REPLICAS: Final = 1000
CPU_BLOCK_SIZE_MULTIPLE: Final = 32  # vLLM's CPU attention takes no other (reference: vLLM 0.32, cpu_attn)

_SCHEME_RULE = " || ".join(f"self.startsWith('{scheme}://')" for scheme in SCHEMES)
_SOURCE_PATTERNS = " || ".join(f"self.matches({cel_string(p)})" for p in (HUB_PATTERN, CLAIM_PATTERN, PATH_PATTERN))


def cel_flags_among(arguments: str, flags: tuple[str, ...], short_flags: str) -> str:
    """CEL: the flags in the list ``arguments`` that are among ``flags`` (also abbreviated) or match ``short_flags``."""
    return (
        f"{arguments}.map(a, a.find({cel_string(FLAG_NAME_PATTERN)}).replace('_', '-'))"
        f".filter(f, f.matches({cel_string(short_flags)}) || "
        f"(f.size() > 2 && {cel_list(flags)}.exists(o, o.startsWith(f))))"
    )


_OWNED_FLAGS = cel_flags_among("self", OWNED_FLAGS, OWNED_SHORT_FLAG_PATTERN)
_ENCODE_OWNED_FLAGS = cel_flags_among("self", (*OWNED_FLAGS, *ENCODE_OWNED_FLAGS), OWNED_SHORT_FLAG_PATTERN)

EngineArguments = Annotated[
    tuple[Annotated[str, Field(max_length=1024)], ...],
    Field(
        max_length=128,
        description="Flags for the engine, e.g. --max-model-len=32768. Flags that Pointsman sets are refused by name.",
        json_schema_extra=extra(
            Rule(
                f"{_OWNED_FLAGS}.size() == 0",
                f"{{{_OWNED_FLAGS}}} is set by Pointsman; leave it out"
                " (block size, served name, model and token have fields of their own in spec)",
            )
        ),
    ),
]

EncodeArguments = Annotated[
    tuple[Annotated[str, Field(max_length=1024)], ...],
    Field(
        max_length=128,
        description="Flags for the engine of encode workers, e.g. --max-num-batched-tokens=16384. Flags in "
        "spec.engine.args do not apply to it. Flags that Pointsman sets are refused by name.",
        json_schema_extra=extra(
            Rule(
                f"{_ENCODE_OWNED_FLAGS}.size() == 0",
                f"{{{_ENCODE_OWNED_FLAGS}}} is set by Pointsman; leave it out",
            )
        ),
    ),
]

CHANGE_NEEDS_ROLLOUT: Final = (
    "cannot be changed yet (rollouts are not built): create a service of another name with the new values"
)


class TokenSecretReference(LocalReference):
    """A Secret with an access token."""

    key: str = Field(default="token", min_length=1, max_length=253, description="Key in the Secret.")


class ModelSpec(ApiModel):
    """The model to serve and the source of its files."""

    source: str = Field(
        min_length=1,
        max_length=512,
        description=f"Source of the model's files: {FORMS}. "
        "A file:// path is mounted from the node at the same path; the namespace must allow hostPath.",
        json_schema_extra=extra(
            Rule(
                _SCHEME_RULE,
                f"'{{self}}' has an unsupported scheme; write {FORMS}",
            ),
            Rule(
                f"!({_SCHEME_RULE}) || (({_SOURCE_PATTERNS}) && !self.matches('/[.][.]?(/|$)'))",
                f"'{{self}}' is not complete; write {FORMS}",
            ),
        ),
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern="^[A-Za-z0-9][A-Za-z0-9._:/-]*$",
        description="The model's name in requests. Default: the service's name.",
    )
    token_secret_ref: TokenSecretReference | None = Field(
        default=None, description="Secret with the hub's access token, for hf:// sources."
    )

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "!has(self.tokenSecretRef) || self.source.startsWith('hf://')",
                "tokenSecretRef is for hf:// sources, and source is {self.source}; leave it out",
                field_path=".tokenSecretRef",
            )
        )
    )


StartupTimeoutSeconds = Annotated[
    int | None,
    Field(
        ge=1,
        le=86_400,
        description=(
            "Longest time to load the model, in seconds, download included. The container is then restarted. "
            "A change applies to new pods only. Default: 1800."
        ),
    ),
]


class EngineType(StrEnum):
    """The inference engine of the workers."""

    VLLM = "VLLM"


class EngineSpec(ApiModel):
    """The inference engine and its flags."""

    type: EngineType = Field(
        default=EngineType.VLLM,
        description="The inference engine: VLLM. SGLang and Simulated are not built yet.",
        json_schema_extra=extra(
            Rule("!(self in ['SGLang', 'Simulated'])", "{self} is not built yet; use VLLM"),
            Rule("self in ['VLLM', 'SGLang', 'Simulated']", "'{self}' is not a supported engine; use VLLM"),
            schema={"enum": None, "maxLength": 32},
        ),
    )
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Image of the worker. Default: the operator's.",
    )
    args: EngineArguments = ()
    block_size: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Tokens in one KV block, equal in all workers. Default: the engine's, 128 on CPU. "
        "On CPU (worker.gpus 0) a multiple of 32.",
    )


class PoolSpec(ApiModel):
    """How many workers of one role."""

    replicas: int = Field(
        default=1,
        ge=1,
        le=MAX_REPLICAS,
        description="Initial number of workers. Without an active policy, an edit scales the pool.",
    )
    min_replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS, description=LOWER_LIMIT)
    max_replicas: int = Field(default=MAX_REPLICAS, ge=1, le=MAX_REPLICAS, description=UPPER_LIMIT)

    model_config = ConfigDict(json_schema_extra=extra(*REPLICA_RULES))


class EncodePoolSpec(PoolSpec):
    """How many encode workers. With none, the worker that prefills a prompt encodes its images."""

    replicas: int = Field(
        default=1,
        ge=0,
        le=MAX_REPLICAS,
        description="Initial number of workers. Without an active policy, an edit scales the pool.",
    )
    min_replicas: int = Field(default=0, ge=0, le=MAX_REPLICAS, description=LOWER_LIMIT)


class PoolsSpec(ApiModel):
    """The pools of a service, one a role."""

    prefill: PoolSpec = Field(default=PoolSpec(), description="Workers that compute prompts for decode workers.")
    decode: PoolSpec = Field(default=PoolSpec(), description="Workers that generate tokens and compute short prompts.")
    encode: EncodePoolSpec | None = Field(
        default=None,
        description="Workers that encode images for the workers that prefill. Needs spec.encode. Default with "
        "spec.encode: one worker.",
    )

    def of(self, role: Role) -> PoolSpec:
        """The pool of a role; of Encode what a service with encode workers has, written or not."""
        match role:
            case Role.PREFILL:
                return self.prefill
            case Role.DECODE:
                return self.decode
            case Role.ENCODE:
                return self.encode or EncodePoolSpec()


class WorkerSpec(ApiModel):
    """One worker: the same for all pools, so that any worker can take any role."""

    gpus: int = Field(default=1, ge=0, le=16, description="GPUs of one worker. 0: the engine runs on CPU.")
    template: PodTemplate | None = Field(
        default=None,
        description="A pod template merged into the worker's pod, lists by their merge keys. "
        "The engine's container is named engine.",
    )
    limits: WorkerLimits | None = Field(
        default=None, description="Limits of each worker. A change applies to new workers only."
    )
    startup_timeout_seconds: StartupTimeoutSeconds = None
    lost_node_seconds: int | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description=(
            "Seconds until a worker on a node that Kubernetes reports as lost is deleted and replaced. A "
            "change applies to new workers only. Default: the cluster's toleration, usually 300."
        ),
    )

    def template_dict(self) -> dict[str, Any]:
        """The template with exactly the fields the user wrote; empty without one."""
        return self.template.as_written() if self.template else {}


class EncodeSpec(ApiModel):
    """One encode worker. Its engine runs only the model's encoder, so it has flags, GPUs and a pod template of its own.

    Model, image and type of engine are those of the service.
    """

    gpus: int | None = Field(
        default=None,
        ge=0,
        le=16,
        description="GPUs of one encode worker; 0 runs the engine on CPU. Default: 1, or 0 if worker.gpus is 0.",
    )
    args: EncodeArguments = ()
    template: PodTemplate | None = Field(
        default=None,
        description="A pod template merged into the encode worker's pod, lists by their merge keys. "
        "The engine's container is named engine.",
    )

    def template_dict(self) -> dict[str, Any]:
        """The template with exactly the fields the user wrote; empty without one."""
        return self.template.as_written() if self.template else {}


class DrainSpec(ApiModel):
    """How workers are drained."""

    timeout_seconds: int = Field(
        default=120,
        ge=0,
        le=86400,
        description=(
            "Longest time for a draining worker to finish its streams, in seconds. Other workers then continue them."
        ),
    )


class LLMServiceSpec(ApiModel):
    """The desired state."""

    model: ModelSpec = Field(description="The model to serve and the source of its files.")
    engine: EngineSpec = Field(default=EngineSpec(), description="The inference engine and its flags.")
    pools: PoolsSpec = Field(default=PoolsSpec(), description="Number of workers of each role.")
    worker: WorkerSpec = Field(default=WorkerSpec(), description="GPUs, limits and pod template of one worker.")
    encode: EncodeSpec | None = Field(
        default=None,
        description="Flags, GPUs and pod template of encode workers. Unset: the service has none, and the worker that "
        "prefills a prompt encodes its images.",
    )
    multimodal: MultimodalSpec | None = Field(
        default=None,
        description="Limits of the images in requests, and which images go to encode workers. Unset: the defaults.",
    )
    policy_ref: LocalReference | None = Field(
        default=None,
        description="PlannerPolicy of the service. Unset: the planner changes neither replicas nor routing.",
    )
    gateway: GatewaySpec = Field(
        default=GatewaySpec(), description="The gateway, which serves the OpenAI API and routes requests."
    )
    drain: DrainSpec = Field(default=DrainSpec(), description="How workers are drained.")
    paused: bool = Field(default=False, description="The operator reports status and changes nothing.")

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "self.worker.gpus > 0 || !has(self.engine.blockSize) || "
                f"self.engine.blockSize % {CPU_BLOCK_SIZE_MULTIPLE} == 0",
                "engine.blockSize is {self.engine.blockSize} and worker.gpus is 0: "
                f"on CPU write a multiple of {CPU_BLOCK_SIZE_MULTIPLE} (default 128)",
                field_path=".engine.blockSize",
            ),
            Rule(
                "!has(self.pools.encode) || has(self.encode)",
                "pools.encode has {self.pools.encode.replicas} encode workers and encode is unset; "
                "write encode: {} as well, or leave pools.encode out",
                field_path=".pools.encode",
            ),
            Rule("self.model == oldSelf.model", f"spec.model {CHANGE_NEEDS_ROLLOUT}", field_path=".model"),
            Rule("self.engine == oldSelf.engine", f"spec.engine {CHANGE_NEEDS_ROLLOUT}", field_path=".engine"),
            Rule(
                "self.worker.gpus == oldSelf.worker.gpus",
                f"spec.worker.gpus {CHANGE_NEEDS_ROLLOUT}",
                field_path=".worker.gpus",
            ),
            reserved={
                "rollout": "a changed model is served by a service of another name; leave rollout out",
            },
        )
    )

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that have a pool."""
        return LANGUAGE_ROLES if self.encode is None else (*LANGUAGE_ROLES, Role.ENCODE)

    def gpus_of(self, role: Role) -> int:
        """GPUs of one worker of a role; 0 runs its engine on CPU."""
        if role is not Role.ENCODE or self.encode is None:
            return self.worker.gpus
        return min(self.worker.gpus, 1) if self.encode.gpus is None else self.encode.gpus

    def engine_args_of(self, role: Role) -> tuple[str, ...]:
        """The user's engine flags of a worker of a role."""
        return self.encode.args if role is Role.ENCODE and self.encode is not None else self.engine.args

    def template_of(self, role: Role) -> dict[str, Any]:
        """The user's pod template of a worker of a role; empty without one."""
        of = self.encode if role is Role.ENCODE and self.encode is not None else self.worker
        return of.template_dict()


class RoutingObjectives(ApiModel):
    """The latency objectives of the policy, as gateways count against them."""

    ttft_ms: float = Field(gt=0, description="Time to first token, milliseconds.")
    ttft_ms_per_prompt_token: float = Field(
        default=0, ge=0, description="Added to ttftMs for every prompt token, milliseconds."
    )
    tpot_ms: float = Field(gt=0, description="Mean time per output token of a request, milliseconds.")


class Routing(ApiModel):
    """The numbers that decide where a prompt is computed, as gateways and workers use them now.

    The operator owns ``objectives``, the planner all other fields.
    """

    max_local_prefill_tokens: int | None = Field(
        default=None, ge=0, description="Most uncached prompt tokens that a decode worker computes itself."
    )
    max_prefill_queue_size: int | None = Field(
        default=None, ge=0, description="Queued prefills at which decode workers compute prompts themselves."
    )
    prefill_token_budget: int | None = Field(
        default=None, ge=1, description="Prompt tokens that a prefill worker computes at one time. Unset: 8192."
    )
    pending_tokens_per_prefill_worker: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Pending prompt tokens per prefill worker above which a gateway queues new requests. Unset: no limit."
        ),
    )
    decoding_per_decode_worker: int | None = Field(
        default=None,
        ge=1,
        description="Decoding requests per decode worker at which a gateway queues new requests. Unset: no limit.",
    )
    slack_milliseconds: int | None = Field(
        default=None,
        ge=1,
        description=(
            "Longest total wait with which a request can still meet its TTFT objective. Unset: every queued "
            "request counts as late."
        ),
    )
    objectives: RoutingObjectives | None = Field(
        default=None,
        description="Objectives of the policy that gateways count requests against. Unset: the service has no policy.",
    )
    set_by: str | None = Field(
        default=None,
        max_length=256,
        description=(
            "Writer of the routing numbers: planner, or plan/NAME if a planner of an earlier version wrote them."
        ),
    )
    reason: str | None = Field(
        default=None, max_length=64, pattern="^[A-Za-z]+$", description="Machine-readable reason of the last change."
    )
    updated_at: datetime | None = Field(default=None, description="Time of the last change.")


class CurrentPlan(ApiModel):
    """The newest plan of a service, in one line."""

    current: str = Field(max_length=253, description="Name of the plan.")
    mode: str = Field(max_length=32, description="Mode of the policy when the plan was made.")
    phase: str | None = Field(default=None, max_length=32, description="Phase of the plan.")


class PoolsStatus(ApiModel):
    """The counts of each pool."""

    prefill: PoolCounts = Field(default=PoolCounts(), description="Prefill workers.")
    decode: PoolCounts = Field(default=PoolCounts(), description="Decode workers.")
    encode: PoolCounts | None = Field(
        default=None, description="Encode workers. Unset: the service has no encode pool."
    )

    def of(self, role: Role) -> PoolCounts | None:
        """The counts of a role; None: the service has no such pool."""
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.ENCODE: self.encode}[role]


class LLMServiceStatus(ApiModel):
    """The observed state."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="Generation of the spec that this status describes."
    )
    summary: str | None = Field(default=None, max_length=64, description="Ready workers by role, e.g. 2P4D or 1E2P4D.")
    endpoint: str | None = Field(default=None, max_length=512, description="Base URL of the OpenAI API.")
    pools: PoolsStatus | None = Field(default=None, description="Numbers of workers by role and state.")
    revision: str | None = Field(
        default=None, max_length=64, description="Hash of the spec fields that define a worker pod."
    )
    kv_compatibility: str | None = Field(
        default=None,
        max_length=64,
        description="Hash of the fields that affect KV. Only workers of equal hash exchange KV.",
    )
    worker_image: str | None = Field(
        default=None,
        max_length=512,
        description=(
            "Image of new worker pods. Without spec.engine.image it stays when the operator's default image changes."
        ),
    )
    routing: Routing | None = Field(default=None, description="The routing numbers in force.")
    plan: CurrentPlan | None = Field(default=None, description="The latest plan.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Ready, Available, Progressing, Degraded, PrefillReady, DecodeReady, EncodeReady, GatewayReady, "
        "SwitchInProgress, PlannerHealthy.",
        json_schema_extra=extra(schema=LIST_BY_TYPE),
    )


class LLMService(Resource):
    """One model behind one OpenAI-compatible endpoint, served by prefill and decode workers."""

    resource: ClassVar[Kind] = Kind(
        kind="LLMService",
        plural="llmservices",
        short_names=("llms",),
        columns=(
            Column("Workers", ".status.summary", description="Ready workers by role"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("Prefill", ".status.pools.prefill.routable", "integer", wide=True),
            Column("Decode", ".status.pools.decode.routable", "integer", wide=True),
            Column("Encode", ".status.pools.encode.routable", "integer", wide=True),
            Column("Model", ".spec.model.source", wide=True),
            Column("Endpoint", ".status.endpoint"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', wide=True),
        ),
        rules=SERVICE_NAME_RULES,
    )

    kind: Literal["LLMService"] = "LLMService"
    spec: LLMServiceSpec
    status: LLMServiceStatus = LLMServiceStatus()
