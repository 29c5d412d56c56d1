"""The planner's own metrics as a scrape has them."""

from prometheus_client import generate_latest

from pointsman.planner.exposition import parse
from pointsman.planner.metrics import PlannerMetrics


def shown(metrics: PlannerMetrics, name: str) -> dict[tuple[str, ...], float]:
    """The values of a family by its labels but for the service's."""
    family = parse(generate_latest(metrics.registry).decode()).get(f"pointsman_planner_{name}", {})
    return {tuple(v for k, v in labels if k not in ("namespace", "service")): value for labels, value in family.items()}
