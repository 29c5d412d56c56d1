"""What long forms write of themselves."""

import re
from pathlib import Path

import pytest

from fixtures.findings import command_of

MAKEFILE = Path(__file__).parents[2] / "Makefile"
TARGETS = re.findall(r"^(verify[a-z-]*):.*\n\t.* -m (\w+) ", MAKEFILE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("target", "marker"), TARGETS)
def test_a_finding_names_the_target_that_ran_it(target: str, marker: str) -> None:
    assert command_of(marker, "tests/a.py::test") == f"make {target}"


def test_every_target_of_long_forms_was_found() -> None:
    assert {target for target, _ in TARGETS} >= {"verify", "verify-path", "verify-elastic"}


@pytest.mark.parametrize("marker", ["", "not verify", "verify and not verify_path"])
def test_a_finding_of_a_test_that_was_named_itself_names_the_test(marker: str) -> None:
    assert command_of(marker, "tests/a.py::test[a b]") == ".venv/bin/pytest 'tests/a.py::test[a b]'"
