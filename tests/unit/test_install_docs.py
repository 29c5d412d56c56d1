"""What docs/use/install.md names exists, and what it promises about pods is what is rendered."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.cli import GROUP
from pointsman.operator.core.adapters import adapter_for
from pointsman.operator.core.gateway import gateway_objects
from pointsman.operator.core.install import Install
from unit.operator.world import service, spec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/use/install.md").read_text()
TROUBLES = (ROOT / "docs/use/install-troubles.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTALL = Install(worker_image="worker:1", gateway_image="gateway:1", nats_url="nats://nats:4222")
EXAMPLES = sorted(set(re.findall(r"examples/[a-z0-9-]+\.yaml", PAGE)))


def rows(heading: str, page: str = PAGE) -> list[str]:
    """First cells of the table that begins with ``heading``."""
    table = page.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def has(values: Any, path: str) -> bool:
    for key in path.split("."):
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


def test_every_value_in_the_table_is_one_of_the_charts() -> None:
    values = yaml.safe_load((ROOT / "charts/pointsman/values.yaml").read_text())
    named = [name for row in rows("value") for name in re.findall(r"`([^`]+)`", row)]
    plain = [name for name in named if "{" not in name]
    assert len(plain) > 8
    assert [name for name in plain if not has(values, name)] == []
    (images,) = (name for name in named if name.startswith("images.{"))
    single = set(images.removeprefix("images.{").removesuffix("}").split(","))
    assert single == set(values["images"]) - {"registry", "tag"}


def test_every_build_argument_in_the_table_is_one_of_the_dockerfile_with_that_default() -> None:
    table = PAGE.split("| argument |", 1)[1].split("\n\n", 1)[0]
    named = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", table, re.MULTILINE))
    assert named == dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))


def test_every_reason_in_the_table_of_troubles_is_one() -> None:
    named = {found for row in rows("what you see", TROUBLES) for found in re.findall(r"`([A-Z][A-Za-z]+)`", row)}
    assert len(named) > 8
    assert named <= {str(reason) for reason in Reason}


@pytest.mark.parametrize("path", EXAMPLES)
def test_every_example_it_applies_is_a_service_that_the_operator_takes(path: str) -> None:
    document = yaml.safe_load((ROOT / path).read_text())
    wanted = LLMService.model_validate(document).spec
    adapter_for(wanted).check(wanted)


def test_kind_is_loaded_with_the_images_that_the_chart_asks_for() -> None:
    version = yaml.safe_load((ROOT / "charts/pointsman/Chart.yaml").read_text())["appVersion"]
    steps = PAGE.split("## kind, step by step", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"(\S+)/[$a-z]+:" + re.escape(version), steps)) == {"localhost/pointsman"}
    assert "--set images.registry=localhost/pointsman" in steps
    loaded = steps.split("kind load", 1)[0].rsplit("for target in ", 1)[1].split(";", 1)[0].split()
    assert set(loaded) == {"operator", "planner", "gateway", "worker"}


def test_the_command_is_installed_with_all_rooms_that_it_needs() -> None:
    steps = PAGE.split("## The command `pointsman`", 1)[1].split("\n## ", 1)[0]
    folders = re.findall(r"\./(\w+)", steps)
    projects = {name: tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"] for name in folders}
    needed = {
        requirement
        for project in projects.values()
        for requirement in project["dependencies"]
        if requirement.startswith("pointsman-")
    }
    assert needed <= {project["name"] for project in projects.values()}
    commands = {name for project in projects.values() for name in project.get("entry-points", {}).get(GROUP, ())}
    assert {"explain", "replay", "profile"} <= commands


def test_every_writable_place_of_a_pod_is_in_the_table() -> None:
    wanted = spec(model={"source": "hf://meta/llama"}, worker={"gpus": 1})
    worker = adapter_for(wanted).pod(service(wanted), INSTALL, "chat-r-0", Role.DECODE)["spec"]
    gateway = gateway_objects(service(wanted), INSTALL)[-1]["spec"]["template"]["spec"]
    table = PAGE.split("| pod | path |", 1)[1].split("\n\n", 1)[0]
    named = set(re.findall(r"`(/[a-z/]+)`", table))
    mounted = {mount["mountPath"] for pod in (worker, gateway) for mount in pod["containers"][0]["volumeMounts"]}
    assert mounted == named


def test_the_service_in_the_readme_is_one_that_the_crd_takes() -> None:
    readme = (ROOT / "README.md").read_text()
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", readme, re.M | re.S)
    given, example = yaml.safe_load(shown), yaml.safe_load((ROOT / "examples/llama-8b.yaml").read_text())
    LLMService.model_validate(given | {"metadata": given["metadata"] | {"namespace": "default"}})
    assert given["metadata"] == example["metadata"], "what it applies next is the same service"
    assert given["spec"]["model"] == example["spec"]["model"]
