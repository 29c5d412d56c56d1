"""Settings of an elastic group's manager, besides those of every worker, from the environment the operator renders."""

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from pointsman.process.settings import ProcessSettings


class ManagerSettings(ProcessSettings):
    """The manager of one elastic group."""

    model_config = SettingsConfigDict(cli_prog_name="python -m pointsman.workers.elastic.manager")

    instances_file: str | None = Field(
        default=None,
        description="File with the URL of one instance per line, http://host:port; read repeatedly. Unset: instances "
        "are found on NATS.",
    )
    latency_model_file: str = Field(
        default="",
        description="File for the measured times of prefills. A degree that it has is not measured again.",
    )
    max_degree: int = Field(default=4, ge=1, description="Instances that form a group at most.")
    min_degree: int = Field(default=1, ge=1, description="Instances that form a group at least, of those there are.")
    max_prefill_seconds: float = Field(
        default=5.0, gt=0, description="A batch of prompts that takes longer gets no further one (tipping point)."
    )
    control_token: SecretStr = Field(min_length=16)
