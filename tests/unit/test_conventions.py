"""Rules of CONTRIBUTING.md that no linter knows."""

import ast
import subprocess
from pathlib import Path

import pytest

from messages.found import ROOT

FOREIGN = ("aiohttp.test_utils",)


def test_no_test_module_imports_another() -> None:
    modules = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    found = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module in _imported(node)
        if module not in FOREIGN and modules & set(module.split("."))
    ]
    assert found == []


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Every module that it may import: ``from . import name`` and ``from package import name`` too."""
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    return [node.module or "", *(f"{node.module or ''}.{each.name}" for each in node.names)]


@pytest.mark.parametrize(
    ("subject", "why_not"),
    [
        ("kube: follow unreadable objects on one path", None),
        ("gateway, workers: take the time from a clock", None),
        ('Revert "kube: follow unreadable objects"', None),
        ("kube: " + "x" * 66, None),
        ("kube: " + "x" * 67, "73 characters"),
        ("Take neither a few late answers nor a shortage for a wrong model", "area: imperative"),
        ("kube:", "area: imperative"),
        ("", "area: imperative"),
    ],
)
def test_the_commit_hook_refuses_other_subjects_than_area_and_imperative(
    subject: str, why_not: str | None, tmp_path: Path
) -> None:
    message = tmp_path / "message"
    message.write_text(
        f"{subject}\n\nA body is as long as it must be, and longer than 72 characters a line if need be.\n"
    )
    hook = subprocess.run(["sh", ROOT / ".ci/hooks/commit-msg", message], capture_output=True, text=True, check=False)
    assert (hook.returncode == 0) == (why_not is None)
    assert (why_not or "") in hook.stderr


def test_every_process_logs_with_the_formatter_that_prints_fields() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in sorted(ROOT.glob("*/src/**/*.py"))
        if "basicConfig" in path.read_text(encoding="utf-8")
    ]
    assert found == ["process/src/pointsman/process/logs.py"]
