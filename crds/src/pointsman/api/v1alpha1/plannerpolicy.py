"""PlannerPolicy: objectives, budget, allowed actions and guards of the planner; in a cluster or in a file.

Starting values of the constants: Pointsman's planner specification, see the field descriptions.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from pointsman.api.schema.rules import LIST_BY_TYPE, Rule, extra
from pointsman.api.v1alpha1.conditions import Condition
from pointsman.api.v1alpha1.removed import Removed, ignored
from pointsman.api.v1alpha1.resource import ApiModel, Column, Kind, LocalReference, Resource
from pointsman.api.v1alpha1.strict import parse_strictly

_SWITCHES: Final = "in ten minutes, a service makes at most two switches per worker in total. Six are always allowed."


class Mode(StrEnum):
    """What becomes of the planner's decisions."""

    SHADOW = "Shadow"  # recorded only
    APPROVE = "Approve"  # disruptive ones wait for a person
    ACTIVE = "Active"  # executed
    EXTERNAL = "External"  # replicas belong to an autoscaler or a person


class Objectives(ApiModel):
    """Objectives that a request must meet."""

    ttft_ms: float = Field(gt=0, le=600_000, description="Time to first token, milliseconds.")
    ttft_ms_per_prompt_token: float = Field(
        default=0, ge=0, le=1000, description="Added to ttftMs for every prompt token, milliseconds."
    )
    tpot_ms: float = Field(gt=0, le=60_000, description="Mean time per output token of a request, milliseconds.")
    attainment: float = Field(
        default=0.95, gt=0, lt=1, description="Share of all arrived requests that must meet both, 0..1."
    )


class Budget(ApiModel):
    """GPUs of one service; a CPU worker counts as one."""

    max_gpus: int = Field(ge=1, le=100_000, description="Most GPUs, starting and draining workers included.")
    min_gpus: int = Field(default=1, ge=1, le=100_000, description="Fewest GPUs.")

    @model_validator(mode="after")
    def _ordered(self) -> "Budget":
        if self.min_gpus > self.max_gpus:
            raise ValueError(f"minGpus {self.min_gpus} is above maxGpus {self.max_gpus}; write minGpus <= maxGpus")
        return self

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "self.minGpus <= self.maxGpus",
                "minGpus {self.minGpus} is above maxGpus {self.maxGpus}; write minGpus <= maxGpus",
            )
        )
    )


class RemotePrefillAction(ApiModel):
    """Moving the threshold below which a decode worker computes a prompt itself."""

    enabled: bool = Field(
        default=True, description="Whether the planner may change the threshold and the prefill queue limit."
    )
    min_threshold_tokens: Annotated[int | None, Removed(0)] = Field(
        default=None, ge=0, le=1_000_000, description=ignored("the planner chooses the threshold from measured load.")
    )
    max_threshold_tokens: Annotated[int | None, Removed(8192)] = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description=ignored(
            "the planner lowers the threshold when decode workers have no room for local prefills. Set enabled to "
            "false to keep the threshold."
        ),
    )
    max_queue_size: Annotated[int | None, Removed(32)] = Field(
        default=None,
        ge=1,
        le=100_000,
        description=ignored(
            "the planner derives the limit (status.routing.maxPrefillQueueSize) from the TTFT objective."
        ),
    )


class FlowControlAction(ApiModel):
    """Holding back at the gateways what could not be in time anyway."""

    enabled: bool = Field(
        default=True,
        description=(
            "Whether gateways serve requests that can still meet their objectives before requests that are "
            "already late."
        ),
    )


class RoleSwitchAction(ApiModel):
    """Switching the role of live workers."""

    enabled: bool = Field(default=True, description="Whether the planner may switch roles.")
    needs_approval: bool = Field(default=False, description="Whether each action needs an approval.")
    drain_first: Annotated[bool | None, Removed(True)] = Field(
        default=None,
        description=ignored("the planner always drains first. A RoleSwitch can still set drainFirst to false."),
    )
    min_dwell_seconds: Annotated[float | None, Removed(60)] = Field(
        default=None, ge=0, le=86_400, description=ignored(_SWITCHES)
    )
    opposite_after_seconds: Annotated[float | None, Removed(30)] = Field(
        default=None,
        ge=0,
        le=86_400,
        description=ignored(_SWITCHES),
    )
    max_in_transition_percent: int = Field(
        default=20,
        ge=1,
        le=100,
        description=(
            "Largest share of the service's prefill and decode workers that switch at the same time, in "
            "percent, rounded up."
        ),
    )
    max_per_10_minutes: Annotated[int | None, Removed(6)] = Field(
        default=None,
        ge=1,
        le=1000,
        alias="maxPer10Minutes",
        description=ignored(_SWITCHES),
    )


class ScaleOutAction(ApiModel):
    """Starting workers."""

    enabled: bool = Field(default=True, description="Whether the planner may start workers.")
    needs_approval: bool = Field(default=False, description="Whether each action needs an approval.")
    lead_seconds: float | None = Field(
        default=None, gt=0, le=86_400, description="Time from decision to a serving worker. Unset: measured."
    )
    unschedulable_after_seconds: float = Field(
        default=600,
        ge=10,
        le=86_400,
        description=(
            "A worker of a plan that fits on no node for this time is removed, and the plan fails. If an "
            "autoscaler has reported a node for it, the operator waits 15 minutes for that node."
        ),
    )


