"""What the node's process is told when it starts: flags, or ``POINTSMAN_NODE_*`` in the environment."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from pointsman.local.node.core.restarts import FIRST_S


class NodeSettings(BaseSettings):
    """One field a setting; ``--pods-directory`` and ``POINTSMAN_NODE_PODS_DIRECTORY`` set ``pods_directory``."""

    model_config = SettingsConfigDict(
        env_prefix="POINTSMAN_NODE_", cli_kebab_case=True, cli_prog_name="python -m pointsman.local.node", frozen=True
    )

    name: str = Field(default="local", description="The Node's name.")
    kubeconfig: Path = Field(description="Kubeconfig of the user system:node:NAME.")
    pods_directory: Path = Field(description="A directory for each pod; the range of pod addresses belongs to it.")
    images: Path = Field(description="The image store's file.")
    authority: Path = Field(description="Certificate of the cluster's authority.")
    serving_certificate: Path = Field(description="For the HTTPS server from which the API server reads logs.")
    serving_key: Path = Field(description="Its key.")
    owner_pid: int | None = Field(default=None, description="When this process ends, all containers do.")
    gpus: int = Field(default=8, ge=0, description="Made-up nvidia.com/gpu capacity.")
    cpus: int = Field(default=64, ge=1, description="Nominal CPU capacity, so large that requests always fit.")
    memory: str = Field(default="256Gi", description="Made-up memory capacity.")
    max_pods: int = Field(default=110, ge=1, le=250, description="Pods at a time.")
    proxy_services: bool = Field(default=False, description="Serve Services at their cluster IPs, from these pods.")
    restart_seconds: float = Field(default=FIRST_S, ge=0, description="First restart back-off; doubles.")
