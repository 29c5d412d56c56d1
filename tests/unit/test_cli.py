"""The ``pointsman`` command."""

import pytest

from pointsman.cli import main

COMMANDS = (
    ["quickstart"],
    ["explain"],
    ["record"],
    ["replay"],
    ["local"],
    *(["local", part] for part in ("up", "down", "status", "binaries", "engine", "model")),
)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "usage: pointsman" in capsys.readouterr().out


def test_an_unknown_command_is_named_with_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "no command 'nonsense'" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_examples_of_itself(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    usage, _, examples = capsys.readouterr().out.partition("\nexample")
    words = f"pointsman {' '.join(command)}"
    assert words in usage
    assert words in examples or f"make {' '.join(command)}" in examples
