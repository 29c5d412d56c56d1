"""What every kind is made of: the models' base, metadata as far as we read it, and how a kind is presented."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pointsman.api.protocol.names import API_VERSION
from pointsman.api.schema.rules import Rule, cel_string

CATEGORY: Final = "pointsman"

# A service's name goes into names of Services (RFC 1035: a letter first) with a suffix, and into pod names.
MAX_SERVICE_NAME_LENGTH: Final = 40
SERVICE_NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
SERVICE_NAME_RULES: Final = (
    Rule(
        f"self.metadata.name.size() <= {MAX_SERVICE_NAME_LENGTH}",
        "metadata.name is '{self.metadata.name}' ({self.metadata.name.size()} characters); "
        f"write at most {MAX_SERVICE_NAME_LENGTH}, because it goes into names of pods",
    ),
    Rule(
        f"self.metadata.name.matches({cel_string(SERVICE_NAME_PATTERN)})",
        "metadata.name is '{self.metadata.name}'; write a DNS label that begins with a letter (a-z, 0-9, -), "
        "because it goes into names of Services",
    ),
)
"""Of kinds whose objects have a gateway of their own."""

LOWER_LIMIT: Final = "Lower limit of replicas, also for plans, autoscalers and kubectl scale."
UPPER_LIMIT: Final = "Upper limit of replicas, also for plans, autoscalers and kubectl scale."

REPLICA_RULES: Final = (
    Rule(
        "self.minReplicas <= self.maxReplicas",
        "minReplicas {self.minReplicas} is above maxReplicas {self.maxReplicas}; "
        "write minReplicas <= replicas <= maxReplicas",
        field_path=".minReplicas",
    ),
    Rule(
        "self.minReplicas > self.maxReplicas || "
        "(self.minReplicas <= self.replicas && self.replicas <= self.maxReplicas)",
        "replicas is {self.replicas}; write a number from minReplicas {self.minReplicas} "
        "to maxReplicas {self.maxReplicas}",
        field_path=".replicas",
    ),
)
"""Of fields replicas, minReplicas and maxReplicas."""


class ApiModel(BaseModel):
    """Base of all models: camelCase names, frozen, and unknown fields ignored so that a newer CRD never stops an older
    operator. Files that people write are read strictly instead: see ``pointsman.api.v1alpha1.strict``."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    def manifest(self) -> dict[str, Any]:
        """As the API server takes it: camelCase, None left out (absent = unknown or not set)."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class OwnerReference(ApiModel):
    """One entry of ``metadata.ownerReferences``."""

    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(ApiModel):
    """``metadata`` as far as Pointsman reads it."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class LocalReference(ApiModel):
    """The name of an object in the same namespace."""

    name: str = Field(min_length=1, max_length=253, description="Name of the object, in the same namespace.")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of ``kubectl get``; ``wide`` ones only with ``-o wide``."""

    name: str
    json_path: str
    type: Literal["string", "integer", "number", "boolean", "date"] = "string"
    wide: bool = False
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """JSON paths of the ``/scale`` subresource."""

    spec_replicas: str
    status_replicas: str
    label_selector: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a kind is named and shown. ``rules`` are those of the whole object (they may read ``metadata.name``)."""

    kind: str
    plural: str
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...] = ()
    status: bool = True
    scale: Scale | None = None
    description: str = field(default="")


class Resource(ApiModel):
    """Base of the kinds: the envelope. A kind adds ``spec`` and, where it has one, ``status``."""

    resource: ClassVar[Kind]

    api_version: str = API_VERSION
    kind: str
    metadata: ObjectMeta
