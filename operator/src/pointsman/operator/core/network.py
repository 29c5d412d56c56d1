"""NetworkPolicies of a service or an elastic group: which pods reach its workers, and on which ports.

A pod that a NetworkPolicy selects is reached by what some policy allows, and by its own node. Gateways have none: their
clients are anywhere, and because policies add up, one that allows everybody would undo a policy of the user's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pointsman.api.protocol import names
from pointsman.operator.core import children
from pointsman.operator.core.install import Network
from pointsman.operator.core.snapshot import Service

Peer = Mapping[str, Any]


def network_policies(service: Service, network: Network) -> list[dict[str, Any]]:
    """The policies, stamped.

    A worker that has not reported a port for its metrics alone is scraped on the engine's port: so it is before it has
    its role, with an image of an earlier version, and where its own port is taken.
    """
    workers, gateways = _pods(service, names.COMPONENT_WORKER), _pods(service, names.COMPONENT_GATEWAY)
    unreported = {"key": names.METRICS_PORT_LABEL, "operator": "DoesNotExist"}
    scraped = {**workers, "matchExpressions": [unreported]}
    inside, more = [{"podSelector": workers}], []
    if service.kind == "ElasticGroup":
        instances = _pods(service, names.COMPONENT_INSTANCE)
        inside.append({"podSelector": instances})
        more.append(_policy(service, "instances", instances, _allow(inside)))
    return [
        _policy(
            service,
            "workers",
            workers,
            _allow([{"podSelector": gateways}, network.controllers], names.ENGINE_PORT),
            _allow(inside),  # on any port: UCX chooses those on which KV moves
            _allow(network.metrics_from, names.WORKER_METRICS_PORT),
        ),
        _policy(service, "worker-metrics", scraped, _allow(network.metrics_from, names.ENGINE_PORT)),
        *more,
    ]


def policy_names(service: Service) -> list[str]:
    """Of every NetworkPolicy that a service or group may have."""
    return [_name(service, part) for part in ("workers", "worker-metrics", "instances")]


def _name(service: Service, part: str) -> str:
    return f"{service.name}-pointsman-{part}"


def _pods(service: Service, component: str) -> dict[str, Any]:
    """Selects the pods of one component of the service, in its namespace."""
    return {"matchLabels": {names.SERVICE_LABEL: service.name, names.COMPONENT_LABEL: component}}


def _allow(peers: Sequence[Peer], port: int | None = None) -> list[dict[str, Any]]:
    """An ingress rule; none without peers, because an empty ``from`` would allow everybody."""
    if not peers:
        return []
    ports = {} if port is None else {"ports": [{"protocol": "TCP", "port": port}]}
    return [{"from": [dict(peer) for peer in peers], **ports}]


def _policy(service: Service, part: str, pods: Mapping[str, Any], *rules: list[dict[str, Any]]) -> dict[str, Any]:
    return children.stamped(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": children.metadata(service, _name(service, part)),
            "spec": {
                "podSelector": dict(pods),
                "policyTypes": ["Ingress"],
                "ingress": [rule for allowed in rules for rule in allowed],
            },
        }
    )
