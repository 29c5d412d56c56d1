"""PlannerPolicy: objectives, budget, allowed actions and guards of the planner; in a cluster or in a file.

Starting values of the constants: Pointsman's planner specification, see the field descriptions.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from pointsman.api.schema.rules import LIST_BY_TYPE, Rule, extra
from pointsman.api.v1alpha1.conditions import Condition
from pointsman.api.v1alpha1.resource import ApiModel, Column, Kind, LocalReference, Resource
from pointsman.api.v1alpha1.strict import parse_strictly


class Mode(StrEnum):
    """What becomes of the planner's decisions."""

    SHADOW = "Shadow"  # recorded only
    APPROVE = "Approve"  # disruptive ones wait for a person
    ACTIVE = "Active"  # executed
    EXTERNAL = "External"  # replicas belong to an autoscaler or a person


class Objectives(ApiModel):
    """What a request must meet to count as good."""

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

    max_gpus: int = Field(ge=1, le=100_000, description="Never more, starting and leaving workers included.")
    min_gpus: int = Field(default=1, ge=1, le=100_000, description="Never fewer.")

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

    enabled: bool = Field(default=True, description="Whether the planner may move it.")
    min_threshold_tokens: int = Field(default=0, ge=0, le=1_000_000, description="Lowest threshold, tokens.")
    max_threshold_tokens: int = Field(default=8192, ge=0, le=1_000_000, description="Highest threshold, tokens.")
    max_queue_size: int = Field(default=32, ge=1, le=100_000, description="Most requests queued for prefill.")

    @model_validator(mode="after")
    def _ordered(self) -> "RemotePrefillAction":
        if self.min_threshold_tokens > self.max_threshold_tokens:
            raise ValueError(
                f"minThresholdTokens {self.min_threshold_tokens} is above maxThresholdTokens "
                f"{self.max_threshold_tokens}; write minThresholdTokens <= maxThresholdTokens"
            )
        return self

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "self.minThresholdTokens <= self.maxThresholdTokens",
                "minThresholdTokens {self.minThresholdTokens} is above maxThresholdTokens {self.maxThresholdTokens}; "
                "write minThresholdTokens <= maxThresholdTokens",
            )
        )
    )


class FlowControlAction(ApiModel):
    """Holding back at the gateways what could not be in time anyway."""

    enabled: bool = Field(
        default=True, description="Whether requests that would be late let those pass that can be in time."
    )


class RoleSwitchAction(ApiModel):
    """Switching the role of live workers."""

    enabled: bool = Field(default=True, description="Whether the planner may switch roles.")
    needs_approval: bool = Field(default=False, description="Whether a person must approve each.")
    drain_first: bool = Field(default=True, description="Whether old streams finish before the worker takes new work.")
    min_dwell_seconds: float = Field(default=60, ge=0, le=86_400, description="A worker keeps a new role so long.")
    opposite_after_seconds: float = Field(
        default=30, ge=0, le=86_400, description="Not back in the other direction sooner."
    )
    max_in_transition_percent: int = Field(
        default=20,
        ge=1,
        le=100,
        description="Most of the service's workers (prefill and decode together) that may be switching at one time, "
        "percent, rounded up.",
    )
    max_per_10_minutes: int = Field(
        default=6, ge=1, le=1000, alias="maxPer10Minutes", description="Most switches in ten minutes."
    )


class ScaleOutAction(ApiModel):
    """Starting workers."""

    enabled: bool = Field(default=True, description="Whether the planner may start workers.")
    needs_approval: bool = Field(default=False, description="Whether a person must approve each.")
    lead_seconds: float | None = Field(
        default=None, gt=0, le=86_400, description="Time from decision to a serving worker. Absent: measured."
    )
    unschedulable_after_seconds: float = Field(
        default=600,
        ge=10,
        le=86_400,
        description="A worker that a plan added is given up, and the plan fails, if no node takes it within this time. "
        "If cluster-autoscaler or Karpenter reports a node for it, the operator waits 15 minutes for that node.",
    )


class ScaleInAction(ApiModel):
    """Removing workers."""

    enabled: bool = Field(default=True, description="Whether the planner may remove workers.")
    needs_approval: bool = Field(default=False, description="Whether a person must approve each.")
    stabilization_seconds: float = Field(
        default=120,
        ge=0,
        le=86_400,
        description="Workers stay for the highest need of this time (of a start-up, where that is longer); "
        "for a while after prompts changed, of 2.5 times this time.",
    )


class Actions(ApiModel):
    """What the planner may do, from the quickest to the slowest."""

    remote_prefill: RemotePrefillAction = Field(
        default=RemotePrefillAction(), description="Move the local-prefill threshold; acts on the next request."
    )
    flow_control: FlowControlAction = Field(
        default=FlowControlAction(), description="Hold back under overload; acts on the next request."
    )
    role_switch: RoleSwitchAction = Field(
        default=RoleSwitchAction(), description="Switch roles of live workers; acts in seconds."
    )
    scale_out: ScaleOutAction = Field(default=ScaleOutAction(), description="Start workers; acts in minutes.")
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

    model: Literal["Kalman"] = Field(default="Kalman", description="Local linear trend on the counts of arrivals.")
    seasonality: Seasonality = Field(
        default=Seasonality.AUTO,
        description="Auto: services start workers for rises that came at the same time of earlier days or a week ago, "
        "as far as such rises lately came again. None: the forecast goes by the last minutes only.",
    )


