"""What a policy says about itself: who follows it, and what of it contradicts a service."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.llmservice import Routing, RoutingObjectives
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy, PlannerPolicySpec, PlannerPolicyStatus
from pointsman.operator.core.policies import contradiction, policy_status, with_objectives
from pointsman.operator.core.snapshot import Policy
from pointsman.operator.core.unknown_fields import LAST_APPLIED, dropped_fields
from unit.operator.world import spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)


def policy(least: int, most: int) -> PlannerPolicySpec:
    return PlannerPolicySpec.model_validate(
        {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"minGpus": least, "maxGpus": most}}
    )


def said(status: PlannerPolicyStatus) -> dict[str, tuple[str, str]]:
    return {condition.type: (condition.status, condition.reason) for condition in status.conditions}


def test_a_policy_that_services_can_follow_is_accepted_and_names_them() -> None:
    status = policy_status(
        policy(2, 8),
        {"code": spec(), "chat": spec()},
        dropped=None,
        before=PlannerPolicyStatus(),
        generation=3,
        now=NOW,
    )
    assert said(status) == {"Accepted": ("True", "Accepted"), "InUse": ("True", "InUse")}
    assert status.conditions[1].message == "used by chat, code"
    assert status.observed_generation == 3


@pytest.mark.parametrize(
    ("least", "most", "gpus", "reason", "right"),
    [
        (1, 3, 1, Reason.BUDGET_BELOW_MINIMUM, "maxGpus >= 4"),
        (1, 7, 2, Reason.BUDGET_BELOW_MINIMUM, "maxGpus >= 8"),
        (9, 20, 1, Reason.BUDGET_ABOVE_MAXIMUM, "minGpus <= 8"),
        (1, 4, 0, None, ""),
        (8, 8, 1, None, ""),
    ],
)
def test_a_budget_that_contradicts_a_services_bounds_is_refused_with_what_would_be_right(
    least: int, most: int, gpus: int, reason: Reason | None, right: str
) -> None:
    service = spec(prefill=(1, 1, 4), decode=(3, 3, 4), worker={"gpus": gpus})
    found = contradiction(policy(least, most), "chat", service)
    if reason is None:
        assert found is None
        return
    assert found is not None
    assert found[0] is reason
    assert right in found[1]
    status = policy_status(
        policy(least, most), {"chat": service}, dropped=None, before=PlannerPolicyStatus(), generation=1, now=NOW
    )
    assert said(status)["Accepted"] == ("False", reason)


def test_times_stay_where_nothing_flips_and_an_unchanged_status_is_equal() -> None:
    first = policy_status(policy(1, 8), {}, dropped=None, before=PlannerPolicyStatus(), generation=1, now=NOW)
    assert said(first)["InUse"] == ("False", "NotInUse")
    assert policy_status(policy(1, 8), {}, dropped=None, before=first, generation=1, now=LATER) == first
    used = policy_status(policy(1, 8), {"chat": spec()}, dropped=None, before=first, generation=1, now=LATER)
    assert [condition.last_transition_time for condition in used.conditions] == [NOW, LATER]


def test_fields_that_this_version_ignores_are_named_where_somebody_set_them() -> None:
    goals = {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 8}}

    def accepted(**fields: Any) -> tuple[str, str]:
        written = PlannerPolicySpec.model_validate(goals | fields)
        status = policy_status(written, {}, dropped=None, before=PlannerPolicyStatus(), generation=1, now=NOW)
        return status.conditions[0].status, status.conditions[0].message

    as_written = ("True", "applied as written, in mode Shadow")
    defaults = {"actions": {"roleSwitch": {"minDwellSeconds": 60, "drainFirst": True}}, "history": {"plans": 50}}
    assert accepted() == accepted(**defaults) == as_written
    edited = {"actions": {"roleSwitch": {"minDwellSeconds": 5, "drainFirst": False}}, "history": {"plans": 50}}
    assert accepted(**edited) == (
        "True",
        "applied in mode Shadow, without fields that this version ignores: actions.roleSwitch.drainFirst (false), "
        "actions.roleSwitch.minDwellSeconds (5)",
    )


def stored(applied: str | None, **spec: Any) -> dict[str, Any]:
    """A policy as the API server has it, and what was applied last."""
    annotations = {} if applied is None else {LAST_APPLIED: applied}
    return {"metadata": {"name": "chat", "annotations": annotations}, "spec": {**policy(1, 8).manifest(), **spec}}


def test_a_field_that_was_dropped_is_named_and_the_policy_is_not_as_it_was_written() -> None:
    applied = json.dumps({"spec": {**policy(1, 8).manifest(), "actions": {"roleSwich": {"enabled": False}}}})
    dropped = dropped_fields(PlannerPolicy, stored(applied))
    assert dropped is not None
    assert "spec.actions.roleSwich: there is no such field; did you mean roleSwitch?" in dropped
    status = policy_status(policy(1, 8), {}, dropped=dropped, before=PlannerPolicyStatus(), generation=1, now=NOW)
    assert said(status)["Accepted"] == ("False", "UnknownField")


@pytest.mark.parametrize("applied", [None, "{", '{"spec": {"mode": "Active"}}'])
def test_where_nothing_was_dropped_or_nothing_is_known_nothing_is_said(applied: str | None) -> None:
    assert dropped_fields(PlannerPolicy, stored(applied)) is None


def test_a_field_that_is_newer_than_this_operator_was_not_dropped() -> None:
    assert dropped_fields(PlannerPolicy, stored('{"spec": {"horizonSeconds": 60}}', horizonSeconds=60)) is None
    assert dropped_fields(PlannerPolicy, stored('{"spec": {"horizonSeconds": 60}}')) is not None


def test_the_objectives_of_the_policy_are_beside_the_routing_numbers_and_go_with_it() -> None:
    follows = Policy(name="chat", spec=policy(2, 8))
    goals = RoutingObjectives(ttft_ms=1000, tpot_ms=50)
    numbers = Routing(max_local_prefill_tokens=512, max_prefill_queue_size=8, set_by="plan/chat-00001")
    assert with_objectives(None, follows) == Routing(objectives=goals)
    both = with_objectives(numbers, follows)
    assert both == numbers.model_copy(update={"objectives": goals})
    assert with_objectives(both, None) == numbers
    assert with_objectives(Routing(objectives=goals), None) is None
    assert with_objectives(None, None) is None
