"""Settings of the processes beside the chart's NATS server: environment ``POINTSMAN_*``, or flags of the same name."""

import tempfile
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from pointsman.api.protocol.names import METRICS_PORT, NATS_PORT
from pointsman.operator.core.nats_config import ServerLogins
from pointsman.process.settings import ProcessSettings


class NatsServerSettings(ProcessSettings):
    """Of the configuration's writer and of the authorizer."""

    model_config = SettingsConfigDict(cli_prog_name="python -m pointsman.operator.nats_authorizer")

    bind_host: str = Field(
        default="0.0.0.0", description="Address on which NATS and the health server of the authorizer listen."
    )
    bind_port: int = Field(default=METRICS_PORT, ge=0, le=65535, description="Port of the authorizer's health server.")
    nats_port: int = Field(default=NATS_PORT, ge=1, le=65535, description="Port of the NATS server.")
    nats_user: str = Field(description="The shared login of the operator and of pods of earlier versions.")
    nats_password: SecretStr = Field(description="Its password.")
    nats_service_key: SecretStr | None = Field(
        default=None,
        min_length=32,
        description="Key from which the logins of services are derived. Unset: the shared login is the only one.",
    )
    nats_previous_service_key: SecretStr | None = Field(
        default=None, description="The key before a rotation; its logins are accepted too."
    )
    nats_earlier_versions: Literal["accepted", "refused"] = Field(
        default="accepted", description="Whether the shared login is accepted, which pods of earlier versions use."
    )

    @property
    def service_keys(self) -> tuple[str, ...]:
        """The present key first; none if services have no logins of their own."""
        keys = (self.nats_service_key, self.nats_previous_service_key)
        found = tuple(key.get_secret_value() for key in keys if key is not None and key.get_secret_value())
        return found if self.nats_service_key is not None else ()

    @property
    def accepts_earlier_versions(self) -> bool:
        """See ``nats_earlier_versions``; without a key of the services there is only the shared login."""
        return not self.service_keys or self.nats_earlier_versions == "accepted"

    @property
    def own_host(self) -> str:
        """Where the authorizer finds the server of its own pod."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.bind_host, self.bind_host)

    def logins(self) -> ServerLogins:
        """What the server's configuration lists."""
        return ServerLogins(
            shared_user=self.nats_user,
            shared_password=self.nats_password.get_secret_value(),
            service_key=self.service_keys[0] if self.service_keys else None,
            accepts_shared=self.accepts_earlier_versions,
        )


class NatsConfigSettings(NatsServerSettings):
    """Of the configuration's writer."""

    model_config = SettingsConfigDict(cli_prog_name="python -m pointsman.operator.nats_config")

    nats_server_name: str = Field(description="The server's name: its pod's.")
    nats_store: Path | None = Field(default=None, description="Folder of JetStream; none: one for temporary files.")
    nats_max_memory: str = Field(pattern=r"^[0-9]+[KMGT]i?B$", description="Of JetStream, e.g. 256MiB.")
    nats_max_file: str = Field(pattern=r"^[0-9]+[KMGT]i?B$", description="Of JetStream, e.g. 1GiB.")

    @property
    def configuration(self) -> Path:
        """The file to write: the server's container finds it, because the pod's containers share this folder."""
        return Path(tempfile.gettempdir()) / f"nats-{self.nats_server_name}.conf"

    @property
    def store(self) -> Path:
        """Folder of JetStream."""
        return self.nats_store or Path(tempfile.gettempdir()) / "jetstream"