class PerformanceTable(ApiModel):
    """A published performance table to start from."""

    model: str = Field(min_length=1, max_length=256, description="Model, as a hub names it.")
    gpu: str = Field(min_length=1, max_length=64, description="GPU, e.g. h100_sxm.")
    engine: str = Field(default="vllm", min_length=1, max_length=64, description="Engine.")
    tp: int = Field(default=1, ge=1, le=64, description="Tensor-parallel size.")


class TableConfigMap(ApiModel):
    """A performance table of one's own, as ``pointsman profile`` writes it."""

    name: str = Field(min_length=1, max_length=253, description="ConfigMap in the policy's namespace.")
    key: str = Field(default="table.json", min_length=1, max_length=253, description="Which of its entries.")


class Performance(ApiModel):
    """What the planner knows about speed before it has measured."""

    table: PerformanceTable | None = Field(
        default=None, description="Start value; without it speed is learned from the running service."
    )
    config_map: TableConfigMap | None = Field(
        default=None, description="Start value that was measured with pointsman profile, instead of a published table."
    )

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "!has(self.table) || !has(self.configMap)",
                "table and configMap are both set; write one of them",
            ),
        )
    )


class MetricsSource(StrEnum):
    """Where observations come from."""

    DIRECT = "Direct"  # scraped from workers and gateways
    PROMETHEUS = "Prometheus"  # read from a Prometheus that scrapes them


_URL_WITH_USER: Final = "^https?://[^/]*@"


class PrometheusSecretReference(LocalReference):
    """A Secret with credentials for Prometheus, the CA of its certificate, or both."""


class Metrics(ApiModel):
    """Where observations come from, and when they are too old."""

    source: MetricsSource = Field(
        default=MetricsSource.DIRECT,
        description="Direct: scraped from workers and gateways. Prometheus: read from prometheusUrl, whose series must "
        "have the labels namespace and pod.",
    )
    prometheus_url: str | None = Field(
        default=None,
        min_length=1,
        max_length=2048,
        pattern="^https?://[^ /?#]+[^ ?#]*$",
        description="Base address of the Prometheus HTTP API, e.g. http://prometheus.monitoring.svc:9090.",
    )
    prometheus_secret_ref: PrometheusSecretReference | None = Field(
        default=None,
        description="Secret in the policy's namespace. Keys: token, or username and password; url, required with "
        "credentials: they are sent only to this address and paths below it; ca.crt, the CA in PEM that signed the "
        "server's certificate. The planner can read only Secrets whose names are in the chart's "
        "planner.prometheusSecrets.",
    )
    interval_seconds: float = Field(default=2.5, gt=0, le=300, description="Time between observations.")
    stale_after_seconds: float = Field(
        default=20,
        gt=0,
        le=3600,
        description="Older values are unknown: nothing disruptive is decided on them. With Prometheus: more than twice "
        "its scrape interval.",
    )

    @model_validator(mode="after")
    def _source_has_its_address(self) -> "Metrics":
        if self.source is MetricsSource.PROMETHEUS and self.prometheus_url is None:
            raise ValueError("source is Prometheus, prometheusUrl is missing; write its address")
        if self.source is MetricsSource.DIRECT and self.prometheus_url is not None:
            raise ValueError("prometheusUrl is set, source is Direct; write source: Prometheus or leave it out")
        if self.prometheus_secret_ref is not None and self.prometheus_url is None:
            raise ValueError("prometheusSecretRef is set, source is Direct; write source: Prometheus or leave it out")
        if self.prometheus_secret_ref is not None and re.match(_URL_WITH_USER, self.prometheus_url or ""):
            raise ValueError(
                "prometheusUrl has a user and prometheusSecretRef is set; move user and password to the Secret"
            )
        return self

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "self.source != 'Prometheus' || has(self.prometheusUrl)",
                "source is Prometheus, prometheusUrl is missing; write its address",
            ),
            Rule(
                "self.source != 'Direct' || !has(self.prometheusUrl)",
                "prometheusUrl is set, source is Direct; write source: Prometheus or leave it out",
            ),
            Rule(
                "!has(self.prometheusSecretRef) || self.source == 'Prometheus'",
                "prometheusSecretRef is set, source is Direct; write source: Prometheus or leave it out",
            ),
            Rule(
                f"!has(self.prometheusSecretRef) || !has(self.prometheusUrl) || "
                f"!self.prometheusUrl.matches('{_URL_WITH_USER}')",
                "prometheusUrl has a user and prometheusSecretRef is set; move user and password to the Secret",
            ),
        )
    )


class Approvals(ApiModel):
    """Plans that wait for a person."""

    expire_after_seconds: float = Field(default=900, gt=0, le=604_800, description="They wait so long.")


class History(ApiModel):
    """What is kept."""

    plans: int = Field(default=50, ge=1, le=1000, description="Ended plans kept.")


class PlannerPolicySpec(ApiModel):
    """Objectives, budget, allowed actions and guards."""

    mode: Mode = Field(default=Mode.SHADOW, description="What becomes of decisions: Shadow only records them.")
    objectives: Objectives = Field(description="What a request must meet to count as good.")
    budget: Budget = Field(description="GPUs of one service.")
    actions: Actions = Field(default=Actions(), description="What the planner may do.")
    forecast: Forecast = Field(default=Forecast(), description="How the load is foreseen.")
    performance: Performance = Field(default=Performance(), description="What is known about speed at the start.")
    metrics: Metrics = Field(default=Metrics(), description="Where observations come from.")
    approvals: Approvals = Field(default=Approvals(), description="Plans that wait for a person.")
    history: History = Field(default=History(), description="What is kept.")

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
    """What is."""

    observed_generation: int | None = Field(default=None, ge=0, description="The spec's generation this is about.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Accepted: its services can follow it as it is written. InUse: which services those are.",
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
