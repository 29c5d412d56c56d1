"""The service that benchmarks on the local cluster run on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pointsman.local.quickstart.examples import read_example, with_model


def one_of_each(name: str, model: Path) -> Mapping[str, Any]:
    """The quick start's example on one prefill and one decode worker (a core each), without a planner."""
    manifest = with_model(read_example(), model)
    manifest["metadata"] = {"name": name}
    manifest["spec"]["model"]["servedName"] = name
    for role in ("prefill", "decode"):
        manifest["spec"]["pools"][role] = {"replicas": 1}
    return manifest
