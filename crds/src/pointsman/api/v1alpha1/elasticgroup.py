"""ElasticGroup: one model on instances that regroup between iterations, behind one OpenAI-compatible endpoint."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from pointsman.api.protocol.names import MAX_TENSOR_PARALLEL
from pointsman.api.schema.rules import LIST_BY_TYPE, Rule, cel_list, extra
from pointsman.api.v1alpha1.conditions import Condition
from pointsman.api.v1alpha1.gateway import GatewaySpec
from pointsman.api.v1alpha1.llmservice import (
    CHANGE_NEEDS_ROLLOUT,
    DrainSpec,
    EngineArguments,
    ModelSpec,
    StartupTimeoutSeconds,
    cel_flags_among,
)
from pointsman.api.v1alpha1.pods import InstanceTemplate
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
    Scale,
)

MAX_INSTANCES: Final = 64
DEFAULT_MAX_DEGREE: Final = 4
MAX_GROUPS_SHOWN: Final = 32

FRONT_ONLY_FLAGS: Final = (
    "--enable-lora",
    "--hf-overrides",
    "--kv-cache-dtype",
    "--pipeline-parallel-size",
    "--quantization",
    "--revision",
    "--rope-scaling",
    "--rope-theta",
    "--speculative-config",
    "--tensor-parallel-size",
)
"""Flags of vLLM that change the model or the engine. They would reach the front alone, and the instances not."""

_FRONT_ONLY = cel_flags_among("self.args", FRONT_ONLY_FLAGS, "^-(tp|pp|q)[0-9]*$")
_DTYPES: Final = ("auto", "bfloat16", "float32")
_DTYPE = f"self.args.filter(a, a.startsWith('--dtype=') && !({cel_list(_DTYPES)}.exists(d, a == '--dtype=' + d)))"


class ElasticEngineSpec(ApiModel):
    """The elastic engine and the flags of its front, which is vLLM's API server."""

    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Image of instances and manager. Default: the operator's worker image.",
    )
    args: EngineArguments = ()

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                f"{_DTYPE}.size() == 0",
                f"{{{_DTYPE}}} is not supported; write one of " + ", ".join(f"--dtype={each}" for each in _DTYPES),
                field_path=".args",
            ),
            Rule(
                f"{_FRONT_ONLY}.size() == 0",
                f"{{{_FRONT_ONLY}}} is not supported by the elastic engine; leave it out",
                field_path=".args",
            ),
            Rule(
                "!self.args.exists(a, a == '--dtype')",
                "args has --dtype and its value apart; write them as one, for example --dtype=bfloat16",
                field_path=".args",
            ),
        )
    )


class ElasticInstanceSpec(ApiModel):
    """One instance: a replica of the whole model with its KV. All instances of a group are alike."""

    gpus: int = Field(
        default=1, ge=0, le=MAX_TENSOR_PARALLEL, description="GPUs of one instance. 0: the instance computes on CPU."
    )
    tensor_parallel: int = Field(
        default=1,
        ge=1,
        le=MAX_TENSOR_PARALLEL,
        description=(
            "GPUs (or processes on CPU) that share the model of one instance. Must divide the model's "
            "attention heads, key-value heads and MLP width."
        ),
    )
    kv_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description=(
            "KV capacity of one instance, in tokens. Default: as many as fit next to the weights in 90 "
            "percent of the GPU's memory; 32768 on CPU."
        ),
    )
    template: InstanceTemplate | None = Field(
        default=None,
        description="A pod template merged into the instance's pod, lists by their merge keys. Its container is named "
        "engine.",
    )
    startup_timeout_seconds: StartupTimeoutSeconds = None

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "self.gpus == 0 || self.gpus == self.tensorParallel",
                "gpus is {self.gpus} and tensorParallel is {self.tensorParallel}; write the same number, or gpus: 0 "
                "for CPU",
                field_path=".gpus",
            )
        )
    )


