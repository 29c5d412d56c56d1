"""CONTRIBUTING.md sends nobody to a file that is not there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_every_path_that_is_named_exists() -> None:
    words = re.findall(r"`([^`\s]+)`", PAGE)
    top = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    named = [word for word in words if "/" in word and word.split("/")[0] in top]
    patterns = {word: word.rstrip("/").replace("…", "**").replace("<room>", "*") for word in named}
    assert len(named) > 20, "the words that are paths are found"
    assert [word for word, pattern in patterns.items() if not any(ROOT.glob(pattern))] == []
