"""A pod template, typed only as far as the API server must see it: of workers, and of an elastic group's instances."""

from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from pointsman.api.schema.rules import LIST_BY_NAME, Rule, cel_string, extra
from pointsman.api.schema.structural import INT_OR_STRING
from pointsman.api.v1alpha1.engine_flags import ENGINE_CONTAINER, OWNED_ENVIRONMENT_PATTERN
from pointsman.api.v1alpha1.resource import ApiModel
from pointsman.api.v1alpha1.worker_environment import SETTABLE_ENVIRONMENT_PATTERN

MAX_CONTAINERS: Final = 8
MAX_ENVIRONMENT: Final = 128
_MAX_ARGUMENTS: Final = 128

Argument = Annotated[str, Field(max_length=4096)]

GPU_RESOURCE: Final = "nvidia.com/gpu"
_GPU_FIELD: Final = "nvidia__dot__com__slash__gpu"  # as CEL names it
_GPUS_WRITTEN: Final = " || ".join(
    f"(has(self.resources.{kind}) && has(self.resources.{kind}.{_GPU_FIELD}))" for kind in ("limits", "requests")
)

_ENGINE = cel_string(ENGINE_CONTAINER)
_OWNED_NAME = f"e.name.matches({cel_string(OWNED_ENVIRONMENT_PATTERN)})"
_OWNED_NAME_OF_WORKER = f"{_OWNED_NAME} && !e.name.matches({cel_string(SETTABLE_ENVIRONMENT_PATTERN)})"


def owned_environment(container: str, owned_name: str, advice: str = "leave it out") -> Rule:
    """Variables of ``container`` that Pointsman sets are refused. ``owned_name`` is CEL about the variable ``e``."""
    return Rule(
        f"self.name != {cel_string(container)} || !has(self.env) || !self.env.exists(e, {owned_name})",
        f"{{self.env.filter(e, {owned_name}).map(e, e.name)}} of container '{container}' is set by Pointsman; {advice}",
        field_path=".env",
    )


def no_service_links(service: str, variable: str, process: str) -> Rule:
    """Variables of a Service named ``service`` would stop ``process``."""
    return Rule(
        "!has(self.enableServiceLinks) || !self.enableServiceLinks",
        f"enableServiceLinks is true, but must be false: for a Service named {service}, Kubernetes would set "
        f"{variable}, which stops the {process}; leave the field out",
        field_path=".enableServiceLinks",
    )


DERIVED_GRACE_PERIOD: Final = Rule(
    "!has(self.terminationGracePeriodSeconds)",
    "terminationGracePeriodSeconds is {self.terminationGracePeriodSeconds}: "
    "Pointsman derives it from the drain; set spec.drain.timeoutSeconds instead",
    field_path=".terminationGracePeriodSeconds",
)


def _container_rules(arguments: str, owned_name: str) -> tuple[Rule, ...]:
    """Of a container in a template: ``arguments`` says where flags of the engine go, ``owned_name`` is CEL about the
    variable ``e``.
    """
    return (
        Rule(
            f"!has(self.resources) || !({_GPUS_WRITTEN})",
            f"{GPU_RESOURCE} of container '{{self.name}}' is not counted by budgets: leave it out, and write the "
            "gpus of the worker, the encode worker or the instance",
            field_path=".resources",
        ),
        Rule(
            f"self.name != {_ENGINE} || !has(self.command)",
            "the command of container 'engine' is Pointsman's: leave it out; "
            "another program comes with spec.engine.image",
            field_path=".command",
        ),
        Rule(
            f"self.name != {_ENGINE} || !has(self.args)",
            f"args of container 'engine' are Pointsman's: move {{self.args}} to {arguments}",
            field_path=".args",
        ),
        owned_environment(ENGINE_CONTAINER, owned_name),
    )


def own_keys_only(field: str) -> Rule:
    """The map ``field`` has no key of Pointsman's."""
    return Rule(
        f"!has(self.{field}) || self.{field}.all(k, !k.startsWith('pointsman.dev/'))",
        f"{{self.{field}.filter(k, k.startsWith('pointsman.dev/'))}} belongs to Pointsman; use a prefix of your own",
        field_path=f".{field}",
    )


