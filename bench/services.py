"""Services of the local cluster that benchmarks measure."""

from collections.abc import Mapping
from typing import Any

import yaml

from pointsman.local.cluster import LocalCluster


def serve(cluster: LocalCluster, manifest: Mapping[str, Any]) -> str:
    """Apply a service, and wait until it is ready; the URL of its gateway."""
    name = manifest["metadata"]["name"]
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))
    ready = ("--for=condition=Ready", f"{manifest['kind']}/{name}", "--timeout=300s")
    cluster.kubectl("wait", *ready, timeout_s=310)
    url = cluster.gateway_url(name)
    assert url is not None
    return url
