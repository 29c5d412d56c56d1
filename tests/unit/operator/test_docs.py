"""Who looks a reason or an Event up in the documentation finds it."""

import re
from enum import StrEnum
from pathlib import Path

import pytest

from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.plan import PlanPhase, PlanReason
from pointsman.api.v1alpha1.roleswitch import SwitchPhase, SwitchReason
from pointsman.operator.announce import EVENT_OF_ACTION, OTHER_EVENTS
from pointsman.operator.core import actions
from pointsman.operator.core.ledger import ChangeKind
from pointsman.operator.metrics import OperatorMetrics

DOCS = Path(__file__).parents[3] / "docs"
CONDITIONS = (DOCS / "operate" / "conditions.md").read_text()
SWITCHES = (DOCS / "operate" / "role-switches.md").read_text()
PAGE = (DOCS / "reference" / "operator.md").read_text()
PLANS = (DOCS / "planner" / "plans.md").read_text()


@pytest.mark.parametrize(
    ("words", "section"),
    [(Reason, CONDITIONS), (SwitchReason, SWITCHES), (SwitchPhase, SWITCHES), (PlanReason, PLANS), (PlanPhase, PLANS)],
)
def test_every_reason_and_phase_is_explained(words: type[StrEnum], section: str) -> None:
    explained = set(re.findall(r"`([A-Z][A-Za-z]+)`", section))
    assert {str(word) for word in words} - explained == set()


def test_every_event_is_named() -> None:
    assert {reason for reason in (*EVENT_OF_ACTION.values(), *OTHER_EVENTS) if f"`{reason}`" not in CONDITIONS} == set()


def test_every_action_is_told_by_an_event_of_its_own() -> None:
    told_on_themselves = {"SetPlanStatus", "SetSwitchStatus", "SetRoutableCondition"}
    kinds = {
        name
        for name, kind in vars(actions).items()
        if isinstance(kind, type)
        and issubclass(kind, actions.Action)
        and name not in ("Action", "WorkerAction", "WritePool")
    }
    told_by_their_kind = {"Action", "WorkerAction", "WritePool", "PatchPod"}
    assert (kinds - told_by_their_kind) | {*ChangeKind, *actions.PodChange} == {*EVENT_OF_ACTION, *told_on_themselves}


def test_every_metric_is_named() -> None:
    names = {family.name.removeprefix("pointsman_operator") for family in OperatorMetrics().registry.collect()}
    assert {name for name in names if name not in CONDITIONS} == set()
