"""Settings of one elastic instance, from the environment the operator renders (``POINTSMAN_*``, ``POD_IP``)."""

from typing import Literal

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from pointsman.api.protocol import names
from pointsman.process.settings import ProcessSettings


class InstanceSettings(ProcessSettings):
    """One elastic instance: a model replica that its group's manager tells what to compute."""

    model_config = SettingsConfigDict(cli_prog_name="python -m pointsman.workers.elastic.instance")

    worker: str = Field(description="Name of the pod.")
    pod_ip: str = Field(
        default="127.0.0.1",
        validation_alias=AliasChoices("pod_ip", names.ENV_POD_IP),
        description="The pod's own address: the only one at which other instances reach it.",
    )
    bind_host: str = Field(default="0.0.0.0", description="Where the manager and the kubelet reach this process.")
    bind_port: int = Field(default=names.ENGINE_PORT, ge=0, le=65535, description="Port of the same; 0: any free one.")
    model: str = Field(description="Folder with config.json and safetensors files.")
    dtype: Literal["float32", "bfloat16"] = Field(default="bfloat16", description="Type of weights and KV.")
    gpus: int = Field(default=0, ge=0, le=1, description="0: computes on CPU.")
    slots: int = Field(ge=1, description="Tokens of KV that this instance keeps.")
    threads: int = Field(default=1, ge=1, description="Of torch, on CPU.")
    control_token: SecretStr = Field(min_length=16)

    @property
    def log_fields(self) -> dict[str, str]:
        """See ProcessSettings."""
        return {"worker": self.worker}
