"""``pointsman replay --group`` as a user types it, on small loads."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman.planner.replay.command import main
from unit.planner.elastic.replay_scenes import STEP, group, plan

POLICY = """
objectives: {ttftMs: 1000, tpotMs: 40}
budget: {maxGpus: 6}
actions: {scaleIn: {stabilizationSeconds: 60}}
metrics: {intervalSeconds: 5}
"""
RISE = "step:low=1,high=5,up_s=30,down_s=90,duration_s=240,prompt_tokens=1000,output_tokens=20"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("replay-group")
    (made / "policy.yaml").write_text(POLICY)
    listed = [group(), plan(9, {}), plan(8, STEP), plan(7, {"stepSeconds": 9}), plan(10, STEP, "other")]
    (made / "group.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": listed}))
    return made


def run(folder: Path, *arguments: str, file: str = "group.yaml", trace: str = RISE) -> int:
    of_group = ("--group", str(folder / file), "--startup-seconds", "10")
    return main(["--trace", trace, "--policy", str(folder / "policy.yaml"), *of_group, *arguments])


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    path = folder / "one.json"
    assert run(folder, "--json", str(path), "--html", str(folder / "one.html")) == 0
    made: dict[str, Any] = json.loads(path.read_text())
    return made


def test_it_is_played_with_what_the_status_and_the_newest_plan_of_the_group_have(document: dict[str, Any]) -> None:
    simulation = document["simulation"]
    assert (simulation["group"], simulation["instances"], simulation["slots"]) == ("long-chat", 1, 60_000)
    assert simulation["step_s"] == [0.01, 0.001], "plan 9 has no times, and plan 10 is another group's"
    assert simulation["prefill_s"]["2"] == pytest.approx([0.007, 0.00011, 6e-10])
    figures = document["figures"]
    assert figures["completed"] == figures["requests"] == document["trace"]["requests"]
    assert set(figures["prefills_by_degree"]) == {"1", "2"}
    assert figures["starts"] > 0, "one instance is too few for the rise"
    assert max(point["serving"] for point in document["timeline"]) > 1
    changes = [each for each in document["decisions"] if each["changes_layout"]]
    assert {each["reason"] for each in changes} == {"InstancesShort", "SpareCapacity"}
    assert all("stepSeconds" in each["inputs"] for each in changes)


def test_the_page_shows_instances_and_every_decision(folder: Path, document: dict[str, Any]) -> None:
    root = ElementTree.fromstring((folder / "one.html").read_text().split("\n", 1)[1])
    titles = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"instances", "instances of the largest group", "requests per second"} <= titles
    changes = [each for each in document["decisions"] if each["changes_layout"]]
    summaries = [node.text for node in root.iter("{http://www.w3.org/1999/xhtml}summary")]
    assert summaries == [each["message"] for each in changes]
    text = "".join(root.itertext())
    assert "elastic group long-chat, 1 GPU an instance, degrees up to 2; at the start 1 instance;" in text
    assert re.search(r"\d instances \(scale-out, \d GPUs\)", text)


def test_a_policy_is_kept_from_getting_worse_for_a_group_too(folder: Path) -> None:
    short = "step:low=1,high=4,up_s=20,down_s=80,duration_s=80,prompt_tokens=1000,output_tokens=5"
    assert run(folder, "--json", str(folder / "before.json"), trace=short) == 0
    before = ("--compare", str(folder / "before.json"), "--fail-if-worse", "1%")
    assert run(folder, *before, trace=short) == 0
    assert run(folder, *before, "--planner", "static", trace=short) == 1, "one instance all the time"
    assert run(folder, *before, "--instances", "2", trace=short) == 2, "another start is another simulation"


def test_a_sweep_has_a_row_for_each_number_of_instances(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = "steady:rate=2,duration_s=20,prompt_tokens=500,output_tokens=5"
    assert run(folder, "--sweep", "instances=1,3", "--sweep", "planner=static", trace=short) == 0
    assert re.findall(r"^\s*([13])\s+static", capsys.readouterr().out, re.MULTILINE) == ["1", "3"]


@pytest.mark.parametrize(
    ("objects", "arguments", "why"),
    [
        ([group(latencyModel=[]), plan(1, STEP)], (), "status.latencyModel is empty"),
        ([group()], (), "--step-milliseconds FIXED,PER_REQUEST"),
        ([group(slots=None), plan(1, STEP)], (), "how many tokens of KV an instance keeps"),
        ([plan(1, STEP)], (), "holds 0 elastic groups"),
        ([group(), plan(1, STEP)], ("--planner", "hpa"), "plans no elastic groups; with --group use pointsman or"),
        ([group(), plan(1, STEP)], ("--instances", "5"), "is not within spec.instances (1 to 4)"),
    ],
)
def test_what_is_missing_is_said_with_what_would_be_right(
    folder: Path, capsys: pytest.CaptureFixture[str], objects: list[Any], arguments: tuple[str, ...], why: str
) -> None:
    (folder / "bad.yaml").write_text(yaml.safe_dump_all(objects))
    assert run(folder, *arguments, file="bad.yaml") == 2
    assert why in capsys.readouterr().err


def test_options_of_services_are_refused_with_a_group_and_those_of_groups_without(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for refused, why in (
        (("--group", "g.yaml", "--workers", "1P1D"), "--workers applies to services only"),
        (("--instances", "2"), "they need --group FILE"),
        (("--group", "g.yaml", "--prefix-hits", "0.5"), "an elastic group has no prefix cache"),
    ):
        with pytest.raises(SystemExit):
            main(["--trace", RISE, "--policy", str(folder / "policy.yaml"), *refused])
        assert why in capsys.readouterr().err
