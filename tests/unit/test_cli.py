"""The ``pointsman`` command."""

import logging
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pointsman import cli
from pointsman.cli import main

COMMANDS = (
    ["quickstart"],
    ["quickstart-multimodal"],
    ["explain"],
    ["record"],
    ["replay"],
    ["profile"],
    ["local"],
    *(["local", part] for part in ("up", "down", "status", "binaries", "engine", "model")),
)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "usage: pointsman" in capsys.readouterr().out


def test_the_version_is_the_one_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "cli" / "pyproject.toml").read_text())["project"]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pointsman {project['version']}\n"
    assert main(["--help"]) == 0
    assert "pointsman --version" in capsys.readouterr().out


def test_an_unknown_command_is_named_with_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "no command 'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_wrong_option_of_any_command_is_one_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--nonsense"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("pointsman ") and said.count("\n") == 1
    assert f"see 'pointsman {command[0]}" in said and "--help'" in said


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples_of_itself(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    usage, _, examples = capsys.readouterr().out.partition("\nexample")
    words = f"pointsman {' '.join(command)}"
    assert words in usage
    assert words in examples or f"make {' '.join(command)}" in examples


def warns(_: list[str]) -> int:
    """A command."""
    logging.getLogger("pointsman.kube").warning("warning of the API server", extra={"call": "GET /api"})
    return 0


def test_a_warning_in_a_command_shows_its_fields(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = EntryPoint("warns", f"{__name__}:warns", cli.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda _: warns)
    monkeypatch.setattr(cli, "entry_points", lambda group: [command])
    assert main(["warns"]) == 0
    assert 'warning of the API server call="GET /api"' in capsys.readouterr().err
