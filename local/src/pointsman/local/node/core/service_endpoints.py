"""Where a Service sends connections, by kube-proxy's rules, from its pods."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pointsman.local.node.core.types import Object

_FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, order=True)
class Address:
    """Where something listens."""

    host: str
    port: int


def service_endpoints(service: Object, pods: Iterable[Object]) -> Mapping[Address, frozenset[Address]]:
    """The pods' addresses that take connections, by each address of the Service.

    They are the ready pods. Where none is, pods that are being deleted and still answer their readiness probe take
    their place ("serving" and "terminating" in an EndpointSlice). An empty set: connections are refused.
    """
    spec = service["spec"]
    host = spec.get("clusterIP")
    selector: Mapping[str, str] = spec.get("selector") or {}
    if not selector or not host or host == "None":
        return {}
    chosen = [pod for pod in pods if _belongs(pod, service, selector)]
    ready = [pod for pod in chosen if not _terminating(pod) and (is_ready(pod) or spec.get("publishNotReadyAddresses"))]
    serving = [pod for pod in chosen if _terminating(pod) and is_ready(pod)]
    found: dict[Address, frozenset[Address]] = {}
    for port in spec.get("ports") or ():
        if port.get("protocol", "TCP") == "TCP":
            targets = (_target(pod, port) for pod in ready or serving)
            found[Address(host, port["port"])] = frozenset(target for target in targets if target is not None)
    return found


def _belongs(pod: Object, service: Object, selector: Mapping[str, str]) -> bool:
    meta, status = pod["metadata"], pod.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    same = meta["namespace"] == service["metadata"]["namespace"] and selector.items() <= labels.items()
    return same and bool(status.get("podIP")) and status.get("phase") not in _FINISHED


def _terminating(pod: Object) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None


def is_ready(item: Object) -> bool:
    """Whether the pod or node ``item`` has the condition Ready."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _target(pod: Object, port: Object) -> Address | None:
    """None where the pod has no port of that name."""
    target_port = port.get("targetPort", port["port"])
    if isinstance(target_port, str) and not target_port.isdigit():
        named = {p.get("name"): p["containerPort"] for c in pod["spec"]["containers"] for p in c.get("ports") or ()}
        if target_port not in named:
            return None
        target_port = named[target_port]
    return Address(pod["status"]["podIP"], int(target_port))
