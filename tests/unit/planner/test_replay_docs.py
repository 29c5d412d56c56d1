"""Every command of docs/planner/replay.md that needs no cluster runs as written, on the first seconds of its load."""

import json
import re
import shlex
from html import unescape
from pathlib import Path

import pytest
import yaml
from bench.replays import REPLAYS, _arguments, readme

from pointsman.planner.replay import command, page, pictures
from unit.planner.elastic.replay_scenes import STEP, group, plan

ROOT = Path(__file__).parents[3]


def commands(page: str) -> list[list[str]]:
    joined = (ROOT / page).read_text().replace("\\\n", " ").splitlines()
    lines = [line.strip() for line in joined if line.startswith("    pointsman replay ")]
    return [shlex.split(line)[2:] for line in lines]


def test_the_commands_of_the_page_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("examples", "bench"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    recording = re.search(r"```json\n(.*?)```", (ROOT / "docs/planner/replay.md").read_text(), re.DOTALL)
    assert recording is not None
    for name in ("chat.jsonl", "hour.jsonl"):
        (tmp_path / name).write_text(recording[1])
    (tmp_path / "long-chat.yaml").write_text(yaml.safe_dump_all([group(), plan(1, STEP)]))
    found = commands("docs/planner/replay.md")
    assert len(found) >= 5
    for arguments in found:
        assert command.main([*arguments, "--first-seconds", "20"]) == 0, arguments


@pytest.mark.parametrize("name", REPLAYS)
def test_an_example_policy_says_the_command_that_its_report_was_made_with(name: str) -> None:
    said = " ".join((ROOT / "examples" / "policies" / f"{name}.yaml").read_text().replace("\\\n#", " ").split())
    assert f"pointsman replay --policy examples/policies/{name}.yaml {' '.join(REPLAYS[name])}" in said
    assert f"docs/reports/replays/{name}.svg" in said


@pytest.mark.parametrize("name", REPLAYS)
def test_a_report_of_every_example_policy_is_linked(name: str) -> None:
    page = (ROOT / "docs" / "reports" / "replays" / "README.md").read_text()
    for kind in ("svg", "html"):
        assert f"({name}.{kind})" in page
        assert (ROOT / "docs" / "reports" / "replays" / f"{name}.{kind}").exists()


@pytest.mark.parametrize("name", REPLAYS)
def test_a_report_is_as_the_code_draws_it_now_and_names_its_command(name: str) -> None:
    folder = ROOT / "docs" / "reports" / "replays"
    text = (folder / f"{name}.html").read_text()
    assert page._STYLE in text  # make replays
    assert pictures.STYLE in text and pictures.STYLE in (folder / f"{name}.svg").read_text()
    (said,) = re.findall(r'<pre class="wrap">(.*?)</pre>', text)
    assert shlex.split(unescape(said)) == ["pointsman", "replay", *_arguments(name)]


def test_the_page_of_the_replays_is_as_the_code_writes_it_now() -> None:
    folder = ROOT / "docs" / "reports" / "replays"
    assert (folder / "README.md").read_text() == readme(json.loads((folder / "figures.json").read_text()))


def test_of_every_example_that_is_replayed_on_no_real_trace_it_is_said_why() -> None:
    loads = {name: options[options.index("--trace") + 1] for name, options in REPLAYS.items()}
    synthetic = {name for name, load in loads.items() if not (ROOT / load).is_file()}
    page = (ROOT / "docs" / "reports" / "replays" / "README.md").read_text()
    assert {*re.findall(r"^\*\*(.*)\*\* has a synthetic load\.", page, re.M)} == synthetic
    for name in synthetic:
        assert "docs/reports/replays/README.md" in (ROOT / "examples" / "policies" / f"{name}.yaml").read_text()
