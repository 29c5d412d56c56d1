"""What the operator's process is told when it starts: environment ``POINTSMAN_*``, or the flag of the same name."""

from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as ArgumentError

from pointsman.api.protocol.names import METRICS_PORT
from pointsman.operator.core.install import Install
from pointsman.operator.errors import SettingsError


class OperatorSettings(BaseSettings):
    """One field a setting; ``POINTSMAN_WORKER_IMAGE`` and ``--worker-image`` set ``worker_image``."""

    model_config = SettingsConfigDict(
        env_prefix="POINTSMAN_",
        cli_kebab_case=True,
        cli_prog_name="python -m pointsman.operator",
        frozen=True,
        extra="ignore",
        populate_by_name=True,
    )

    namespace: str = Field(description="Where the operator runs; its Lease is there.")
    identity: str = Field(
        validation_alias=AliasChoices("POINTSMAN_POD_NAME", "HOSTNAME", "identity"),
        description="Who holds the Lease: the pod's name.",
    )
    lease_name: str = Field(default="pointsman-operator", description="Name of the Lease.")
    watch_namespace: str = Field(default="", description="The one namespace to work in; empty: all of them.")
    bind_host: str = Field(default="0.0.0.0", description="Where /healthz, /readyz and /metrics are served.")
    bind_port: int = Field(default=METRICS_PORT, ge=0, le=65535, description="Port of the same; 0: any free one.")

    worker_image: str = Field(description="Image of worker pods where spec.engine.image is not set.")
    gateway_image: str = Field(description="Image of gateway pods.")
    image_pull_secrets: str = Field(
        default="",
        description="Names of pull secrets, separated by commas; they must exist in the services' namespaces.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="Pull policy of worker and gateway images."
    )
    gateway_cluster_role: str = Field(
        default="pointsman-gateway", description="ClusterRole of the chart that gateways are bound to."
    )
    pod_bind_host: str = Field(
        default="0.0.0.0",
        description="What servers in pods listen on; $(POD_IP) where pods share the network of their host.",
    )
    nats_url: str = Field(description="nats://host:port of the NATS server that workers and gateways use.")
    nats_user: str = Field(default="", description="Its user; copied into each service's Secret.")
    nats_password: SecretStr = Field(default=SecretStr(""), description="Its password; copied likewise.")

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Level of the log.")
    log_format: Literal["text", "json"] = Field(default="text", description="One line a record, as text or as JSON.")
    reconcile_workers: int = Field(default=8, ge=1, le=64, description="Services reconciled at the same time.")
    resync_seconds: float = Field(
        default=300.0, gt=0, description="Every service is looked at this often, changed or not."
    )
    survey_seconds: float = Field(
        default=20.0, gt=0, description="One worker of each service is asked this often whether it reaches NATS."
    )
    lease_seconds: float = Field(default=15.0, gt=1, description="How long a Lease lasts without renewal.")

    @classmethod
    def read(cls, arguments: list[str]) -> "OperatorSettings":
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

    def install(self) -> Install:
        """The part that manifests are rendered with."""
        return Install(
            worker_image=self.worker_image,
            gateway_image=self.gateway_image,
            image_pull_secrets=tuple(name.strip() for name in self.image_pull_secrets.split(",") if name.strip()),
            image_pull_policy=self.image_pull_policy,
            gateway_cluster_role=self.gateway_cluster_role,
            nats_url=self.nats_url,
            nats_authenticates=bool(self.nats_user),
            pod_bind_host=self.pod_bind_host,
            log_level=self.log_level,
        )