class PassedThrough(ApiModel):
    """Fields not named here are kept as they are and validated by the API server when the pod is made."""

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True)

    def as_written(self) -> dict[str, Any]:
        """Exactly the fields the user wrote."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class TemplateEnvironment(PassedThrough):
    """One environment variable."""

    name: str = Field(min_length=1, max_length=256)


class TemplateAmounts(PassedThrough):
    """Amounts of resources by name. GPUs are listed only to be refused with a message."""

    gpus: Any = Field(default=None, alias=GPU_RESOURCE, json_schema_extra=extra(schema={INT_OR_STRING: True}))


class TemplateResources(PassedThrough):
    """Resource requests and limits of a container."""

    limits: TemplateAmounts | None = None
    requests: TemplateAmounts | None = None


class TemplateContainer(PassedThrough):
    """One container. The container named engine runs the engine; others are sidecars."""

    name: str = Field(min_length=1, max_length=63)
    command: tuple[Argument, ...] | None = Field(default=None, max_length=_MAX_ARGUMENTS)
    args: tuple[Argument, ...] | None = Field(default=None, max_length=_MAX_ARGUMENTS)
    env: tuple[TemplateEnvironment, ...] | None = Field(
        default=None,
        max_length=MAX_ENVIRONMENT,
        json_schema_extra=extra(schema=LIST_BY_NAME),
    )
    resources: TemplateResources | None = None

    model_config = ConfigDict(
        json_schema_extra=extra(
            *_container_rules("spec.engine.args, or to spec.encode.args for an encode worker", _OWNED_NAME_OF_WORKER)
        )
    )


class InstanceContainer(TemplateContainer):
    """One container of an elastic group's instance. The container named engine runs the engine; others are sidecars."""

    model_config = ConfigDict(json_schema_extra=extra(*_container_rules("spec.engine.args", _OWNED_NAME)))


class TemplateSpec(PassedThrough):
    """The pod's spec."""

    containers: tuple[TemplateContainer, ...] | None = Field(
        default=None,
        max_length=MAX_CONTAINERS,
        description="Containers, merged by name. The container named engine runs the engine; others are sidecars.",
        json_schema_extra=extra(schema=LIST_BY_NAME),
    )
    restart_policy: str | None = Field(default=None, max_length=16)
    enable_service_links: bool | None = None
    termination_grace_period_seconds: int | None = None

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                "!has(self.restartPolicy) || self.restartPolicy == 'Always'",
                "restartPolicy is {self.restartPolicy}: workers are always restarted; leave it out",
                field_path=".restartPolicy",
            ),
            no_service_links("vllm", "VLLM_PORT", "engine"),
            DERIVED_GRACE_PERIOD,
        )
    )


class InstanceTemplateSpec(TemplateSpec):
    """The pod's spec."""

    containers: tuple[InstanceContainer, ...] | None = Field(
        default=None,
        max_length=MAX_CONTAINERS,
        description="Containers, merged by name. The container named engine runs the engine; others are sidecars.",
        json_schema_extra=extra(schema=LIST_BY_NAME),
    )


class TemplateMetadata(PassedThrough):
    """Labels and annotations of the pods."""

    labels: dict[str, Annotated[str, Field(max_length=63)]] | None = Field(default=None, max_length=64)
    annotations: dict[str, Annotated[str, Field(max_length=4096)]] | None = Field(default=None, max_length=64)

    model_config = ConfigDict(json_schema_extra=extra(own_keys_only("labels"), own_keys_only("annotations")))


class PodTemplate(PassedThrough):
    """A pod template, merged into the worker's pod as ``kubectl patch --type strategic`` would."""

    metadata: TemplateMetadata | None = Field(default=None, description="Labels and annotations of the worker pods.")
    spec: TemplateSpec | None = Field(
        default=None, description="Fields of the worker pods' spec, e.g. nodeSelector, tolerations, resources."
    )


class InstanceTemplate(PodTemplate):
    """A pod template, merged into an instance's pod as ``kubectl patch --type strategic`` would."""

    spec: InstanceTemplateSpec | None = Field(
        default=None, description="Fields of the instances' spec, e.g. nodeSelector, tolerations, resources."
    )
