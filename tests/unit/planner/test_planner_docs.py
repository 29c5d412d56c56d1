"""Who looks the reason of a decision up in the documentation finds it."""

import re
from pathlib import Path

from pointsman.planner.core.types import Reason

PAGE = (Path(__file__).parents[3] / "docs/planner.md").read_text()


def test_every_reason_of_a_decision_is_explained_and_no_other_is() -> None:
    table = PAGE[PAGE.index("**Its reason**") : PAGE.index("## What keeps it calm")]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert set(re.findall(r"`([A-Za-z]+)`", " ".join(rows))) == {reason.value for reason in Reason}