class ElasticInstancesSpec(ApiModel):
    """Number of instances."""

    replicas: int = Field(
        ge=1,
        le=MAX_INSTANCES,
        description="Desired instances. Also written by /scale, and by plans if policyRef names an active policy.",
    )
    min_replicas: int = Field(default=1, ge=1, le=MAX_INSTANCES, description=LOWER_LIMIT)
    max_replicas: int = Field(default=MAX_INSTANCES, ge=1, le=MAX_INSTANCES, description=UPPER_LIMIT)

    model_config = ConfigDict(json_schema_extra=extra(*REPLICA_RULES))


class ParallelismSpec(ApiModel):
    """Which degrees of parallelism the manager may choose from."""

    max_degree: int | None = Field(
        default=None,
        ge=1,
        le=MAX_INSTANCES,
        description="Most instances that compute one prompt together, all of one block of maxDegree consecutive "
        f"ordinals. Default: {DEFAULT_MAX_DEGREE}, or instances.maxReplicas if that is less.",
    )

    min_degree: int = Field(
        default=1,
        ge=1,
        le=MAX_INSTANCES,
        description=(
            "Fewest instances that compute one prompt together and keep its KV. 1: the manager chooses. The "
            "value of maxDegree makes static groups."
        ),
    )

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "self.minDegree <= (has(self.maxDegree) ? self.maxDegree : " + f"{DEFAULT_MAX_DEGREE})",
                "minDegree is {self.minDegree}; write at most maxDegree, which is "
                f"{{has(self.maxDegree) ? self.maxDegree : {DEFAULT_MAX_DEGREE}}}",
                field_path=".minDegree",
            )
        )
    )


class ElasticGroupSpec(ApiModel):
    """The desired state."""

    model: ModelSpec = Field(description="The model to serve and the source of its files.")
    engine: ElasticEngineSpec = Field(default=ElasticEngineSpec(), description="The elastic engine and its flags.")
    instance: ElasticInstanceSpec = Field(
        default=ElasticInstanceSpec(), description="GPUs, memory for KV and pod template of one instance."
    )
    instances: ElasticInstancesSpec = Field(description="Number of instances.")
    parallelism: ParallelismSpec = Field(default=ParallelismSpec(), description="Degrees of parallelism.")
    policy_ref: LocalReference | None = Field(
        default=None,
        description=(
            "PlannerPolicy of the group: objectives, budget, and whether the planner writes "
            "instances.replicas. Unset: the planner changes nothing."
        ),
    )
    gateway: GatewaySpec = Field(default=GatewaySpec(), description="The gateway, which serves the OpenAI API.")
    drain: DrainSpec = Field(default=DrainSpec(), description="How instances are drained.")
    paused: bool = Field(default=False, description="The operator reports status and changes nothing.")

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "!has(self.parallelism) || !has(self.parallelism.maxDegree) || "
                "self.parallelism.maxDegree <= self.instances.maxReplicas",
                "parallelism.maxDegree is {self.parallelism.maxDegree} and instances.maxReplicas is "
                "{self.instances.maxReplicas}; write at most as many as there can be instances",
                field_path=".parallelism.maxDegree",
            ),
            Rule("self.model == oldSelf.model", f"spec.model {CHANGE_NEEDS_ROLLOUT}", field_path=".model"),
            Rule("self.engine == oldSelf.engine", f"spec.engine {CHANGE_NEEDS_ROLLOUT}", field_path=".engine"),
            Rule("self.instance == oldSelf.instance", f"spec.instance {CHANGE_NEEDS_ROLLOUT}", field_path=".instance"),
            Rule(
                "self.parallelism == oldSelf.parallelism",
                f"spec.parallelism {CHANGE_NEEDS_ROLLOUT}",
                field_path=".parallelism",
            ),
        )
    )

    @property
    def max_degree(self) -> int:
        """The degree that holds."""
        written = self.parallelism.max_degree
        return min(DEFAULT_MAX_DEGREE, self.instances.max_replicas) if written is None else written


class InstanceCounts(ApiModel):
    """Numbers of instances by state."""

    desired: int = Field(default=0, ge=0, description="Desired instances.")
    existing: int = Field(default=0, ge=0, description="Instance pods that exist, terminating ones not counted.")
    ready: int = Field(default=0, ge=0, description="Instances that have loaded the model.")
    joined: int | None = Field(
        default=None, ge=0, description="Instances that have joined the manager. Unset: the manager does not answer."
    )
    draining: int = Field(default=0, ge=0, description="Instances that hand over their requests and are then deleted.")


