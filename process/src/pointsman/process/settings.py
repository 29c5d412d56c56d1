"""What a process is told when it starts: environment ``POINTSMAN_*``, or the flag of the same name."""

import inspect
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as ArgumentError

from pointsman.api.credentials import mask_credentials
from pointsman.api.protocol.names import METRICS_PORT
from pointsman.process.errors import BadSettings

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(lambda level: level.lower() if isinstance(level, str) else level),
]
LogFormat = Literal["text", "json"]


class ProcessSettings(BaseSettings):
    """One field a setting; ``POINTSMAN_BIND_PORT`` and ``--bind-port`` set ``bind_port``.

    A process adds its fields, and its name: ``model_config = SettingsConfigDict(cli_prog_name="python -m …")``.
    """

    model_config = SettingsConfigDict(
        env_prefix="POINTSMAN_",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        frozen=True,
        extra="ignore",
        populate_by_name=True,
    )

    log_level: LogLevel = Field(default="info", description="Pointsman's own records from this level on.")
    log_format: LogFormat = Field(
        default="json", description="Format of the logs, with one line per record: text or JSON."
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """``--help`` shows the docstring, without its indentation."""
        if cls.__doc__:
            cls.__doc__ = inspect.cleandoc(cls.__doc__)

    @property
    def log_fields(self) -> dict[str, str]:
        """What every record of this process says about it."""
        return {}

    @classmethod
    def read(cls, arguments: Sequence[str] | None = None) -> Self:
        """Settings from the flags in ``arguments`` (None: it takes none) and from the environment.

        Raises BadSettings with a line for each setting that is missing or wrong; a secret's value is never in it.
        """
        try:
            if arguments is None:
                return cls()
            return cls(_cli_parse_args=list(arguments), _cli_exit_on_error=False)
        except ValidationError as error:
            problems = [cls._sentence(dict(problem)) for problem in error.errors(include_url=False)]
            raise BadSettings("\n  ".join(["cannot start as it is set:", *problems])) from None
        except ArgumentError as error:
            raise BadSettings(str(error)) from None

    @classmethod
    def _sentence(cls, problem: dict[str, Any]) -> str:
        said = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            return str(said)  # a rule between settings; its input is all of them, with their secrets
        name = ".".join(str(part) for part in problem["loc"])
        field = cls.model_fields.get(name)
        if field is None:
            return f"{name}: {said}"  # an alias is written as the environment has it
        secret = SecretStr in (field.annotation, *get_args(field.annotation))
        got = "" if secret or problem["type"] == "missing" else f" (got {problem['input']!r})"
        return mask_credentials(f"{cls.model_config['env_prefix']}{name.upper()}: {said}{got}")


class LeaderSettings(ProcessSettings):
    """Of a process of the control plane, of which one leads and others stand by."""

    log_format: LogFormat = Field(
        default="text", description="Format of the logs, with one line per record: text or JSON."
    )
    namespace: str = Field(description="Where this process runs; its Lease is there.")
    identity: str = Field(
        validation_alias=AliasChoices("POINTSMAN_POD_NAME", "HOSTNAME", "identity"),
        description="Holder of the Lease: the pod's name.",
    )
    lease_name: str = Field(description="Name of the Lease.")
    lease_seconds: float = Field(default=15.0, gt=1, description="How long a Lease lasts without renewal.")
    watch_namespace: str = Field(default="", description="The one namespace to work in; empty: all of them.")
    bind_host: str = Field(default="0.0.0.0", description="Where /healthz, /readyz and /metrics are served.")
    bind_port: int = Field(default=METRICS_PORT, ge=0, le=65535, description="Port of the same; 0: any free one.")
