"""Who looks something up in the documentation of the planner finds it, and what is written there to be typed works."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from pointsman.planner.core.types import Reason
from pointsman.planner.explain.command import parse as explain
from pointsman.planner.profile.options import parse as profile
from pointsman.planner.replay import command as replay
from pointsman.planner.replay.policy_files import load_policy
from pointsman.planner.replay.record_command import parse as record
from pointsman.planner.settings import PlannerSettings

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "planner"
REASONS = (FOLDER / "reasons.md").read_text()
SHIPPED = ROOT / "planner/src/pointsman/planner/tables/Meta-Llama-3.1-8B__h100_sxm__vllm__tp1.json"


def commands(page: str) -> list[list[str]]:
    """Every ``pointsman`` command line of a page: of its code blocks, and those with arguments in its sentences."""
    text = (FOLDER / page).read_text()
    lines = re.findall(r"^ {4}(pointsman .+)$", text, re.MULTILINE) + re.findall(r"`(pointsman \w+ [^`…]+)`", text)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_every_reason_of_a_decision_is_explained_and_no_other_is() -> None:
    rows = [row.split("|")[1] for row in REASONS.splitlines() if row.startswith("| `")]
    assert set(re.findall(r"`([A-Za-z]+)`", " ".join(rows))) == {reason.value for reason in Reason}


@pytest.mark.parametrize("page", ["README.md", "policy-guide.md"])
def test_a_policy_that_is_written_out_is_taken_and_needs_each_of_its_required_fields(page: str, tmp_path: Path) -> None:
    text = (FOLDER / page).read_text()
    text = text[text.index("```yaml\napiVersion") + 8 :]
    text = text[: text.index("```")]
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    spec = load_policy(file).spec
    assert (spec.mode, spec.objectives.ttft_ms, spec.objectives.tpot_ms) == ("Shadow", 1500, 40)
    assert spec == spec.model_validate({"objectives": {"ttftMs": 1500, "tpotMs": 40}, "budget": {"maxGpus": 8}})


@pytest.mark.parametrize(
    ("page", "known"),
    [
        ("README.md", {"explain"}),
        ("policy-guide.md", {"explain"}),
        ("metrics.md", {"record"}),
        ("profile.md", {"profile", "replay"}),
    ],
)
def test_every_command_of_a_page_is_taken_as_it_is_written(
    page: str, known: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that need no cluster and no engine run, on the first seconds of their load."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "chat.json").write_text(SHIPPED.read_text())
    monkeypatch.chdir(tmp_path)

    def replayed(arguments: list[str]) -> object:
        assert replay.main([*arguments, "--first-seconds", "20"]) == 0
        return capsys.readouterr()

    take: dict[str, Callable[[list[str]], object]] = {
        "explain": explain, "record": record, "profile": profile, "replay": replayed
    }  # fmt: skip
    found = commands(page)
    assert {name for name, *_ in found} == known
    for name, *arguments in found:
        if arguments == ["--help"]:
            with pytest.raises(SystemExit) as ended:
                take[name](arguments)
            assert ended.value.code == 0
        else:
            take[name](arguments)


def test_the_example_in_the_help_of_the_planners_process_is_taken_as_it_is_written() -> None:
    example = (PlannerSettings.__doc__ or "").split("example:\n")[1]
    assert example.startswith("  python"), "indented as an example, by no more"
    name, *flags = example.strip().removeprefix("python -m ").split()
    assert f"python -m {name}" == PlannerSettings.model_config.get("cli_prog_name")
    settings = PlannerSettings.read(flags)
    assert (settings.namespace, settings.identity, settings.bind_port) == ("pointsman-system", "planner-1", 0)
