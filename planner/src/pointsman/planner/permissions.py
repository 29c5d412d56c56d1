"""What the planner may do in a cluster, and does: the chart's ClusterRole is compared with this by a test."""

from typing import Final

from pointsman.api.protocol.names import GROUP
from pointsman.kube.permissions import Rule

CLUSTER_RULES: Final = (
    Rule(
        group=GROUP,
        resources=("llmservices", "elasticgroups", "plannerpolicies", "roleswitches"),
        verbs=("list", "watch"),
    ),
    Rule(group=GROUP, resources=("plans",), verbs=("list", "watch", "create", "delete")),
    Rule(group=GROUP, resources=("llmservices/status", "elasticgroups/status"), verbs=("patch",)),
    Rule(group="", resources=("pods",), verbs=("list", "watch")),
    # Its memory of each service.
    Rule(group="", resources=("configmaps",), verbs=("get", "create", "patch")),
    # Credentials for Prometheus; of other names only those in the chart's planner.prometheusSecrets.
    Rule(group="", resources=("secrets",), verbs=("get",), names=("pointsman-prometheus",)),
    # No patch: each of its Events names a plan, so none is repeated.
    Rule(group="events.k8s.io", resources=("events",), verbs=("create",)),
)
"""In every namespace that is watched."""

LEASE_RULES: Final = (Rule(group="coordination.k8s.io", resources=("leases",), verbs=("get", "create", "update")),)
"""In the planner's own namespace."""
