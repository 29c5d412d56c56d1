"""The documents send nobody to a file that is not there, and every page can be found from the README."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = sorted(ROOT.glob("docs/*.md"))
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize(("page", "least"), [("CONTRIBUTING.md", 20), ("docs/security.md", 5)])
def test_every_path_that_a_page_names_exists(page: str, least: int) -> None:
    words = re.findall(r"`([^`\s]+)`", (ROOT / page).read_text())
    top = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    named = [word for word in words if "/" in word and word.split("/")[0] in top]
    patterns = {word: word.rstrip("/").replace("…", "**").replace("<room>", "*") for word in named}
    assert len(named) > least, "the words that are paths are found"
    assert [word for word, pattern in patterns.items() if not any(ROOT.glob(pattern))] == []


def test_every_promise_of_the_security_page_names_the_test_that_attacks_it() -> None:
    promises = (ROOT / "docs/security.md").read_text().split("\n## What it does not do", 1)[0]
    bullets = re.findall(r"^\* .*(?:\n  .*)*", promises, re.MULTILINE)
    assert len(bullets) > 10
    assert [bullet for bullet in bullets if "`tests/" not in bullet] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS], ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    assert [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()] == []


def test_every_page_is_linked_from_the_readme() -> None:
    linked = set(LINK.findall((ROOT / "README.md").read_text()))
    assert {f"docs/{page.name}" for page in DOCS} <= linked


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS], ids=lambda page: page.name)
def test_no_command_of_a_page_needs_uv_on_path(page: Path) -> None:
    assert "uv run" not in page.read_text()
