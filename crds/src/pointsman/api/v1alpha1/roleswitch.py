"""RoleSwitch: change the role of one live worker. Job-like: made once, carried out once, kept as a record."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.schema.rules import LIST_BY_TYPE, Rule, extra
from pointsman.api.v1alpha1.conditions import Condition, end_condition
from pointsman.api.v1alpha1.resource import ApiModel, Column, Kind, Resource
from pointsman.api.v1alpha1.workerpool import ServiceReference

_ROLES: Final = "', '".join(LANGUAGE_ROLES)
ENCODE_IS_FIXED: Final = (
    "a worker cannot switch to or from the role Encode, because encode workers run only the model's encoder; "
    "change spec.pools.encode.replicas instead"
)
_ROLE_RULES: Final = (
    Rule("self != 'Encode'", ENCODE_IS_FIXED),
    Rule(f"self in ['{_ROLES}', 'Encode']", "'{self}' is no role; write Prefill or Decode"),
)


class SwitchPhase(StrEnum):
    """Where a switch is. The last three are its ends."""

    PENDING = "Pending"  # not begun: it waits for a worker, for another switch, or for its service
    UNROUTING = "Unrouting"  # gateways let go of the worker
    DRAINING = "Draining"  # the worker finishes what it has (drainFirst)
    SWITCHING = "Switching"  # the worker takes its new role
    VERIFYING = "Verifying"  # it answers a real request in the new role
    ROLLING_BACK = "RollingBack"  # it gets its old role back, and proves itself in it
    COMPLETED = "Completed"
    ROLLED_BACK = "RolledBack"  # the worker is back in its old role; no replica was moved
    FAILED = "Failed"  # refused, or the worker was lost on the way and is replaced

    @property
    def ended(self) -> bool:
        """Nothing will happen any more."""
        return self in (SwitchPhase.COMPLETED, SwitchPhase.ROLLED_BACK, SwitchPhase.FAILED)


class SwitchWay(StrEnum):
    """How a role was changed."""

    HOT = "Hot"  # label and worker state; the engine runs on


class SwitchReason(StrEnum):
    """Why a switch is where it is."""

    # on the way
    SERVICE_PAUSED = "ServicePaused"
    WORKER_BUSY = "WorkerBusy"  # another switch holds the worker
    WORKER_NOT_READY = "WorkerNotReady"
    WAITING_FOR_GATEWAYS = "WaitingForGateways"
    DRAINING = "Draining"
    TAKING_ROLE = "TakingRole"
    VERIFYING = "Verifying"

    # done
    SWITCHED = "Switched"

    # refused
    SERVICE_NOT_FOUND = "ServiceNotFound"
    WORKER_NOT_FOUND = "WorkerNotFound"
    WORKER_LEAVING = "WorkerLeaving"
    WRONG_ROLE = "WrongRole"
    BELOW_MINIMUM = "BelowMinimum"
    ABOVE_MAXIMUM = "AboveMaximum"
    PLAN_ENDED = "PlanEnded"  # the plan that made it was superseded or failed before it began
    LAST_ROUTABLE_WORKER = "LastRoutableWorker"
    ROLE_IS_FIXED = "RoleIsFixed"  # to or from Encode
    KV_INCOMPATIBLE = "KvIncompatible"  # no decode worker would be left that may pull the KV of the worker

    # went wrong
    DRAIN_TIMED_OUT = "DrainTimedOut"
    ROLE_TIMED_OUT = "RoleTimedOut"
    VERIFY_FAILED = "VerifyFailed"
    ROLLBACK_FAILED = "RollbackFailed"
    WORKER_LOST = "WorkerLost"
    SERVICE_DELETED = "ServiceDeleted"


class RoleSwitchSpec(ApiModel):
    """The worker and its new role."""

    service_ref: ServiceReference = Field(description="The service, in the same namespace.")
    worker_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="Pod of the worker to switch. Default: the worker with the lowest cost of switching.",
    )
    from_role: Role = Field(
        alias="from",
        description="Present role: Prefill or Decode.",
        json_schema_extra=extra(*_ROLE_RULES, schema={"enum": None, "maxLength": 32}),
    )
    to_role: Role = Field(
        alias="to",
        description="New role: Prefill or Decode.",
        json_schema_extra=extra(*_ROLE_RULES, schema={"enum": None, "maxLength": 32}),
    )
    drain_first: bool = Field(
        default=True,
        description=(
            "Whether the worker finishes its requests before it changes its role. False: it accepts requests "
            "in its new role at once."
        ),
    )
    drain_timeout_seconds: int = Field(
        default=120,
        ge=1,
        le=86400,
        description=(
            "Longest time to finish requests in the old role, in seconds. The switch is then rolled back without loss."
        ),
    )
    reason: str | None = Field(default=None, max_length=1024, description="Reason of the switch, for users and logs.")

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "self.from != self.to",
                "from and to are both {self.to}; a switch goes from one role to the other",
                field_path=".to",
            ),
            Rule("self == oldSelf", "spec cannot be changed; delete this switch and create another one"),
            reserved={"approval": "create the switch when it may happen; leave approval out"},
        )
    )


class PhaseTime(ApiModel):
    """Start of a phase."""

    phase: SwitchPhase
    at: datetime


class RoleSwitchStatus(ApiModel):
    """Phase of the switch, and its worker."""

    phase: SwitchPhase | None = Field(default=None, description="Phase of the switch.")
    worker: str | None = Field(default=None, max_length=63, description="Pod of the worker.")
    worker_uid: str | None = Field(default=None, max_length=64, description="UID of the pod.")
    way: SwitchWay | None = Field(default=None, description="How the role is changed. Hot: without a restart.")
    reason: str | None = Field(
        default=None, max_length=128, pattern="^[A-Za-z]+$", description="Machine-readable reason of the phase."
    )
    message: str | None = Field(default=None, max_length=4096, description="Human-readable message about the phase.")
    phases: tuple[PhaseTime, ...] = Field(default=(), max_length=16, description="Start of each phase, in order.")
    seconds: float | None = Field(default=None, ge=0, description="Seconds from creation to the end of the switch.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=8,
        description="Complete or Failed, as in Jobs, for kubectl wait.",
        json_schema_extra=extra(schema=LIST_BY_TYPE),
    )

    def ended_with(self, now: datetime) -> "RoleSwitchStatus":
        """With its last condition: Complete, or Failed (rolled back counts as failed)."""
        condition = end_condition(
            completed=self.phase is SwitchPhase.COMPLETED,
            reason=self.reason,
            message=self.message,
            now=now,
            generation=1,  # the spec cannot be changed
        )
        return self.model_copy(update={"conditions": (condition,)})


class RoleSwitch(Resource):
    """Change the role of one live worker, in seconds and without a restart."""

    resource: ClassVar[Kind] = Kind(
        kind="RoleSwitch",
        plural="roleswitches",
        short_names=("rsw",),
        columns=(
            Column("Service", ".spec.serviceRef.name"),
            Column("Worker", ".status.worker"),
            Column("From", ".spec.from"),
            Column("To", ".spec.to"),
            Column("Phase", ".status.phase"),
            Column("Seconds", ".status.seconds", "number"),
            Column("Way", ".status.way", wide=True),
            Column("Reason", ".status.reason"),
            Column("Age", ".metadata.creationTimestamp", "date"),
            Column("Message", ".status.message", wide=True),
        ),
    )

    kind: Literal["RoleSwitch"] = "RoleSwitch"
    spec: RoleSwitchSpec
    status: RoleSwitchStatus = RoleSwitchStatus()
