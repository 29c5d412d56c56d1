"""Names of what the operator makes: computed, never random. Making a thing twice is a conflict, not a second thing."""

from collections.abc import Collection, Iterator
from itertools import count
from typing import Final

from pointsman.api.protocol.names import GROUP, SECRET_SUFFIX, Role

# Annotations and labels only the operator reads and writes.
VERIFIED_CONTAINER_ANNOTATION: Final = (
    f"{GROUP}/verified"  # "<role label>/<container id>": what was proved, and of whom
)
SERVICE_UID_LABEL: Final = f"{GROUP}/service-uid"  # on a RoleSwitch of a plan: whose plan it was
SWITCH_ANNOTATION: Final = f"{GROUP}/switch"  # on a pod: the SwitchClaim of the RoleSwitch that has it
LEDGER_ANNOTATION: Final = f"{GROUP}/ledger"  # on a WorkerPool: its Ledger. The next four are of earlier versions.
MOVED_BY_ANNOTATION: Final = f"{GROUP}/moved-by"  # on a WorkerPool: uids of the switches whose ±1 is in its replicas
SET_BY_ANNOTATION: Final = (
    f"{GROUP}/set-by-plan"  # on a WorkerPool or ElasticGroup: uid of the plan that wrote its replicas last
)
BEFORE_PLAN_ANNOTATION: Final = f"{GROUP}/replicas-before-plan"  # beside the former: the number that plan replaced
OWNED_REPLICAS_ANNOTATION: Final = (
    f"{GROUP}/owned-replicas"  # on a WorkerPool: what plans that own it wrote last, or EXTERNAL where others write it
)
EXTERNAL: Final = "external"
DRAIN_REASON_ANNOTATION: Final = f"{GROUP}/drain-reason"  # a DrainReason
DRAIN_SCORE_ANNOTATION: Final = f"{GROUP}/drain-score"  # a DrainScore
APPLIED_HASH_ANNOTATION: Final = f"{GROUP}/applied-hash"  # on what is applied: hash of the manifest it came from


def worker_name(service: str, revision: str, ordinal: int) -> str:
    """The pod's name. Not tied to a role: a worker keeps its name when it changes its role."""
    return f"{service}-{revision}-{ordinal}"


def free_worker_names(service: str, revision: str, taken: Collection[str]) -> Iterator[str]:
    """Names of new workers, lowest free ordinal first. A terminating pod is no worker, but still holds its name."""
    return (name for ordinal in count() if (name := worker_name(service, revision, ordinal)) not in taken)


def pool_name(service: str, role: Role) -> str:
    """Name of the WorkerPool of a role, and of its PodDisruptionBudget."""
    return f"{service}-{role.label}"


def gateway_name(service: str) -> str:
    """Name of the gateway's Deployment, Service, ServiceAccount, Role and PodDisruptionBudget."""
    return f"{service}-gateway"


def gateway_role_binding_name(service: str) -> str:
    """Name of the RoleBinding that gives the gateway its Role."""
    return f"{gateway_name(service)}-role"


def manager_name(group: str) -> str:
    """Name of the StatefulSet of an elastic group's manager; the one of its instances has the group's own name."""
    return f"{group}-manager"


def secret_name(service: str) -> str:
    """Name of the Secret with the control token and the NATS credentials."""
    return f"{service}{SECRET_SUFFIX}"
