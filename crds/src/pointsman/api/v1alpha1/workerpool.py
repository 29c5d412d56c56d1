"""WorkerPool: all workers of a service that have one role. Made by the operator; has ``/scale``."""

from typing import ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from pointsman.api.protocol.names import Role
from pointsman.api.schema.rules import LIST_BY_TYPE, Rule, extra
from pointsman.api.v1alpha1.conditions import Condition
from pointsman.api.v1alpha1.counts import PoolCounts
from pointsman.api.v1alpha1.llmservice import MAX_REPLICAS
from pointsman.api.v1alpha1.resource import MAX_SERVICE_NAME_LENGTH, ApiModel, Column, Kind, Resource, Scale

MAX_VICTIMS_SHOWN: Final = 32

_ROLES: Final = "', '".join(Role)


class ServiceReference(ApiModel):
    """The LLMService a pool belongs to, in the same namespace."""

    name: str = Field(min_length=1, max_length=MAX_SERVICE_NAME_LENGTH, description="Name of the LLMService.")


class WorkerPoolSpec(ApiModel):
    """Desired state of one role."""

    service_ref: ServiceReference = Field(
        description="Service of the pool.",
        json_schema_extra=extra(
            Rule(
                "self == oldSelf",
                "serviceRef is {oldSelf.name} and cannot become {self.name}; a pool stays with its service",
            )
        ),
    )
    role: Role = Field(
        description="Role of the workers: Prefill, Decode or Encode.",
        json_schema_extra=extra(
            Rule(f"self in ['{_ROLES}']", "'{self}' is no role; write Prefill, Decode or Encode"),
            Rule(
                "self == oldSelf",
                "role is {oldSelf} and cannot become {self}; scale the service's other pool instead",
            ),
            schema={"enum": None, "maxLength": 32},
        ),
    )
    replicas: int = Field(
        ge=0,
        le=MAX_REPLICAS,
        description="Desired workers. Also written by /scale. Limited by minReplicas and maxReplicas of the service.",
    )

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "self.role == 'Encode' || self.replicas >= 1",
                "replicas is {self.replicas}; write 1 or more (only an Encode pool may be empty)",
                field_path=".replicas",
            )
        )
    )


class VictimStatus(ApiModel):
    """A worker that drains because its pool shrinks, with the numbers of its choice."""

    worker: str = Field(max_length=253, description="Name of the plan.")
    in_flight_tokens: int | None = Field(
        default=None, ge=0, description="Tokens in flight when the worker was chosen. Unset: the worker did not answer."
    )
    cached_blocks: int | None = Field(
        default=None, ge=0, description="Cached KV blocks when the worker was chosen. Unset: unknown."
    )


class WorkerPoolStatus(PoolCounts):
    """The observed state."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="Generation of the spec that this status describes."
    )
    selector: str | None = Field(
        default=None, max_length=1024, description="Label selector of the workers, as /scale shows it to an autoscaler."
    )
    victims: tuple[VictimStatus, ...] | None = Field(
        default=None,
        max_length=MAX_VICTIMS_SHOWN,
        description="Workers that drain because the pool shrinks, in the order of their choice. Unset: none.",
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Ready and Progressing.",
        json_schema_extra=extra(schema=LIST_BY_TYPE),
    )


class WorkerPool(Resource):
    """All workers of one role of a service. Created by the operator; kubectl scale, HPA and KEDA can scale it."""

    resource: ClassVar[Kind] = Kind(
        kind="WorkerPool",
        plural="workerpools",
        short_names=("wpool",),
        columns=(
            Column("Service", ".spec.serviceRef.name"),
            Column("Role", ".spec.role"),
            Column("Desired", ".spec.replicas", "integer"),
            Column("Existing", ".status.existing", "integer"),
            Column("Ready", ".status.ready", "integer"),
            Column("Routable", ".status.routable", "integer"),
            Column("Draining", ".status.draining", "integer", wide=True),
            Column("Starting", ".status.starting", "integer", wide=True),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
        rules=(
            Rule(
                "self.metadata.name == self.spec.serviceRef.name + '-' + self.spec.role.lowerAscii()",
                "metadata.name is {self.metadata.name}; the {self.spec.role} pool of service "
                "{self.spec.serviceRef.name} is named {self.spec.serviceRef.name}-{self.spec.role.lowerAscii()}, "
                "and the operator makes it",
            ),
        ),
        scale=Scale(".spec.replicas", ".status.existing", ".status.selector"),
    )

    kind: Literal["WorkerPool"] = "WorkerPool"
    spec: WorkerPoolSpec
    status: WorkerPoolStatus = WorkerPoolStatus()
