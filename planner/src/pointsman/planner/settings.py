"""What the planner's process is told when it starts: environment ``POINTSMAN_*``, or the flag of the same name."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from pointsman.process.settings import LeaderSettings


class PlannerSettings(LeaderSettings):
    """Plan for every LLMService that names a PlannerPolicy, in the cluster of KUBECONFIG, ~/.kube/config or the pod's.

    Each setting is a flag or, named alike, an environment variable: --bind-port or POINTSMAN_BIND_PORT.

    example:
      python -m pointsman.planner --namespace pointsman-system --identity planner-1 --bind-port 0
    """

    model_config = SettingsConfigDict(cli_prog_name="python -m pointsman.planner")

    lease_name: str = Field(default="pointsman-planner", description="Name of the Lease.")
    scrape_timeout_seconds: float = Field(default=2.0, gt=0, le=30, description="Longest wait for one /metrics page.")
    prometheus_timeout_seconds: float = Field(default=5.0, gt=0, le=60, description="Longest wait for Prometheus.")
    prometheus_urls: str = Field(
        default="",
        description="Addresses that metrics.prometheusUrl of a policy may name, separated by commas. Empty: any.",
    )

    def allowed_prometheus_urls(self) -> tuple[str, ...]:
        """The addresses one by one."""
        return tuple(url.strip() for url in self.prometheus_urls.split(",") if url.strip())
