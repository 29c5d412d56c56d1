"""What the planner's process is told when it starts: environment ``POINTSMAN_*``, or the flag of the same name."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pointsman.process.settings import LeaderSettings


class PlannerSettings(LeaderSettings):
    """One field a setting; ``POINTSMAN_BIND_PORT`` and ``--bind-port`` set ``bind_port``."""

    model_config = SettingsConfigDict(cli_prog_name="python -m pointsman.planner")

    lease_name: str = Field(default="pointsman-planner", description="Name of the Lease.")
    scrape_timeout_seconds: float = Field(default=2.0, gt=0, le=30, description="Longest wait for one /metrics page.")
    prometheus_timeout_seconds: float = Field(default=5.0, gt=0, le=60, description="Longest wait for Prometheus.")
