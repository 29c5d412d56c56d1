"""What a computer needs is checked before anything is installed, said in one sentence, and listed in the README."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make")
PROGRAMS = next(
    line.split()[2:] for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("PROGRAMS :=")
)[1:]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with what is needed and nothing else; python3.11 is this test's own."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found is not None, name
        (folder / name).symlink_to(found)
    (folder / "python3.11").write_text(f'#!/bin/sh\nexec "{sys._base_executable}" "$@"\n')  # type: ignore[attr-defined]
    (folder / "python3.11").chmod(0o755)
    return folder


def computer(path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    assert MAKE is not None
    command = [MAKE, "--no-print-directory", "computer", *arguments]
    return subprocess.run(command, cwd=ROOT, env={"PATH": str(path)}, capture_output=True, text=True, check=False)


def test_a_computer_with_all_of_it_passes_in_silence(bare: Path) -> None:
    done = computer(bare)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("missing", ["python3.11", *(name for name in PROGRAMS if name != "sh")])
def test_what_is_missing_is_named_in_one_sentence(bare: Path, missing: str) -> None:
    (bare / missing).unlink()
    done = computer(bare)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert said == [
        f"Pointsman needs on PATH, and did not find: {missing} "
        "(README.md, 'What a computer needs', names the packages)."
    ]


def test_another_python_is_named_in_one_sentence(bare: Path) -> None:
    (bare / "python3.11").write_text("#!/bin/sh\nexit 1\n")
    said = [line for line in computer(bare).stderr.splitlines() if not line.startswith("make")]
    assert said == [
        "Pointsman needs Python 3.11, but python3.11 is another version or does not start; "
        "make PYTHON=/path/to/python3.11 names the right one."
    ]


def test_the_readme_lists_what_the_makefile_asks_for() -> None:
    readme = (ROOT / "README.md").read_text()
    section = re.search(r"### What a computer needs\n(.*?)\n###? ", readme, re.DOTALL)
    assert section is not None
    listed = re.findall(r"`([\w.-]+)`", section[1])
    assert {"python3.11", "make", *PROGRAMS} <= set(listed)


def test_both_commands_of_the_readme_check_it_first() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^sync: computer ", makefile, re.MULTILINE)
    for command in ("quickstart", "lint", "unit", "programs", "browser"):
        assert re.search(rf"^{command}:.*\bsync\b", makefile, re.MULTILINE), command
