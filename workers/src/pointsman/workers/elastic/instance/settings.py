"""Settings of one elastic instance, from the environment the operator renders (``POINTSMAN_*``, ``POD_IP``)."""

from typing import Final, Literal

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from pointsman.api.protocol import names
from pointsman.workers.settings import NatsSettings

CPU_SLOTS: Final = 32768


class InstanceSettings(NatsSettings):
    """One elastic instance: a model replica that its group's manager tells what to compute."""

    model_config = SettingsConfigDict(cli_prog_name="python -m pointsman.workers.elastic.instance")

    pod_ip: str = Field(
        default="127.0.0.1",
        validation_alias=AliasChoices("pod_ip", names.ENV_POD_IP),
        description="The pod's own address: the only one at which other instances reach it.",
    )
    bind_host: str = Field(default="0.0.0.0", description="Where the manager and the kubelet reach this process.")
    bind_port: int = Field(default=names.ENGINE_PORT, ge=0, le=65535, description="Port of the same; 0: any free one.")
    model: str = Field(description="Folder with config.json and safetensors files, or a name of the hub.")
    model_revision: str | None = Field(default=None, description="Of a hub's model; none: the hub's default.")
    dtype: Literal["float32", "bfloat16"] = Field(default="bfloat16", description="Type of weights and KV.")
    gpus: int = Field(default=0, ge=0, le=names.MAX_TENSOR_PARALLEL, description="0: computes on CPU.")
    tensor_parallel: int = Field(
        default=1, ge=1, le=names.MAX_TENSOR_PARALLEL, description="GPUs, or processes on CPU, that share the model."
    )
    slots: int | None = Field(
        default=None,
        ge=1,
        description=(
            "KV capacity in tokens. None: as many as fit next to the weights in 90 percent of the GPU's "
            f"memory, {CPU_SLOTS} on CPU."
        ),
    )
    tensor_transport: Literal["auto", "gloo"] = Field(
        default="auto",
        validation_alias=AliasChoices("tensor_transport", names.ENV_TENSOR_TRANSPORT),
        description="How tensors travel to other GPUs. auto: by NCCL where each member of a group has a GPU of its "
        "own. gloo: by way of the host's memory, in all groups with this instance.",
    )
    threads: int = Field(default=1, ge=1, description="Of torch, on CPU.")
    control_token: SecretStr = Field(min_length=16)
    drain_timeout_seconds: float = Field(
        default=300.0, ge=0, description="Longest time to hand over requests before the instance stops."
    )
