"""Every example is what the API server takes, without a warning."""

from pathlib import Path

import pytest
import yaml

from pointsman.api.v1alpha1 import LLMService, parse_strictly
from pointsman.local.control_plane import ControlPlane

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_accepted_as_it_is(control_plane: ControlPlane, example: Path) -> None:
    control_plane.kubectl("create", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", str(example))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_no_field_the_models_do_not_know(example: Path) -> None:
    for manifest in yaml.safe_load_all(example.read_text()):
        if manifest["kind"] == "LLMService":
            parse_strictly(LLMService, manifest)
