"""The ``pointsman`` command."""

import pytest

from pointsman.cli import main


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "usage: pointsman" in capsys.readouterr().out


def test_an_unknown_command_is_named_with_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "no command 'nonsense'" in capsys.readouterr().err
