"""The service that benchmarks on the local cluster run on."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from pointsman.api.v1alpha1.engine_flags import ENGINE_CONTAINER
from pointsman.kube.client import Kube
from pointsman.local.cluster import LocalCluster
from pointsman.local.observation import Observer
from pointsman.local.quickstart.examples import read_example, with_model
from pointsman.local.quickstart.waiting import wait_until
from pointsman.local.traffic import Endpoint

READY_S = 300.0


def one_of_each(name: str, model: Path, cores: str | None = None) -> Mapping[str, Any]:
    """The quick start's example on one prefill and one decode worker, without a planner.

    ``cores``: a CPU limit for each worker (``700m``), else they take what there is of this computer's.
    """
    manifest = with_model(read_example(), model)
    manifest["metadata"] = {"name": name}
    manifest["spec"]["model"]["servedName"] = name
    for role in ("prefill", "decode"):
        manifest["spec"]["pools"][role] = {"replicas": 1}
    if cores is not None:
        limited = {"name": ENGINE_CONTAINER, "resources": {"limits": {"cpu": cores}}}
        manifest["spec"]["worker"]["template"] = {"spec": {"containers": [limited]}}
    return manifest


@asynccontextmanager
async def served(cluster: LocalCluster, name: str, manifest: Mapping[str, Any]) -> AsyncIterator[tuple[Kube, Endpoint]]:
    """The API server and the service's gateway, when the service is ready."""
    async with await Kube.connect(cluster.kubeconfig) as kube, Observer(kube, "default", name) as observer:
        await asyncio.to_thread(cluster.kubectl, "apply", "-f", "-", stdin=yaml.safe_dump(manifest))
        view = await wait_until(observer, "a Ready service", lambda v: v.ready, timeout_seconds=READY_S)
        assert view.gateway_url is not None
        async with Endpoint(view.gateway_url, name) as endpoint:
            yield kube, endpoint