class SlotCounts(ApiModel):
    """Tokens of KV on all instances."""

    total: int = Field(ge=0, description="KV tokens that fit in all instances.")
    free: int = Field(ge=0, description="KV tokens that are free.")


class GroupStatus(ApiModel):
    """Instances that computed together at the last poll of the manager."""

    phase: str = Field(max_length=16, description="Prefill, Decode or Move.")
    degree: int = Field(ge=1, description="Number of instances.")
    instances: tuple[Annotated[str, Field(max_length=253)], ...] = Field(
        max_length=MAX_INSTANCES, description="Names of the instances."
    )
    requests: int = Field(ge=0, description="Requests in the group.")
    tokens: int = Field(ge=0, description="KV tokens of these requests.")


class PrefillTimeStatus(ApiModel):
    """A prefill takes alphaMs + betaMsPerToken * tokens + gammaMsPerSquaredToken * sum of squared prompt lengths."""

    degree: int = Field(ge=1, description="Instances of the group.")
    alpha_ms: float = Field(description="Constant part, in milliseconds.")
    beta_ms_per_token: float = Field(description="Milliseconds for each prompt token.")
    gamma_ms_per_squared_token: float = Field(description="Milliseconds for each squared prompt token.")
    error_percent: float = Field(ge=0, description="Largest error of the fit.")


class ElasticGroupStatus(ApiModel):
    """The observed state."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="Generation of the spec that this status describes."
    )
    summary: str | None = Field(default=None, max_length=256, description="Instances and groups in one line.")
    endpoint: str | None = Field(default=None, max_length=512, description="Base URL of the OpenAI API.")
    worker_image: str | None = Field(
        default=None,
        max_length=512,
        description=(
            "Image of new manager and instance pods. Without spec.engine.image it stays when the operator's "
            "default image changes."
        ),
    )
    instances: InstanceCounts | None = Field(default=None, description="Numbers of instances by state.")
    slots: SlotCounts | None = Field(
        default=None, description="KV capacity, in tokens. Unset: the manager does not answer."
    )
    degrees: str | None = Field(
        default=None,
        max_length=16,
        description="Smallest and largest degree at the last poll of the manager, e.g. 1-4.",
    )
    groups: tuple[GroupStatus, ...] = Field(
        default=(),
        max_length=MAX_GROUPS_SHOWN,
        description="Groups at the last poll of the manager, the largest first.",
    )
    latency_model: tuple[PrefillTimeStatus, ...] = Field(
        default=(), max_length=MAX_INSTANCES, description="Measured times of prefills, by degree."
    )
    selector: str | None = Field(
        default=None, max_length=1024, description="Label selector of the instances, as /scale shows it."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Ready, Available, Progressing, Degraded and GatewayReady; PlannerHealthy if policyRef is set.",
        json_schema_extra=extra(schema=LIST_BY_TYPE),
    )


class ElasticGroup(Resource):
    """One model on instances that regroup between iterations, behind one OpenAI-compatible endpoint."""

    resource: ClassVar[Kind] = Kind(
        kind="ElasticGroup",
        plural="elasticgroups",
        short_names=("eg",),
        columns=(
            Column("Instances", ".spec.instances.replicas", "integer"),
            Column("Ready", ".status.instances.ready", "integer"),
            Column("Joined", ".status.instances.joined", "integer"),
            Column(
                "Degrees", ".status.degrees", description="Smallest and largest degree of parallelism at the last poll"
            ),
            Column("Free", ".status.slots.free", "integer", description="KV tokens that are free"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("Model", ".spec.model.source", wide=True),
            Column("Endpoint", ".status.endpoint", wide=True),
            Column("Summary", ".status.summary", wide=True),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
        rules=SERVICE_NAME_RULES,
        scale=Scale(".spec.instances.replicas", ".status.instances.existing", ".status.selector"),
    )

    kind: Literal["ElasticGroup"] = "ElasticGroup"
    spec: ElasticGroupSpec
    status: ElasticGroupStatus = ElasticGroupStatus()
