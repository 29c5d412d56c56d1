"""Who looks a reason or an Event up in the documentation finds it."""

import re
from pathlib import Path

from pointsman.api.v1alpha1.conditions import Reason
from pointsman.operator.announce import EVENT_OF_ACTION, OTHER_EVENTS
from pointsman.operator.metrics import OperatorMetrics

PAGE = (Path(__file__).parents[3] / "docs/operator.md").read_text()
REASONS = PAGE[PAGE.index("| reason |") : PAGE.index("## Events")]


def test_every_reason_of_a_condition_is_explained() -> None:
    explained = set(re.findall(r"`([A-Z][A-Za-z]+)`", REASONS))
    assert {str(reason) for reason in Reason} - explained == set()


def test_every_event_is_named() -> None:
    assert {reason for reason in (*EVENT_OF_ACTION.values(), *OTHER_EVENTS) if f"`{reason}`" not in PAGE} == set()


def test_every_metric_is_named() -> None:
    names = {family.name.removeprefix("pointsman_operator") for family in OperatorMetrics().registry.collect()}
    assert {name for name in names if name not in PAGE} == set()
