"""Plan: one atomic decision of the planner for one service or elastic group, with its reasons. Written by the planner,
executed by the operator; immutable but for a person's approval and the status."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role, workers_in_words
from pointsman.api.schema.rules import LIST_BY_TYPE, Rule, extra
from pointsman.api.v1alpha1.conditions import Condition, end_condition
from pointsman.api.v1alpha1.elasticgroup import MAX_INSTANCES
from pointsman.api.v1alpha1.llmservice import MAX_REPLICAS
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.resource import ApiModel, Column, Kind, Resource
from pointsman.api.v1alpha1.roleswitch import ENCODE_IS_FIXED
from pointsman.api.v1alpha1.workerpool import ServiceReference

MAX_ALTERNATIVES: Final = 16
MAX_INPUTS: Final = 64
_IMMUTABLE: Final = "a plan cannot be changed but for approval.decision; the planner makes a new one when things change"

_SWITCHED_ROLE: Final = extra(Rule("self != 'Encode'", ENCODE_IS_FIXED))


class PlanPhase(StrEnum):
    """Where a plan is. All but the first two are its ends."""

    AWAITING_APPROVAL = "AwaitingApproval"
    EXECUTING = "Executing"
    SHADOW = "Shadow"  # recorded only
    COMPLETED = "Completed"
    SUPERSEDED = "Superseded"
    DENIED = "Denied"
    EXPIRED = "Expired"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        """Nothing will happen any more."""
        return self not in (PlanPhase.AWAITING_APPROVAL, PlanPhase.EXECUTING)


class PlanReason(StrEnum):
    """Why a plan is in its phase."""

    RECORDED = "Recorded"  # the policy's mode is Shadow
    AWAITING_APPROVAL = "AwaitingApproval"
    SWITCHING = "Switching"
    SCALING = "Scaling"
    DONE = "Done"
    NEWER_PLAN = "NewerPlan"
    WITHDRAWN = "Withdrawn"  # withdrawn by the planner before a person answered
    DENIED = "Denied"
    EXPIRED = "Expired"
    SWITCH_FAILED = "SwitchFailed"
    UNSCHEDULABLE = "Unschedulable"
    NOT_ALLOWED = "NotAllowed"  # the policy does not let this be done any more


class PoolTargetSpec(ApiModel):
    """A pool after the plan."""

    replicas: int = Field(ge=1, le=MAX_REPLICAS, description="Desired workers after the switches of the plan.")


class EncodePoolTargetSpec(PoolTargetSpec):
    """The encode pool after the plan."""

    replicas: int = Field(
        ge=0, le=MAX_REPLICAS, description="Desired encode workers. 0: the workers that prefill also encode images."
    )


class PlanPools(ApiModel):
    """The pools after the plan."""

    prefill: PoolTargetSpec
    decode: PoolTargetSpec
    encode: EncodePoolTargetSpec | None = Field(
        default=None,
        description="Encode pool after the plan. Unset: the service has none, or the plan does not change it.",
    )

    def of(self, role: Role) -> PoolTargetSpec | None:
        """The target of a role; None: the plan has none for it."""
        return {Role.PREFILL: self.prefill, Role.DECODE: self.decode, Role.ENCODE: self.encode}[role]


class InstancesTargetSpec(ApiModel):
    """An elastic group after the plan."""

    replicas: int = Field(ge=1, le=MAX_INSTANCES, description="Desired instances.")


class PlannedReference(ServiceReference):
    """What a plan is for, in the same namespace."""

    kind: Literal["LLMService", "ElasticGroup"] = Field(
        default="LLMService", description="Kind: LLMService or ElasticGroup."
    )


class PlanSwitch(ApiModel):
    """Role switches of one direction."""

    from_role: Role = Field(alias="from", description="Present role.", json_schema_extra=_SWITCHED_ROLE)
    to_role: Role = Field(alias="to", description="New role.", json_schema_extra=_SWITCHED_ROLE)
    count: int = Field(ge=1, le=100, description="Number of workers.")


class PlanRouting(ApiModel):
    """Routing numbers, in plans of earlier planners."""

    max_local_prefill_tokens: int = Field(
        ge=0, le=1_000_000, description="Most uncached prompt tokens that a decode worker computes itself."
    )
    max_prefill_queue_size: int = Field(
        ge=0, le=100_000, description="Queued prefills at which decode workers compute prompts themselves."
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


class PlanInput(ApiModel):
    """One number that the decision is based on."""

    name: str = Field(min_length=1, max_length=64, description="Name of the number, with its unit.")
    value: float = Field(description="Value of the number.")


class PlanAlternative(ApiModel):
    """A layout that was compared."""

    action: str = Field(max_length=64, description="Action that leads to it: stay, switch, scale-out or scale-in.")
    prefill: int | None = Field(default=None, ge=0, description="Prefill workers. Unset for an elastic group.")
    decode: int | None = Field(default=None, ge=0, description="Decode workers. Unset for an elastic group.")
    encode: int | None = Field(default=None, ge=0, description="Encode workers. Unset: the service has no encode pool.")
    instances: int | None = Field(default=None, ge=0, description="Instances of an elastic group.")
    gpus: int = Field(ge=0, description="GPUs of all workers.")
    expected_attainment: float = Field(
        ge=0,
        le=1,
        description=(
            "Expected share of requests within both objectives once all workers serve, for the planned load "
            "and the present queue."
        ),
    )
    lead_seconds: float | None = Field(
        default=None,
        ge=0,
        description="Seconds until all its workers serve. 0: they serve now. Unset in plans of earlier planners.",
    )
    rejected_because: str = Field(
        default="", max_length=512, description="Why the layout was rejected. Empty for the chosen one."
    )


class Approval(ApiModel):
    """A person's word."""

    required: bool = Field(default=False, description="Whether the plan needs an approval.")
    decision: Literal["Approved", "Denied"] | None = Field(
        default=None,
        description=(
            "Approved or Denied. Written once: kubectl patch plan NAME --type=merge -p "
            '\'{"spec":{"approval":{"decision":"Approved"}}}\''
        ),
    )
    by: str | None = Field(
        default=None,
        max_length=253,
        description="Name of the user that sends the request. The chart's admission policy refuses any other name.",
    )

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "!has(oldSelf.decision) || self == oldSelf",
                "approval.decision is {oldSelf.decision} already and stays",
                field_path=".decision",
            ),
            Rule("self.required == oldSelf.required", "approval.required is the planner's and cannot be changed"),
        )
    )