class ScaleInAction(ApiModel):
    """Removing workers."""

    enabled: bool = Field(default=True, description="Whether the planner may remove workers.")
    needs_approval: bool = Field(default=False, description="Whether each action needs an approval.")
    stabilization_seconds: float = Field(
        default=120,
        ge=0,
        le=86_400,
        description=(
            "Window of which the highest need is kept; at least one start-up time. After a change of "
            "prompts, 2.5 times as long."
        ),
    )


class Actions(ApiModel):
    """What the planner may do, from the quickest to the slowest."""

    remote_prefill: RemotePrefillAction = Field(
        default=RemotePrefillAction(),
        description="Change the local-prefill threshold. Takes effect on the next request.",
    )
    flow_control: FlowControlAction = Field(
        default=FlowControlAction(), description="Queue requests under overload. Takes effect on the next request."
    )
    role_switch: RoleSwitchAction = Field(
        default=RoleSwitchAction(), description="Switch roles of running workers. Takes effect in seconds."
    )
    scale_out: ScaleOutAction = Field(default=ScaleOutAction(), description="Start workers. Takes effect in minutes.")
    scale_in: ScaleInAction = Field(default=ScaleInAction(), description="Remove workers.")

    model_config = ConfigDict(
        json_schema_extra=extra(
            reserved={"convertibleDecode": "bursts are answered by threshold and switch; leave convertibleDecode out"}
        )
    )


class Seasonality(StrEnum):
    """Whether earlier days are part of the forecast."""

    AUTO = "Auto"  # as far as they lately foretold what came
    NONE = "None"


class Forecast(ApiModel):
    """How the load of the next minutes is foreseen."""

    model: Annotated[Literal["Kalman"] | None, Removed("Kalman")] = Field(
        default=None, description=ignored("there is one forecast model.")
    )
    seasonality: Seasonality = Field(
        default=Seasonality.AUTO,
        description=(
            "Auto: workers start ahead of rises that recur daily or weekly, if such rises recurred lately. "
            "None: the forecast uses only the last minutes."
        ),
    )


class PerformanceTable(ApiModel):
    """A published performance table to start from."""

    model: str = Field(min_length=1, max_length=256, description="Model name on the hub.")
    gpu: str = Field(min_length=1, max_length=64, description="GPU, e.g. h100_sxm.")
    engine: Annotated[str | None, Removed("vllm")] = Field(
        default=None, min_length=1, max_length=64, description=ignored("workers run vLLM, so its table is used.")
    )
    tp: int = Field(default=1, ge=1, le=64, description="Tensor-parallel size.")


class TableConfigMap(ApiModel):
    """A performance table of one's own, as ``pointsman profile`` writes it."""

    name: str = Field(
        min_length=1,
        max_length=253,
        description="ConfigMap in the policy's namespace. Its only entry, or table.json, is the table.",
    )
    key: Annotated[str | None, Removed("table.json")] = Field(
        default=None,
        min_length=1,
        max_length=253,
        description=ignored("the only entry of the ConfigMap is read, or table.json if there are several."),
    )


_TWO_TABLES: Final = "table and configMap are both set; write one of them"


class Performance(ApiModel):
    """What the planner knows about speed before it has measured."""

    table: PerformanceTable | None = Field(
        default=None, description="Published performance table. Unset: performance is learned from the running service."
    )
    config_map: TableConfigMap | None = Field(
        default=None, description="Performance table measured with pointsman profile, instead of a published one."
    )

    @model_validator(mode="after")
    def _has_one_table(self) -> "Performance":
        if self.table is not None and self.config_map is not None:
            raise ValueError(_TWO_TABLES)
        return self

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "!has(self.table) || !has(self.configMap)",
                _TWO_TABLES,
            ),
        )
    )


class MetricsSource(StrEnum):
    """Source of metrics."""

    DIRECT = "Direct"  # scraped from workers and gateways
    PROMETHEUS = "Prometheus"  # read from a Prometheus that scrapes them


_URL_WITH_USER: Final = "^https?://[^/]*@"


DEFAULT_STALE_AFTER_S: Final = 20.0
"""With Prometheus no limit but a wish: stored policies have it as default, and Prometheus may scrape less often."""


class PrometheusSecretReference(LocalReference):
    """A Secret with credentials for Prometheus, the CA of its certificate, or both."""


