"""``make sync`` has git check the subjects of commits, and disturbs nobody who does not want that."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join((os.environ["PATH"], os.defpath))  # CI has no git on its own, which whoever commits has
OWN = {"PATH": PATH, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def run(folder: Path, *command: str, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    environment = OWN | ({"PATH": path} if path is not None else {})
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def sync(folder: Path, path: str | None = None) -> None:
    """Its part that is about git."""
    make = shutil.which("make")
    assert make is not None
    shutil.copy(ROOT / "Makefile", folder)
    done = run(folder, make, "--no-print-directory", "commit-hook", path=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def hooks_of(folder: Path) -> str:
    return run(folder, "git", "config", "core.hooksPath").stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """With the hook and one commit."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / ".ci/hooks", folder / ".ci/hooks")
    for command in ("init -q", "config user.name n", "config user.email e", "add .ci", "commit -qm first"):
        assert run(folder, "git", *command.split()).returncode == 0
    return folder


def commit(folder: Path, subject: str) -> "subprocess.CompletedProcess[str]":
    return run(folder, "git", "commit", "-q", "--allow-empty", "-m", subject)


def test_a_clone_refuses_a_subject_after_it(clone: Path) -> None:
    sync(clone)
    sync(clone)
    assert "must be 'area: imperative'" in commit(clone, "Mend it").stderr
    assert commit(clone, "kube: mend it").returncode == 0


def test_a_worktree_refuses_it_too(clone: Path) -> None:
    assert run(clone, "git", "worktree", "add", "-q", "../tree", "-b", "tree").returncode == 0
    sync(clone.parent / "tree")
    assert commit(clone.parent / "tree", "Mend it").returncode == 1
    assert commit(clone.parent / "tree", "kube: mend it").returncode == 0


def test_hooks_of_a_persons_own_stay(clone: Path) -> None:
    run(clone, "git", "config", "core.hooksPath", "/mine")
    sync(clone)
    assert hooks_of(clone) == "/mine"


def test_a_clone_that_cannot_be_written_is_no_failure(clone: Path) -> None:
    (clone / ".git/config.lock").touch()
    sync(clone)
    assert hooks_of(clone) == ""


def test_an_unpacked_copy_inside_of_another_repository_leaves_that_alone(clone: Path) -> None:
    (clone / "copy").mkdir()
    sync(clone / "copy")
    assert hooks_of(clone) == ""


def test_a_computer_without_git_is_no_failure(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    sync(clone, str(tmp_path))
    assert hooks_of(clone) == ""
