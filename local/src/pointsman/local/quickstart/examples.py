"""The manifests that the quick start applies: the user's example, with the model of this computer filled in."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

from pointsman.local.errors import LocalError

EXAMPLE: Final = Path(__file__).parents[5] / "examples" / "quickstart.yaml"
STALL_SERVICE: Final = "stall"
SHIFT_SERVICE: Final = "shift"


class ExampleFailed(LocalError):
    """The example manifest cannot be used."""


def read_example(path: Path = EXAMPLE) -> dict[str, Any]:
    """The one LLMService of an example file. Raises ExampleFailed."""
    try:
        documents = [document for document in yaml.safe_load_all(path.read_text()) if document]
    except (OSError, yaml.YAMLError) as error:
        raise ExampleFailed(f"{path} cannot be read: {error}") from error
    services = [document for document in documents if document.get("kind") == "LLMService"]
    if len(services) != 1:
        raise ExampleFailed(f"{path} holds {len(services)} LLMServices; the quick start needs exactly one")
    return dict(services[0])


def with_model(service: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """``service`` with the model's folder on this computer as its source."""
    changed = deepcopy(dict(service))
    changed["spec"]["model"]["source"] = f"file://{model}"
    return changed


def shift_service(service: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """The service whose load shifts: the example with a larger model, whose workers are the bottleneck and not their
    gateway."""
    changed = with_model(service, model)
    changed["metadata"] = {**changed["metadata"], "name": SHIFT_SERVICE}
    changed["spec"]["model"]["servedName"] = SHIFT_SERVICE
    return changed


def stall_service(service: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """The service of the latency stage: one prefill and one decode worker, bfloat16, a larger model.

    The rest, template and arguments included, is the example's, so that what is measured is what was shown.
    """
    changed = with_model(service, model)
    changed["metadata"] = {**changed["metadata"], "name": STALL_SERVICE}
    changed["spec"]["model"]["servedName"] = STALL_SERVICE
    for role in ("prefill", "decode"):
        changed["spec"]["pools"][role] = {"replicas": 1}
    engine = changed["spec"].setdefault("engine", {})
    kept = [argument for argument in engine.get("args", []) if not argument.startswith("--dtype")]
    engine["args"] = [*kept, "--dtype=bfloat16"]
    return changed
