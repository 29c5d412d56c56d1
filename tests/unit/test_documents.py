"""The documents send nobody to a file or a heading that is not there, and the index names every page."""

import re
from pathlib import Path

import pytest

from messages.pages import faults_of_page

ROOT = Path(__file__).parents[2]
DOCS = sorted(ROOT.glob("docs/**/*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS]
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    words = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    found: dict[str, int] = {}
    for word in words:
        anchor = re.sub(r"[^\w\- ]", "", word.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {f"{name}-{n}" if n else name for name, count in found.items() for n in range(count + 1)}


@pytest.mark.parametrize(("page", "least"), [("CONTRIBUTING.md", 20), ("docs/operate/security.md", 5)])
def test_every_path_that_a_page_names_exists(page: str, least: int) -> None:
    words = re.findall(r"`([^`\s]+)`", (ROOT / page).read_text())
    top = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    named = [word for word in words if "/" in word and word.split("/")[0] in top]
    patterns = {word: word.rstrip("/").replace("…", "**").replace("<room>", "*") for word in named}
    assert len(named) > least, "the words that are paths are found"
    assert [word for word, pattern in patterns.items() if not any(ROOT.glob(pattern))] == []


def test_every_promise_of_the_security_page_names_the_test_that_attacks_it() -> None:
    promises = (ROOT / "docs/operate/security.md").read_text().split("\n## What it does not do", 1)[0]
    bullets = re.findall(r"^\* .*(?:\n  .*)*", promises, re.MULTILINE)
    assert len(bullets) > 10
    assert [bullet for bullet in bullets if "`tests/" not in bullet] == []


@every_page
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    links = [(page.parent / link if link else page, fragment) for link, fragment in LINK.findall(page.read_text())]
    assert [str(file) for file, _ in links if not file.exists()] == []
    marked = [(file, fragment) for file, fragment in links if fragment and file.suffix == ".md"]
    assert [(str(file), fragment) for file, fragment in marked if fragment not in anchors(file)] == []


def test_every_page_is_linked_from_the_index_and_the_index_from_the_readme() -> None:
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link).resolve() for link, _ in LINK.findall(index.read_text())}
    assert [page for page in DOCS if page not in {*linked, index}] == []
    assert "docs/README.md" in {link for link, _ in LINK.findall((ROOT / "README.md").read_text())}


def test_every_page_stands_on_a_shelf() -> None:
    assert [page.name for page in DOCS if page.parent == ROOT / "docs"] == ["README.md"]


@every_page
def test_no_command_of_a_page_needs_uv_on_path(page: Path) -> None:
    assert "uv run" not in page.read_text()


GENERATED = (
    "reference/api.md",
    "reports/benchmarks.md",
    "reports/planner-evaluation.md",
    "reports/replays/README.md",
    "planner/tuning.md",
)
WIDTH = 120


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in {ROOT / "docs" / name for name in GENERATED}],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_line_has_at_most_120_characters_but_for_tables_code_and_links(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)
    prose = [line for line in text.splitlines() if not line.lstrip().startswith(("|", "![")) and line[:4].strip()]
    assert [line for line in prose if len(line) > WIDTH and not re.fullmatch(r"\s*[`\[(]\S.*[`)\]].?", line)] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT / "docs")))
def test_a_page_of_a_user_has_at_most_2000_words_and_the_planners_1000(page: Path) -> None:
    name = str(page.relative_to(ROOT / "docs"))
    if name in GENERATED or re.match(r"design/\d{4}-", name):
        return  # made from results and models, or a record of what was measured and decided
    assert len(page.read_text().split()) <= (1000 if name == "planner/README.md" else 2000)


def test_the_readme_has_at_most_700_words_and_a_screen_of_output() -> None:
    text = (ROOT / "README.md").read_text()
    assert len([word for word in text.split() if re.search(r"\w", word)]) <= 700
    assert max(len(block.splitlines()) for block in re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)) <= 25


OF_USERS = [
    page
    for page in DOCS
    if page.parent.name in ("use", "operate", "planner") and str(page.relative_to(ROOT / "docs")) not in GENERATED
]


@pytest.mark.parametrize(
    "page", [*OF_USERS, ROOT / "docs/reference/gateway.md"], ids=lambda page: str(page.relative_to(ROOT / "docs"))
)
def test_the_prose_of_a_page_keeps_the_rules_of_style(page: Path) -> None:
    assert list(faults_of_page(page)) == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (f"* {'word ' * 26}", ["26 words"]),
        (f"{'word ' * 20}\n{'word ' * 6}", ["26 words"]),
        (f"{'word ' * 20}; {'word ' * 20}", []),
        (f"{'word ' * 20}`a name` {'word ' * 5}", []),
        ("The gateway says `503`.", ["'says'"]),
        ("It finishes those that it has.", ["'those that'"]),
        ("What is a pool?", []),
        ("| says | what is |\n\n# What is said\n\n```\nit knows\n```\n\n    it was told", []),
    ],
)
def test_faults_of_prose_are_found(text: str, faults: list[str], tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    found = list(faults_of_page(tmp_path / "page.md"))
    assert [fault.startswith(each) for fault, each in zip(found, faults, strict=True)] == [True] * len(faults)
