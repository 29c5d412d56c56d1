"""Decisions as Plans."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.planner.core import ledger
from pointsman.planner.core.types import Alternative, Decision, Reason, RoutingNumbers, Switch, WorkerRole
from pointsman.serving.flow_control import FlowBounds

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def policy(**fields: Any) -> PlannerPolicySpec:
    return PlannerPolicySpec.model_validate(
        {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 8}, "mode": "Active", **fields}
    )


DECISION = Decision(
    Reason.PREFILL_SHORT, "long prompts", 3, 2, RoutingNumbers(512, 32),
    switches=(Switch(WorkerRole.DECODE, WorkerRole.PREFILL, 1),), changes_layout=True,
    inputs=(("ratePerSecond", 4.5),), alternatives=(Alternative(3, 2, 5, 0.97, -0.9, "switch"),),
)  # fmt: skip


def plan(decision: Decision = DECISION, sequence: int = 1, phase: str | None = None, **fields: Any) -> Plan:
    manifest = ledger.plan_manifest(
        namespace="default", service="chat", service_uid="u", sequence=sequence, decision=decision,
        policy=policy(**fields), layout=(2, 3), now=NOW,
    )  # fmt: skip
    if phase:
        manifest["status"] = {"phase": phase}
    return Plan.model_validate(manifest)


def test_a_plan_says_what_why_from_what_and_instead_of_what() -> None:
    made = plan(sequence=42)
    assert made.metadata.name == "chat-00042"
    assert made.spec.pools.prefill.replicas == 3
    assert (made.spec.switches[0].from_role, made.spec.switches[0].count) == ("Decode", 1)
    assert made.spec.reason == "PrefillShort"
    assert made.spec.inputs[0].name == "ratePerSecond"
    assert made.spec.alternatives[0].expected_attainment == 0.97
    assert made.spec.expires_at == NOW + ledger.BEGIN_WITHIN
    assert not made.spec.approval.required


@pytest.mark.parametrize(
    "fields",
    [{"mode": "Approve"}, {"actions": {"roleSwitch": {"needsApproval": True}}}],
)
def test_a_person_must_approve_where_the_policy_says_so(fields: dict[str, Any]) -> None:
    made = plan(**fields)
    assert made.spec.approval.required
    assert made.spec.expires_at == NOW + timedelta(seconds=900)


def test_a_routing_only_plan_needs_nobody_even_in_approve_mode() -> None:
    routing = Decision(Reason.THRESHOLD, "lower", 2, 3, RoutingNumbers(256, 32), changes_routing=True)
    assert not plan(routing, mode="Approve").spec.approval.required


def test_the_same_decision_is_written_once() -> None:
    assert ledger.is_news(DECISION, None)
    assert not ledger.is_news(DECISION, plan())
    assert not ledger.is_news(Decision(Reason.STEADY, "", 2, 3, RoutingNumbers(512, 32)), None)


def test_bounds_of_flow_control_are_part_of_the_plan_and_news_when_they_move() -> None:
    held = replace(DECISION, routing=replace(DECISION.routing, flow=FlowBounds(8000, 20)))
    made = plan(held)
    assert made.spec.routing.pending_tokens_per_prefill_worker == 8000
    assert made.spec.routing.in_flight_per_decode_worker == 20
    assert not ledger.is_news(held, made)
    assert ledger.is_news(held, plan())
    assert ledger.is_news(DECISION, made)  # bounds that are taken away


def test_a_number_is_never_used_twice() -> None:
    assert ledger.next_sequence([], 0) == 1
    assert ledger.next_sequence([plan(sequence=7)], 3) == 8
    assert ledger.next_sequence([], 9) == 10


def test_history_keeps_the_newest_and_everything_that_has_not_ended() -> None:
    plans = [plan(sequence=n, phase="Completed") for n in range(1, 8)] + [
        plan(sequence=8, phase="Executing"),
        plan(sequence=9),
    ]
    assert [old.spec.sequence for old in ledger.outdated(plans, kept=3)] == [4, 3, 2, 1]
