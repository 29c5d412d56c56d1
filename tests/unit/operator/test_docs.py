"""Who looks a reason or an Event up in the documentation finds it."""

import re
from pathlib import Path

from pointsman.api.v1alpha1.conditions import Reason
from pointsman.operator.announce import EVENT_OF_ACTION, OTHER_EVENTS
from pointsman.operator.core import actions
from pointsman.operator.metrics import OperatorMetrics

PAGE = (Path(__file__).parents[3] / "docs/operator.md").read_text()
REASONS = PAGE[PAGE.index("| reason |") : PAGE.index("## Events")]


def test_every_reason_of_a_condition_is_explained() -> None:
    explained = set(re.findall(r"`([A-Z][A-Za-z]+)`", REASONS))
    assert {str(reason) for reason in Reason} - explained == set()


def test_every_event_is_named() -> None:
    assert {reason for reason in (*EVENT_OF_ACTION.values(), *OTHER_EVENTS) if f"`{reason}`" not in PAGE} == set()


def test_every_action_is_told_by_an_event_of_its_own() -> None:
    told_on_themselves = {"SetPlanStatus", "SetSwitchStatus"}
    kinds = {
        name
        for name, kind in vars(actions).items()
        if isinstance(kind, type) and issubclass(kind, actions.Action) and name not in ("Action", "WorkerAction")
    }
    assert kinds == {*EVENT_OF_ACTION, *told_on_themselves}


def test_every_metric_is_named() -> None:
    names = {family.name.removeprefix("pointsman_operator") for family in OperatorMetrics().registry.collect()}
    assert {name for name in names if name not in PAGE} == set()
