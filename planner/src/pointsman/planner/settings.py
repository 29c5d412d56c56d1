"""What the planner's process is told when it starts: environment ``POINTSMAN_*``, or the flag of the same name."""

from typing import Literal

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as ArgumentError

from pointsman.api.protocol.names import METRICS_PORT
from pointsman.planner.errors import SettingsError


class PlannerSettings(BaseSettings):
    """One field a setting; ``POINTSMAN_BIND_PORT`` and ``--bind-port`` set ``bind_port``."""

    model_config = SettingsConfigDict(
        env_prefix="POINTSMAN_",
        cli_kebab_case=True,
        cli_prog_name="python -m pointsman.planner",
        frozen=True,
        extra="ignore",
        populate_by_name=True,
    )

    namespace: str = Field(description="Where the planner runs; its Lease is there.")
    identity: str = Field(
        validation_alias=AliasChoices("POINTSMAN_POD_NAME", "HOSTNAME", "identity"),
        description="Who holds the Lease: the pod's name.",
    )
    lease_name: str = Field(default="pointsman-planner", description="Name of the Lease.")
    lease_seconds: float = Field(default=15.0, gt=1, description="How long a Lease lasts without renewal.")
    watch_namespace: str = Field(default="", description="The one namespace to plan for; empty: all of them.")
    bind_host: str = Field(default="0.0.0.0", description="Where /healthz, /readyz and /metrics are served.")
    bind_port: int = Field(default=METRICS_PORT, ge=0, le=65535, description="Port of the same; 0: any free one.")
    scrape_timeout_seconds: float = Field(default=2.0, gt=0, le=30, description="Longest wait for one /metrics page.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Level of the log.")
    log_format: Literal["text", "json"] = Field(default="text", description="One line a record, as text or as JSON.")

    @classmethod
    def read(cls, arguments: list[str]) -> "PlannerSettings":
        """Settings from flags and environment. Raises SettingsError naming each setting that is missing or wrong."""
        try:
            return cls(_cli_parse_args=arguments, _cli_exit_on_error=False)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()
            )
            raise SettingsError(f"settings (POINTSMAN_* or flags): {problems}") from None
        except ArgumentError as error:
            raise SettingsError(str(error)) from None
