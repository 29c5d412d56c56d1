"""What the operator's process is told when it starts: environment ``POINTSMAN_*``, or the flag of the same name."""

import ssl
from typing import Any, Literal

from pydantic import Field, Json, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from pointsman.operator.core.install import Install, Network
from pointsman.operator.core.nats_credentials import NatsCredentials
from pointsman.process.settings import LeaderSettings


class OperatorSettings(LeaderSettings):
    """One field a setting; ``POINTSMAN_WORKER_IMAGE`` and ``--worker-image`` set ``worker_image``."""

    model_config = SettingsConfigDict(cli_prog_name="python -m pointsman.operator")

    lease_name: str = Field(default="pointsman-operator", description="Name of the Lease.")

    worker_image: str = Field(description="Image of worker pods where spec.engine.image is not set.")
    gateway_image: str = Field(description="Image of gateway pods.")
    image_pull_secrets: str = Field(
        default="",
        description="Names of pull secrets, separated by commas; they must exist in the services' namespaces.",
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="Pull policy of worker and gateway images."
    )
    gateway_linger_seconds: int = Field(
        default=5,
        ge=0,
        le=300,
        description=(
            "Time during which a deleted gateway still accepts requests, because Services route to it for a while."
        ),
    )
    pod_bind_host: str = Field(
        default="0.0.0.0",
        description="Address on which servers in pods listen. $(POD_IP) if pods share the network of their host.",
    )
    nats_url: str = Field(description="nats://host:port of the NATS server that workers and gateways use.")
    nats_user: str = Field(
        default="", description="Its user; without a service key it is copied into each service's Secret."
    )
    nats_password: SecretStr = Field(default=SecretStr(""), description="Its password; copied likewise.")
    nats_service_key: SecretStr | None = Field(
        default=None,
        min_length=32,
        description="Key of the services' own logins. The chart's NATS server has the same; another server needs none.",
    )
    nats_ca_certificate: str = Field(
        default="",
        description="Certificate of the authority of a tls:// server, PEM; empty: public authorities. Copied likewise.",
    )

    network_policies: bool = Field(
        default=False,
        description="Whether each service gets NetworkPolicies that deny other pods access to its workers.",
    )
    controller_pods: Json[dict[str, Any]] | None = Field(
        default=None,
        description="Label selector, as JSON, of the pods of operator and planner in the operator's namespace.",
    )
    metrics_from: Json[list[dict[str, Any]]] | None = Field(
        default=None, description="NetworkPolicyPeers, as a JSON list, that may read the metrics of workers."
    )

    reconcile_workers: int = Field(default=8, ge=1, le=64, description="Services reconciled at the same time.")
    resync_seconds: float = Field(
        default=300.0, gt=0, description="Interval at which every service is reconciled, changed or not."
    )
    survey_seconds: float = Field(
        default=20.0,
        gt=0,
        description="Interval at which one worker of each service is polled for its connection to NATS.",
    )

    @field_validator("nats_ca_certificate")
    @classmethod
    def _is_a_certificate(cls, certificate: str) -> str:
        try:
            ssl.create_default_context(cadata=certificate or None)
        except (ssl.SSLError, TypeError) as error:
            raise ValueError(f"not a certificate in PEM: {error}") from None
        return certificate

    @model_validator(mode="after")
    def _knows_its_own_pods(self) -> "OperatorSettings":
        if self.network_policies and not self.controller_pods:
            raise ValueError("controller_pods is empty: with network_policies the operator would not reach the workers")
        return self

    def _network(self) -> Network | None:
        if not self.network_policies or self.controller_pods is None:
            return None
        namespace = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        controllers = {"namespaceSelector": namespace, "podSelector": self.controller_pods}
        return Network(controllers=controllers, metrics_from=tuple(self.metrics_from or ()))

    def nats_credentials(self) -> NatsCredentials:
        """What the operator, and each service, connects to NATS with."""
        key = None if self.nats_service_key is None else self.nats_service_key.get_secret_value()
        password = self.nats_password.get_secret_value()
        return NatsCredentials(self.nats_user, password, key, self.nats_ca_certificate)

    def install(self) -> Install:
        """The part that manifests are rendered with."""
        return Install(
            worker_image=self.worker_image,
            gateway_image=self.gateway_image,
            image_pull_secrets=tuple(name.strip() for name in self.image_pull_secrets.split(",") if name.strip()),
            image_pull_policy=self.image_pull_policy,
            nats_url=self.nats_url,
            nats_authenticates=bool(self.nats_user),
            nats_has_private_ca=bool(self.nats_ca_certificate),
            gateway_linger_seconds=self.gateway_linger_seconds,
            pod_bind_host=self.pod_bind_host,
            log_level=self.log_level,
            network=self._network(),
        )
