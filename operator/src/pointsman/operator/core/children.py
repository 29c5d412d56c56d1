"""Parts that every manifest shares, and the small objects beside the workers: pools, Secret, PodDisruptionBudgets."""

import base64
from collections.abc import Mapping
from typing import Any, Final

from pointsman.api.protocol.names import (
    API_VERSION,
    COMPONENT_LABEL,
    COMPONENT_WORKER,
    COPIED_REPLICAS_ANNOTATION,
    ENV_CONTROL_TOKEN,
    ENV_NATS_CA_CERTIFICATE,
    ENV_NATS_PASSWORD,
    ENV_NATS_USER,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    ROLE_LABEL,
    SECRET_CONTROL_TOKEN,
    SECRET_NATS_CA_CERTIFICATE,
    SECRET_NATS_PASSWORD,
    SECRET_NATS_USER,
    SERVICE_LABEL,
    Role,
)
from pointsman.operator.core.install import Install
from pointsman.operator.core.naming import APPLIED_HASH_ANNOTATION, pool_name, secret_name
from pointsman.operator.core.nats_logins import Login
from pointsman.operator.core.revision import digest
from pointsman.operator.core.snapshot import Service
from pointsman.operator.core.strategic_merge import MERGE_KEYS

POD_SECURITY: Final[Mapping[str, Any]] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def labels(service: Service, component: str | None = None, role: Role | None = None) -> dict[str, str]:
    """Labels of an object that belongs to ``service``."""
    found = {SERVICE_LABEL: service.name, MANAGED_BY_LABEL: MANAGED_BY}
    if component is not None:
        found[COMPONENT_LABEL] = component
    if role is not None:
        found[ROLE_LABEL] = role.label
    return found


def owner_reference(service: Service) -> dict[str, Any]:
    """The service owns what is made for it: garbage collection cleans up."""
    return {
        "apiVersion": API_VERSION,
        "kind": service.kind,
        "name": service.name,
        "uid": service.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(service: Service, name: str, component: str | None = None, role: Role | None = None) -> dict[str, Any]:
    """``metadata`` of an object that belongs to ``service``."""
    return {
        "name": name,
        "namespace": service.namespace,
        "labels": labels(service, component, role),
        "ownerReferences": [owner_reference(service)],
    }


def stamped(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """``manifest`` with its own hash as an annotation, so that a later look sees whether it is still the wanted one."""
    body = dict(manifest)
    meta = dict(body["metadata"])
    meta["annotations"] = {**meta.get("annotations", {}), APPLIED_HASH_ANNOTATION: digest(manifest, 16)}
    body["metadata"] = meta
    return body


def with_live_replicas(desired: Mapping[str, Any], live: Mapping[str, Any]) -> Mapping[str, Any]:
    """``desired`` with the replicas of ``live``, if the number in ``desired`` was written to ``live`` before.

    It was changed since then by kubectl scale or an autoscaler, and is theirs until the spec says another number. The
    resourceVersion of ``live`` is then a precondition: a number that changes meanwhile is not put back.
    """
    copied = desired["metadata"].get("annotations", {}).get(COPIED_REPLICAS_ANNOTATION)
    meta = live["metadata"]
    if copied is None or (meta.get("annotations") or {}).get(COPIED_REPLICAS_ANNOTATION) != copied:
        return desired
    return {
        **desired,
        "metadata": {**desired["metadata"], "resourceVersion": meta["resourceVersion"]},
        "spec": {**desired["spec"], "replicas": live["spec"].get("replicas", 1)},
    }


def is_current(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """``live`` came from ``wanted`` (both stamped) and nobody changed what ``wanted`` says."""
    stamp = wanted["metadata"]["annotations"][APPLIED_HASH_ANNOTATION]
    found = (live["metadata"].get("annotations") or {}).get(APPLIED_HASH_ANNOTATION)
    return found == stamp and _says_all_of(live, wanted)


_MERGED_LISTS: Final = frozenset((*MERGE_KEYS, "ownerReferences"))
"""Lists whose entries the API server merges by a key. An apply does not remove the entries that others added."""


def _says_all_of(live: Any, wanted: Any, field: str = "", *, in_atomic: bool = False) -> bool:
    """Every field of ``wanted`` is in ``live`` with that value; what the API server or others filled in does not count.

    ``field`` is its name. ``in_atomic``: it is in a list that the API server replaces as a whole.
    """
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            key in live and _says_all_of(live[key], value, key, in_atomic=in_atomic) for key, value in wanted.items()
        )
    if not isinstance(wanted, list):
        return bool(live == wanted)
    if not isinstance(live, list):
        return False
    if field in _MERGED_LISTS and not in_atomic:
        return all(any(_says_all_of(entry, ours) for entry in live) for ours in wanted)
    return len(live) == len(wanted) and all(
        _says_all_of(entry, ours, in_atomic=True) for entry, ours in zip(live, wanted, strict=True)
    )


def worker_pool(service: Service, role: Role, replicas: int | None = None) -> dict[str, Any]:
    """A new WorkerPool, with ``replicas`` or the service's number. Afterwards ``WritePool`` and ``/scale`` write it."""
    copied = service.spec.pools.of(role).replicas
    replicas = copied if replicas is None else replicas
    meta = metadata(service, pool_name(service.name, role), role=role)
    meta["annotations"] = {COPIED_REPLICAS_ANNOTATION: str(copied)}  # the ledger comes with the first change
    return {
        "apiVersion": API_VERSION,
        "kind": "WorkerPool",
        "metadata": meta,
        "spec": {"serviceRef": {"name": service.name}, "role": role.value, "replicas": replicas},
    }


def worker_selector(service: Service, role: Role) -> dict[str, str]:
    """Labels that select the workers of one pool."""
    return {SERVICE_LABEL: service.name, COMPONENT_LABEL: COMPONENT_WORKER, ROLE_LABEL: role.label}


def disruption_budget(service: Service, role: Role, replicas: int) -> dict[str, Any]:
    """At most one worker of a pool is evicted at a time, and never the last, except of an encode pool.

    An integer ``minAvailable``: percentages and ``maxUnavailable`` need an owner with ``/scale``, which the pods' owner
    (the service) has not.
    """
    return stamped(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(service, pool_name(service.name, role), role=role),
            "spec": {
                "minAvailable": max(0 if role is Role.ENCODE else 1, replicas - 1),
                "selector": {"matchLabels": worker_selector(service, role)},
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        }
    )


def secret_env(service: Service, install: Install) -> list[dict[str, Any]]:
    """Environment of a container that takes its token and credentials from the service's Secret."""
    keys = {ENV_CONTROL_TOKEN: SECRET_CONTROL_TOKEN}
    if install.nats_authenticates:
        keys |= {ENV_NATS_USER: SECRET_NATS_USER, ENV_NATS_PASSWORD: SECRET_NATS_PASSWORD}
    if install.nats_has_private_ca:
        keys |= {ENV_NATS_CA_CERTIFICATE: SECRET_NATS_CA_CERTIFICATE}
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_name(service.name), "key": key}}}
        for name, key in keys.items()
    ]


def service_secret(service: Service, control_token: str, nats: Login, nats_ca_certificate: str = "") -> dict[str, Any]:
    """The Secret that workers and gateway take their control token and NATS credentials from."""
    values = {
        SECRET_CONTROL_TOKEN: control_token,
        SECRET_NATS_USER: nats.user,
        SECRET_NATS_PASSWORD: nats.password,
        **({SECRET_NATS_CA_CERTIFICATE: nats_ca_certificate} if nats_ca_certificate else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(service, secret_name(service.name)),
        "type": "Opaque",
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
    }