class Metrics(ApiModel):
    """Where observations come from, and when they are too old."""

    source: Annotated[MetricsSource | None, Removed(*MetricsSource)] = Field(
        default=None, description=ignored("Prometheus is queried if prometheusUrl is set.")
    )
    prometheus_url: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        pattern="^https?://[^ /?#]+[^ ?#]*$",
        description=(
            "Base address of the Prometheus HTTP API, e.g. http://prometheus.monitoring.svc:9090. Its series need the "
            "labels namespace and pod. Unset: workers and gateways are scraped."
        ),
    )
    prometheus_secret_ref: PrometheusSecretReference | None = Field(
        default=None,
        description=(
            "Secret with token, or username and password; url, the address to which they may be sent; "
            "ca.crt, the CA of the server. Its name must be in planner.prometheusSecrets of the chart."
        ),
    )
    interval_seconds: float = Field(default=2.5, gt=0, le=300, description="Seconds between two evaluations.")
    stale_after_seconds: float = Field(
        default=DEFAULT_STALE_AFTER_S,
        gt=0,
        le=3600,
        description=(
            "Age at which metrics count as unknown, in seconds; they then cause no disruptive action. With Prometheus: "
            "more than twice its scrape interval; 20 is raised to 2.5 times that."
        ),
    )

    @model_validator(mode="after")
    def _is_complete(self) -> "Metrics":
        if self.source is MetricsSource.PROMETHEUS and self.prometheus_url is None:
            raise ValueError("source is Prometheus, so prometheusUrl is required; write the address")
        if self.prometheus_secret_ref is not None and self.prometheus_url is None:
            raise ValueError("prometheusSecretRef is set, so prometheusUrl is required; write the address")
        if self.prometheus_secret_ref is not None and re.match(_URL_WITH_USER, self.prometheus_url or ""):
            raise ValueError(
                "prometheusUrl has a user and prometheusSecretRef is set; move user and password to the Secret"
            )
        return self

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "!has(self.source) || self.source != 'Prometheus' || has(self.prometheusUrl)",
                "source is Prometheus, so prometheusUrl is required; write the address",
            ),
            Rule(
                "!has(self.prometheusSecretRef) || has(self.prometheusUrl)",
                "prometheusSecretRef is set, so prometheusUrl is required; write the address",
            ),
            Rule(
                f"!has(self.prometheusSecretRef) || !has(self.prometheusUrl) || "
                f"!self.prometheusUrl.matches('{_URL_WITH_USER}')",
                "prometheusUrl has a user and prometheusSecretRef is set; move user and password to the Secret",
            ),
        )
    )


class Approvals(ApiModel):
    """Plans that await approval."""

    expire_after_seconds: float = Field(
        default=900, gt=0, le=604_800, description="Seconds until a plan that awaits approval expires."
    )


class History(ApiModel):
    """How many ended plans are kept."""

    plans: Annotated[int | None, Removed(50)] = Field(
        default=None, ge=1, le=1000, description=ignored("the last 50 ended plans are kept.")
    )


class PlannerPolicySpec(ApiModel):
    """Objectives, budget, allowed actions and guards."""

    mode: Mode = Field(
        default=Mode.SHADOW,
        description=(
            "How decisions are used. Shadow: only recorded. Approve: executed after an approval. Active: "
            "executed. External: others set replicas."
        ),
    )
    objectives: Objectives = Field(description="Objectives that a request must meet.")
    budget: Budget = Field(description="GPUs of one service.")
    actions: Actions = Field(default=Actions(), description="Actions that the planner may take.")
    forecast: Forecast = Field(default=Forecast(), description="How the load is forecast.")
    performance: Performance = Field(default=Performance(), description="Initial performance model.")
    metrics: Metrics = Field(default=Metrics(), description="Source of metrics.")
    approvals: Approvals = Field(default=Approvals(), description="Plans that await approval.")
    history: History | None = Field(default=None, description=ignored("it has no field that is used."))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "PlannerPolicySpec":
        """Read a policy file, with or without the ``kind``/``metadata`` envelope.

        Raises StrictError with every mistake, each with its path, what is written and the nearest valid name.
        """
        if "kind" in document or "apiVersion" in document:
            return parse_strictly(PlannerPolicy, document).spec
        return parse_strictly(cls, document.get("spec", document) if set(document) == {"spec"} else document)


class PolicyConditionType(StrEnum):
    """What is said about a policy."""

    ACCEPTED = "Accepted"  # the services that refer to it can follow it as it is written
    IN_USE = "InUse"  # some service refers to it


class PlannerPolicyStatus(ApiModel):
    """The observed state."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="Generation of the spec that this status describes."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Accepted: all services can apply the policy as written. InUse: which services use it.",
        json_schema_extra=extra(schema=LIST_BY_TYPE),
    )


class PlannerPolicy(Resource):
    """Objectives, budget, allowed actions and guards of the planner."""

    resource: ClassVar[Kind] = Kind(
        kind="PlannerPolicy",
        plural="plannerpolicies",
        short_names=("ppol",),
        columns=(
            Column("Mode", ".spec.mode"),
            Column("TTFT-ms", ".spec.objectives.ttftMs", "number"),
            Column("TPOT-ms", ".spec.objectives.tpotMs", "number"),
            Column("Max-GPUs", ".spec.budget.maxGpus", "integer"),
            Column("Accepted", ".status.conditions[?(@.type=='Accepted')].status"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )

    kind: Literal["PlannerPolicy"] = "PlannerPolicy"
    spec: PlannerPolicySpec
    status: PlannerPolicyStatus = PlannerPolicyStatus()
