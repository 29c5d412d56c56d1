"""Conditions: their types, every reason there is, and how one is set.

Reasons are stable: tools and people match on them, and ``docs/operate/conditions.md`` explains them one by one.
"""

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from pointsman.api.credentials import mask_credentials
from pointsman.api.v1alpha1.resource import ApiModel


class ConditionStatus(StrEnum):
    """``Unknown`` is said where we could not look; it is not ``False``."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionType(StrEnum):
    """What is said about an LLMService; a WorkerPool has ``Ready`` and ``Progressing``."""

    READY = "Ready"  # as many workers serve as were asked for, and the gateway does
    AVAILABLE = "Available"  # requests are answered, be it by fewer workers than asked for
    PROGRESSING = "Progressing"  # something is being started, drained or deleted
    DEGRADED = "Degraded"  # something failed and will not mend itself by waiting
    PREFILL_READY = "PrefillReady"
    DECODE_READY = "DecodeReady"
    ENCODE_READY = "EncodeReady"  # of a service with spec.encode
    GATEWAY_READY = "GatewayReady"
    SWITCH_IN_PROGRESS = "SwitchInProgress"
    PLANNER_HEALTHY = "PlannerHealthy"  # the planner's word: it decides, and on what it can see


class Reason(StrEnum):
    """Why a condition is as it is."""

    # as it should be
    AS_DESIRED = "AsDesired"  # everything that was asked for is there and serves
    SERVING = "Serving"  # requests are answered
    IDLE = "Idle"  # nothing to do
    HEALTHY = "Healthy"  # nothing has failed
    ACCEPTED = "Accepted"  # of a policy: its services can follow it
    IN_USE = "InUse"  # of a policy: services refer to it
    NOT_IN_USE = "NotInUse"  # of a policy: no service refers to it

    # on the way
    CREATING = "Creating"  # objects are being made
    WORKERS_STARTING = "WorkersStarting"  # engines load or wait for their role
    WORKERS_DRAINING = "WorkersDraining"  # workers finish what they have before they go
    GATEWAY_STARTING = "GatewayStarting"
    INSTANCES_STARTING = "InstancesStarting"  # of an elastic group: they load the model
    INSTANCES_DRAINING = "InstancesDraining"  # of an elastic group: they hand over what they have before they go
    SCALING = "Scaling"  # more or fewer workers are wanted than there are
    SWITCHING = "Switching"  # workers change their role
    DELETING = "Deleting"  # the service was deleted; streams finish
    PAUSED = "Paused"  # spec.paused: observed, not touched

    # not serving
    TOO_FEW_WORKERS = "TooFewWorkers"  # fewer serve than were asked for
    NO_PREFILL_WORKER = "NoPrefillWorker"
    NO_DECODE_WORKER = "NoDecodeWorker"
    NO_ENCODE_WORKER = "NoEncodeWorker"  # the workers that prefill encode images meanwhile
    GATEWAY_NOT_READY = "GatewayNotReady"
    MANAGER_NOT_READY = "ManagerNotReady"  # of an elastic group: its manager does not answer
    NO_INSTANCE = "NoInstance"  # of an elastic group: its manager works with no instance
    TOO_FEW_INSTANCES = "TooFewInstances"  # of an elastic group: fewer work than were asked for

    BUDGET_REACHED = "BudgetReached"  # more workers are wanted, but budget.maxGpus of the policy has no room for them
    BUDGET_BELOW_MINIMUM = "BudgetBelowMinimum"  # budget.maxGpus of the policy is below the service's minReplicas
    BUDGET_ABOVE_MAXIMUM = "BudgetAboveMaximum"  # budget.minGpus of the policy is above the service's maxReplicas
    POLICY_NOT_FOUND = "PolicyNotFound"  # spec.policyRef names a policy that is not there
    UNREADABLE = "Unreadable"  # this version cannot read an object that a newer version wrote; the message names both

    # failed
    UNSCHEDULABLE = "Unschedulable"  # the scheduler finds no node; its words are in the message
    WORKER_CRASHED = "WorkerCrashed"  # an engine ended and is started again; its last log lines are in the message
    CONTAINER_NOT_STARTED = "ContainerNotStarted"  # the kubelet cannot start it, e.g. a Secret or volume is missing
    CRASH_LOOP = "CrashLoop"  # the engine ends again and again; its last log lines are in the message
    IMAGE_PULL_FAILED = "ImagePullFailed"
    MODEL_VOLUME_FORBIDDEN = "ModelVolumeForbidden"  # file:// needs a namespace that allows hostPath
    UNKNOWN_FIELD = "UnknownField"  # somebody applied a field that there is not; the API server dropped it
    UNCOUNTED_GPUS = "UncountedGpus"  # a pod template asks for GPUs that no budget counts
    NODE_LOST = "NodeLost"  # the node of a worker does not answer
    WORKER_UNRESPONSIVE = "WorkerUnresponsive"  # an engine that served does not answer its readiness probe
    WORKER_UNREACHABLE = "WorkerUnreachable"  # neither the operator nor a gateway reaches a worker
    INVALID_SPEC = "InvalidSpec"  # the message names field, value, and what would be right
    NOT_IMPLEMENTED = "NotImplemented"  # not built yet; the message names the field
    NAME_CONFLICT = "NameConflict"  # an object of a name we need belongs to somebody else; it is never adopted
    POD_REFUSED = "PodRefused"  # the API server did not take a worker pod; its words are in the message
    OBJECT_REFUSED = "ObjectRefused"  # the API server did not take another write; its words are in the message
    TEMPLATE_REFUSED = "TemplateRefused"  # spec.worker.template cannot be merged
    GATEWAY_REFUSED = "GatewayRefused"  # the API server did not take an object of the gateway
    NETWORK_POLICY_REFUSED = "NetworkPolicyRefused"  # the API server did not take one: workers are open to other pods
    VERIFICATION_FAILED = "VerificationFailed"  # a worker did not answer a real request in its role
    CONTROL_TOKEN_REFUSED = "ControlTokenRefused"  # a worker started with another token than the service's Secret has
    KV_INCOMPATIBLE = "KvIncompatible"  # prefill and decode workers run different images or flags: no KV is exchanged
    CHANGE_NEEDS_ROLLOUT = "ChangeNeedsRollout"  # workers of an older revision stay: rollouts are not built yet
    NATS_UNREACHABLE = "NatsUnreachable"  # workers prefill locally until NATS is back
    OUT_OF_BOUNDS = "OutOfBounds"  # a pool's replicas are outside of the service's minimum and maximum


class PlannerHealth(StrEnum):
    """Why PlannerHealthy is as it is; ``docs/operate/operations.md`` says what to do for each."""

    PLANNING = "Planning"  # it decides
    STALE_METRICS = "StaleMetrics"  # pages of all gateways, or of half of the workers, are too old: nothing is decided
    GATEWAY_UNREADABLE = "GatewayUnreadable"  # its part of the load is not known: it decides on the rest, with care
    PROMETHEUS_UNREACHABLE = "PrometheusUnreachable"  # the policy's source does not answer
    UNKNOWN_TABLE = "UnknownTable"  # performance.table or configMap cannot be used: it goes on with what it learned
    OBJECTIVES_OUT_OF_REACH = "ObjectivesOutOfReach"  # a request that is alone misses one already
    POLICY_NOT_FOUND = "PolicyNotFound"  # spec.policyRef names a policy that is not there: nothing is planned
    POLICY_UNREADABLE = "PolicyUnreadable"  # a newer version wrote the policy: nothing is planned
    EVALUATION_FAILED = "EvaluationFailed"  # an evaluation ended in an error of the planner: nothing is decided


class Condition(ApiModel):
    """A condition (metav1.Condition)."""

    type: str = Field(min_length=1, max_length=64, description="Type of the condition.")
    status: ConditionStatus = Field(description="True, False, or Unknown if the state could not be read.")
    reason: str = Field(min_length=1, max_length=128, pattern="^[A-Za-z]+$", description="Machine-readable reason.")
    message: Annotated[str, AfterValidator(mask_credentials)] = Field(
        default="", max_length=4096, description="Human-readable message."
    )
    last_transition_time: datetime = Field(description="Time of the last change of the status.")
    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec that this status describes.")


def end_condition(
    *, completed: bool, reason: str | None, message: str | None, now: datetime, generation: int = 0
) -> Condition:
    """What ``kubectl wait`` looks for when something ran to its end: Complete or Failed, as batch/v1 Jobs say it."""
    kind = "Complete" if completed else "Failed"
    return Condition(
        type=kind,
        status=ConditionStatus.TRUE,
        reason=reason or kind,
        message=message or "",
        last_transition_time=now.replace(microsecond=0),
        observed_generation=generation,
    )


def with_condition(
    conditions: Iterable[Condition],
    condition_type: str,
    status: ConditionStatus,
    reason: Reason,
    message: str,
    *,
    generation: int,
    now: datetime,
) -> tuple[Condition, ...]:
    """``conditions`` with this one set, in its old place or at the end. The time moves only when the status does."""
    existing = tuple(conditions)
    before = next((condition for condition in existing if condition.type == condition_type), None)
    after = Condition(
        type=condition_type,
        status=status,
        reason=reason,
        message=message[: Condition.model_fields["message"].metadata[0].max_length],
        last_transition_time=(
            before.last_transition_time if before and before.status == status else now.replace(microsecond=0)
        ),
        observed_generation=generation,
    )
    if before is None:
        return (*existing, after)
    return tuple(after if condition.type == condition_type else condition for condition in existing)
