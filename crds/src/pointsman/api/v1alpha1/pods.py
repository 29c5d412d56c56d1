"""``spec.worker.template``: a pod template, typed only as far as the API server must see it."""

from typing import Any, Final

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from pointsman.api.schema.rules import Rule, cel_string, extra
from pointsman.api.v1alpha1.engine_flags import ENGINE_CONTAINER, OWNED_ENVIRONMENT_PATTERN
from pointsman.api.v1alpha1.resource import ApiModel

_MAX_CONTAINERS: Final = 8
_MAX_ENVIRONMENT: Final = 128
_MAX_ARGUMENTS: Final = 128

_ENGINE = cel_string(ENGINE_CONTAINER)
_OWNED_NAME = f"e.name.matches({cel_string(OWNED_ENVIRONMENT_PATTERN)})"


class PassedThrough(ApiModel):
    """Fields not named here are kept as they are and validated by the API server when the pod is made."""

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True)


class TemplateEnvironment(PassedThrough):
    """One environment variable."""

    name: str = Field(min_length=1, max_length=256)


class TemplateContainer(PassedThrough):
    """One container. The one named ``engine`` is the engine's; others run beside it."""

    name: str = Field(min_length=1, max_length=63)
    command: tuple[str, ...] | None = Field(default=None, max_length=_MAX_ARGUMENTS)
    args: tuple[str, ...] | None = Field(default=None, max_length=_MAX_ARGUMENTS)
    env: tuple[TemplateEnvironment, ...] | None = Field(
        default=None,
        max_length=_MAX_ENVIRONMENT,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )


class TemplateSpec(PassedThrough):
    """The pod's spec."""

    containers: tuple[TemplateContainer, ...] | None = Field(
        default=None,
        max_length=_MAX_CONTAINERS,
        description="Containers, merged by name: the one named engine is the engine's, others run beside it.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    restart_policy: str | None = Field(default=None, max_length=16)
    enable_service_links: bool | None = None
    termination_grace_period_seconds: int | None = None

    model_config = ConfigDict(
        json_schema_extra=extra(
            Rule(
                f"!has(self.containers) || self.containers.all(c, c.name != {_ENGINE} || !has(c.command))",
                message="the command of container 'engine' is Pointsman's: leave it out; "
                "another program comes with spec.engine.image",
                field_path=".containers",
            ),
            Rule(
                f"!has(self.containers) || self.containers.all(c, c.name != {_ENGINE} || !has(c.args))",
                message_expression="'args of container \\'engine\\' are Pointsman\\'s: move ' + "
                f"self.containers.filter(c, c.name == {_ENGINE} && has(c.args))[0].args.join(' ') + "
                "' to spec.engine.args'",
                field_path=".containers",
            ),
            Rule(
                f"!has(self.containers) || self.containers.all(c, c.name != {_ENGINE} || !has(c.env) || "
                f"!c.env.exists(e, {_OWNED_NAME}))",
                message_expression="'environment of container \\'engine\\': ' + "
                f"self.containers.filter(c, c.name == {_ENGINE})[0].env.filter(e, {_OWNED_NAME})"
                ".map(e, e.name).join(', ') + ' is set by Pointsman; leave it out'",
                field_path=".containers",
            ),
            Rule(
                "!has(self.restartPolicy) || self.restartPolicy == 'Always'",
                message_expression="'restartPolicy is ' + self.restartPolicy + "
                "': workers are always restarted; leave it out'",
                field_path=".restartPolicy",
            ),
            Rule(
                "!has(self.enableServiceLinks) || !self.enableServiceLinks",
                message="enableServiceLinks is true: a Service named vllm would set VLLM_PORT and stop the engine; "
                "leave it out",
                field_path=".enableServiceLinks",
            ),
            Rule(
                "!has(self.terminationGracePeriodSeconds)",
                message_expression="'terminationGracePeriodSeconds is ' + "
                "string(self.terminationGracePeriodSeconds) + "
                "': Pointsman derives it from the drain; set spec.drain.timeoutSeconds instead'",
                field_path=".terminationGracePeriodSeconds",
            ),
        )
    )


class TemplateMetadata(PassedThrough):
    """Labels and annotations of the pods."""

    labels: dict[str, str] | None = Field(default=None, max_length=64)
    annotations: dict[str, str] | None = Field(default=None, max_length=64)

    model_config = ConfigDict(
        json_schema_extra=extra(
            *(
                Rule(
                    f"!has(self.{field}) || self.{field}.all(k, !k.startsWith('pointsman.dev/'))",
                    message_expression=f"'{field}: ' + self.{field}.filter(k, k.startsWith('pointsman.dev/'))"
                    ".map(k, k).join(', ') + ' belongs to Pointsman; use a prefix of your own'",
                    field_path=f".{field}",
                )
                for field in ("labels", "annotations")
            )
        )
    )


class PodTemplate(PassedThrough):
    """A pod template, merged into the worker's pod as ``kubectl patch --type strategic`` would."""

    metadata: TemplateMetadata | None = Field(default=None, description="Labels and annotations of the worker pods.")
    spec: TemplateSpec | None = Field(
        default=None, description="Fields of the worker pods' spec, e.g. nodeSelector, tolerations, resources."
    )

    def as_written(self) -> dict[str, Any]:
        """The template with exactly the fields the user wrote."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)
