"""What is printed to be typed next can be typed: without uv, and without an activated environment."""

import sys
from pathlib import Path

import pytest

from pointsman.local.typed_command import typed_command


def environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    return programs / "pointsman"


def test_in_a_checkout_it_is_the_path_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(tmp_path, monkeypatch).touch()
    monkeypatch.chdir(tmp_path)
    assert typed_command() == ".venv/bin/pointsman"


def test_elsewhere_it_is_the_whole_path_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = environment(tmp_path / "a checkout", monkeypatch)
    command.touch()
    monkeypatch.chdir("/usr")
    assert typed_command() == f"'{command}'"


def test_without_such_a_command_it_is_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(tmp_path, monkeypatch)
    assert typed_command() == "pointsman"
