"""Marks that several dashboards have."""

from charts.dashboards.grafana import Annotation
from charts.dashboards.queries import changes

PLANS = Annotation(
    "Plans",
    changes("pointsman_planner_plans_total", "reason"),
    "Plan: {{reason}}",
    "The planner wrote a plan because of {{reason}}. Its message: kubectl get pplan",
    "blue",
)
