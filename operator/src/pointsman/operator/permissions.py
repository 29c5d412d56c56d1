"""What the operator may do in a cluster, and does: the chart's ClusterRole is compared with this by a test."""

from typing import Final

from pointsman.api.protocol.names import GROUP
from pointsman.kube.permissions import Rule

CLUSTER_RULES: Final = (
    Rule(group=GROUP, resources=("llmservices",), verbs=("get", "list", "watch", "patch")),
    Rule(group=GROUP, resources=("workerpools",), verbs=("get", "list", "watch", "create", "patch", "delete")),
    Rule(group=GROUP, resources=("llmservices/status", "workerpools/status"), verbs=("patch",)),
    # OwnerReferencesPermissionEnforcement lets only those who may delete a switch say that it goes with its service.
    Rule(group=GROUP, resources=("roleswitches",), verbs=("list", "watch", "create", "patch", "delete")),
    Rule(group=GROUP, resources=("plans", "plannerpolicies"), verbs=("list", "watch")),
    Rule(group=GROUP, resources=("roleswitches/status", "plans/status", "plannerpolicies/status"), verbs=("patch",)),
    # Owner references that block deletion need this where OwnerReferencesPermissionEnforcement is on.
    Rule(group=GROUP, resources=("llmservices/finalizers", "elasticgroups/finalizers"), verbs=("update",)),
    Rule(group="", resources=("pods",), verbs=("get", "list", "watch", "create", "patch", "delete")),
    Rule(group="", resources=("pods/status",), verbs=("patch",)),
    Rule(group="", resources=("services", "serviceaccounts", "secrets"), verbs=("get", "create", "patch", "delete")),
    Rule(group=GROUP, resources=("elasticgroups",), verbs=("get", "list", "watch", "patch")),
    Rule(group=GROUP, resources=("elasticgroups/status",), verbs=("patch",)),
    Rule(group="apps", resources=("deployments",), verbs=("get", "list", "watch", "create", "patch", "delete")),
    Rule(group="apps", resources=("statefulsets",), verbs=("get", "create", "patch")),
    Rule(group="policy", resources=("poddisruptionbudgets",), verbs=("get", "create", "patch", "delete")),
    Rule(group="networking.k8s.io", resources=("networkpolicies",), verbs=("get", "create", "patch", "delete")),
    # The API server lets nobody give away rights that they lack: a gateway's are among those above.
    Rule(
        group="rbac.authorization.k8s.io",
        resources=("roles", "rolebindings"),
        verbs=("get", "create", "patch", "delete"),
    ),
    Rule(group="events.k8s.io", resources=("events",), verbs=("list", "create", "patch")),
)
"""In every namespace that is watched."""

LEASE_RULES: Final = (Rule(group="coordination.k8s.io", resources=("leases",), verbs=("get", "create", "update")),)
"""In the operator's own namespace."""
