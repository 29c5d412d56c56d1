"""What is the same for every service of one installation; the shell fills it from its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Who besides its own pods reaches the workers of a service; each is a NetworkPolicyPeer.

    ``controllers`` are the pods of operator and planner, ``metrics_from`` what may read metrics.
    """

    controllers: Mapping[str, Any]
    metrics_from: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Images, addresses and names that manifests are rendered with.

    ``pod_bind_host``: what servers in pods listen on. ``0.0.0.0`` gives them to ``kubectl port-forward`` too;
    ``$(POD_IP)`` is for pods that share the network of their host.
    ``gateway_linger_seconds``: a gateway that is deleted takes requests for so long, because kube-proxy and load
    balancers on other nodes send them until they have heard of it.
    """

    worker_image: str
    gateway_image: str
    image_pull_secrets: tuple[str, ...] = ()
    image_pull_policy: str = "IfNotPresent"
    nats_url: str
    nats_authenticates: bool = True  # its user and password are in the services' Secrets
    nats_has_private_ca: bool = False  # its certificate is in the services' Secrets
    pod_bind_host: str = "0.0.0.0"
    gateway_linger_seconds: int = 5
    log_level: str = "INFO"
    network: Network | None = None  # None: services get no NetworkPolicies