class PlanSpec(ApiModel):
    """The decision and its reason."""

    service_ref: PlannedReference = Field(description="The service or elastic group, in the same namespace.")
    sequence: int = Field(ge=1, description="Number of the plan. A plan supersedes those with lower numbers.")
    mode: Mode = Field(description="Mode of the policy at the time of the decision.")
    observed_at: datetime = Field(description="Time of the metrics that the decision is based on.")
    pools: PlanPools | None = Field(default=None, description="Layout of the service after the plan.")
    instances: InstancesTargetSpec | None = Field(
        default=None, description="Instances of the elastic group after the plan."
    )
    switches: Annotated[tuple[PlanSwitch, ...], Field(max_length=4)] = Field(
        default=(), description="Role switches, executed before any scaling."
    )
    routing: PlanRouting | None = Field(
        default=None,
        description=(
            "Routing numbers of plans of earlier planners. Newer planners publish them in status.routing of "
            "the service."
        ),
    )
    changes_layout: bool = Field(
        description=(
            "Whether the plan changes the layout. False: it only withdraws another plan, or only sets "
            "routing (earlier planners)."
        )
    )
    withdraws: str = Field(
        default="",
        max_length=253,
        description="Name of an unanswered plan that this plan withdraws, because it is no longer needed.",
    )
    drain_first: bool = Field(
        default=True, description="Whether switched workers finish their requests before they change their role."
    )
    change: str = Field(
        default="",
        max_length=253,
        description="The layout before and after the plan, e.g. 1P2D -> 2P1D. Empty in plans of earlier planners.",
    )
    gpus: int | None = Field(
        default=None, ge=0, description="GPUs of all workers after the plan; a worker on CPU counts as one."
    )
    attainment: str = Field(
        default="",
        max_length=32,
        description="Expected share of requests within both objectives, without and with the plan: 33% -> 85%.",
    )
    reason: str = Field(min_length=1, max_length=64, pattern="^[A-Za-z]+$", description="Machine-readable reason.")
    message: str = Field(max_length=1024, description="Human-readable message.")
    inputs: tuple[PlanInput, ...] = Field(
        default=(), max_length=MAX_INPUTS, description="Numbers that the decision is based on."
    )
    alternatives: tuple[PlanAlternative, ...] = Field(
        default=(), max_length=MAX_ALTERNATIVES, description="Layouts that were compared, the chosen one first."
    )
    expires_at: datetime = Field(description="Time after which the plan is no longer started.")
    approval: Approval = Field(default=Approval(), description="Approval of the plan by a user.")

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                " && ".join(
                    f"self.{name} == oldSelf.{name}"
                    for name in (
                        "serviceRef",
                        "sequence",
                        "mode",
                        "observedAt",
                        "switches",
                        "changesLayout",
                        "withdraws",
                        "drainFirst",
                        "change",
                        "attainment",
                        "reason",
                        "message",
                        "inputs",
                        "alternatives",
                        "expiresAt",
                    )
                ),
                _IMMUTABLE,
            ),
            *(
                Rule(
                    f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
                    _IMMUTABLE,
                )
                for name in ("pools", "instances", "routing", "gpus")
            ),
            Rule(
                "self.serviceRef.kind == 'ElasticGroup' || (has(self.pools) && !has(self.instances))",
                "serviceRef.kind is LLMService; write pools, and no instances",
            ),
            Rule(
                "self.serviceRef.kind != 'ElasticGroup' || (has(self.instances) && !has(self.pools) && "
                "!has(self.routing) && self.switches.size() == 0)",
                "serviceRef.kind is ElasticGroup; write instances, and no pools, routing or switches",
            ),
        )
    )

    @property
    def target(self) -> tuple[int, ...]:
        """Replicas after the plan: in the order of ``roles`` of a service, (instances,) of an elastic group."""
        if self.instances is not None:
            return (self.instances.replicas,)
        return tuple(self.replicas(role) for role in self.roles)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles whose pools the plan of a service writes."""
        has_encode = self.pools is not None and self.pools.encode is not None
        return (*LANGUAGE_ROLES, Role.ENCODE) if has_encode else LANGUAGE_ROLES

    @property
    def target_in_words(self) -> str:
        """For example 1P2D or 1E1P2D, or 4 instances."""
        if self.instances is not None:
            return f"{self.instances.replicas} instance{'' if self.instances.replicas == 1 else 's'}"
        return workers_in_words({role: self.replicas(role) for role in self.roles})

    def replicas(self, role: Role) -> int:
        """Workers of a role after the plan. Raises ValueError for a pool that the plan does not write."""
        target = self.pools.of(role) if self.pools is not None else None
        if target is None:
            raise ValueError(f"the plan has no target for {role} workers")
        return target.replicas


class PlanStatus(ApiModel):
    """Phase of the plan."""

    phase: PlanPhase | None = Field(default=None, description="Phase of the plan.")
    reason: str | None = Field(
        default=None, max_length=64, pattern="^[A-Za-z]+$", description="Machine-readable reason."
    )
    message: str | None = Field(default=None, max_length=2048, description="Human-readable message.")
    switches: tuple[Annotated[str, Field(max_length=253)], ...] = Field(
        default=(), max_length=100, description="RoleSwitches of the plan."
    )
    started_at: datetime | None = Field(default=None, description="Start of the execution.")
    ended_at: datetime | None = Field(default=None, description="End of the plan.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=8,
        description="Complete or Failed, as in Jobs, for kubectl wait. Plans that were only recorded are complete.",
        json_schema_extra=extra(schema=LIST_BY_TYPE),
    )

    def ended_with(self, now: datetime) -> "PlanStatus":
        """With its last condition: Complete, or Failed for all that was not carried out."""
        completed = self.phase in (PlanPhase.COMPLETED, PlanPhase.SHADOW)
        condition = end_condition(completed=completed, reason=self.reason, message=self.message, now=now)
        return self.model_copy(update={"conditions": (condition,)})


class Plan(Resource):
    """One decision of the planner for a service or an elastic group, with its reason, inputs and rejected
    alternatives.
    """

    resource: ClassVar[Kind] = Kind(
        kind="Plan",
        plural="plans",
        short_names=("pplan",),
        columns=(
            Column("Change", ".spec.change", description="The layout before and after it"),
            Column("GPUs", ".spec.gpus", "integer", description="After it"),
            Column("Reason", ".spec.reason"),
            Column("Phase", ".status.phase"),
            Column("Attainment", ".spec.attainment", description="Expected without it and with it"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Service", ".spec.serviceRef.name", wide=True),
            Column("Mode", ".spec.mode", wide=True),
            Column("Why", ".spec.message", wide=True),
        ),
    )

    kind: Literal["Plan"] = "Plan"
    spec: PlanSpec
    status: PlanStatus = PlanStatus()
