"""The service that benchmarks on the local cluster run on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pointsman.api.v1alpha1.engine_flags import ENGINE_CONTAINER
from pointsman.local.quickstart.examples import read_example, with_model


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
