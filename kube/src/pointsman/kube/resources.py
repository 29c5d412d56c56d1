"""The kinds Pointsman reads and writes, and their paths in the API."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from pointsman.api.protocol.names import GROUP, VERSION


@dataclass(frozen=True)
class Resource:
    """One kind in one API version. ``group`` is empty for the core API."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As in an object's ``apiVersion``: ``apps/v1``, ``v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified_name(self) -> str:
        """As in RBAC and kubectl: ``deployments.apps``, ``pods``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def group_path(self) -> str:
        """Path of the API version: ``/apis/apps/v1``, ``/api/v1``."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of the collection, an object or a subresource.

        A namespaced kind without a namespace is the collection over all namespaces.

        Raises ValueError for a combination that names nothing.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.qualified_name} is cluster-scoped: no namespace, got {namespace!r}")
        if name is not None and self.namespaced and namespace is None:
            raise ValueError(f"{self.qualified_name} {name!r} needs a namespace")
        if subresource is not None and name is None:
            raise ValueError(f"{self.qualified_name}/{subresource} needs a name")
        for part in (namespace, name):
            if part in ("", ".", ".."):  # dots would climb out of the collection
                raise ValueError(f"{self.qualified_name}: {part!r} is no name")
        path = self.group_path
        if namespace is not None:
            path += f"/namespaces/{quote(namespace, safe='')}"
        path += f"/{self.plural}"
        if name is not None:
            path += f"/{quote(name, safe=':')}"
        if subresource is not None:
            path += f"/{subresource}"
        return path

    def __str__(self) -> str:
        return self.qualified_name


PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICES: Final = Resource("", "v1", "services", "Service")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount")
NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", "StatefulSet")
ROLES: Final = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS: Final = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
POD_DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
NETWORK_POLICIES: Final = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS: Final = Resource("events.k8s.io", "v1", "events", "Event")

LLM_SERVICES: Final = Resource(GROUP, VERSION, "llmservices", "LLMService")
WORKER_POOLS: Final = Resource(GROUP, VERSION, "workerpools", "WorkerPool")
PLANNER_POLICIES: Final = Resource(GROUP, VERSION, "plannerpolicies", "PlannerPolicy")
ROLE_SWITCHES: Final = Resource(GROUP, VERSION, "roleswitches", "RoleSwitch")
PLANS: Final = Resource(GROUP, VERSION, "plans", "Plan")
ELASTIC_GROUPS: Final = Resource(GROUP, VERSION, "elasticgroups", "ElasticGroup")
