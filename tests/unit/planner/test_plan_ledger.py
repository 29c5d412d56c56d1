"""Decisions as Plans."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plan import Plan
from pointsman.planner.core import plan_ledger
from pointsman.planner.core.elastic.types import GroupDecision
from pointsman.planner.core.types import Alternative, Decision, Reason, RoutingNumbers, Switch
from unit.planner.plans import DECISION, NOW, OWNER, plan, policy


def news(decision: Decision, *plans: Plan, after_s: float = 0.0, **fields: Any) -> Decision | None:
    """What is written of a decision, so long after the plans ended."""
    return plan_ledger.news(decision, plans, policy(**fields), (2, 3), NOW + timedelta(seconds=after_s))


def test_a_plan_says_what_why_from_what_and_instead_of_what() -> None:
    made = plan(sequence=42)
    assert made.metadata.name == "chat-00042"
    assert made.spec.target[0] == 3
    assert (made.spec.switches[0].from_role, made.spec.switches[0].count) == ("Decode", 1)
    assert made.spec.reason == "PrefillShort"
    assert made.spec.inputs[0].name == "ratePerSecond"
    assert made.spec.alternatives[0].expected_attainment == 0.97
    assert made.spec.alternatives[0].lead_seconds == 10.0
    assert made.spec.expires_at == NOW + plan_ledger.BEGIN_WITHIN
    assert not made.spec.approval.required


def test_names_of_plans_sort_as_they_were_made_for_ever() -> None:
    """P-D16: names had five digits, and 100000 sorts before 99999."""
    around_powers = {10**power + more for power in range(1, 15) for more in (-1, 0, 1)}
    sequences = sorted({*range(1, 200, 7), *around_powers})
    names = [plan_ledger.plan_name("chat", sequence) for sequence in sequences]
    assert names == sorted(names)
    assert names[sequences.index(99_999)] == "chat-99999", "as earlier planners named it"
    assert names[sequences.index(100_000)] == "chat-a100000"
    assert len(set(names)) == len(names)


STAY = Alternative(2, 3, 5, 0.33, 0.0, "stay", "fewer prefill workers than needed: 3 needed")


def test_what_kubectl_shows_of_a_plan_is_the_change_its_gpus_and_what_it_is_expected_to_bring() -> None:
    spec = plan(replace(DECISION, alternatives=(*DECISION.alternatives, STAY))).spec
    assert (spec.change, spec.gpus, spec.attainment) == ("2P3D -> 3P2D", 5, "33% -> 97%")
    assert plan(replace(DECISION, alternatives=())).spec.change == "2P3D -> 3P2D", "of a decision without estimates"
    encodes = encode_plan(replace(ENCODES, alternatives=(replace(STAY, rejected_because=""),)))
    assert (encodes.spec.change, encodes.spec.gpus, encodes.spec.attainment) == ("2E2P3D -> 4E2P3D", 9, "33%")
    withdrawn = replace(DECISION, prefill=2, decode=3, switches=(), changes_layout=False, withdraws=True)
    manifest = plan_ledger.plan_manifest(
        namespace="default", owner=OWNER, sequence=2, decision=withdrawn, policy=policy(),
        layout=(2, 3), now=NOW, awaiting="chat-00001",
    )  # fmt: skip
    assert manifest["spec"]["change"] == "withdraws chat-00001"


@pytest.mark.parametrize(
    "fields",
    [{"mode": "Approve"}, {"actions": {"roleSwitch": {"needsApproval": True}}}],
)
def test_a_person_must_approve_where_the_policy_says_so(fields: dict[str, Any]) -> None:
    made = plan(**fields)
    assert made.spec.approval.required
    assert made.spec.expires_at == NOW + timedelta(seconds=900)


ENCODES = replace(
    DECISION, reason=Reason.ENCODE_SHORT, prefill=2, decode=3, switches=(), changes_layout=False, encode=4,
    changes_encode=True,
)  # fmt: skip


def encode_news(decision: Decision, *plans: Plan, after_s: float = 0.0, **fields: Any) -> Decision | None:
    """The same of a service with two encode workers."""
    return plan_ledger.news(decision, plans, policy(**fields), (2, 3, 2), NOW + timedelta(seconds=after_s))


def encode_plan(decision: Decision = ENCODES, sequence: int = 1, **fields: Any) -> Plan:
    manifest = plan_ledger.plan_manifest(
        namespace="default", owner=OWNER, sequence=sequence, decision=decision,
        policy=policy(**fields), layout=(2, 3, 2), now=NOW,
    )  # fmt: skip
    return Plan.model_validate(manifest)


def test_encode_workers_alone_are_a_plan_that_the_operator_carries_out() -> None:
    assert encode_news(ENCODES) == ENCODES
    made = encode_plan()
    assert made.spec.target == (2, 3, 4)
    assert made.spec.target_in_words == "4E2P3D"
    assert [other.encode for other in made.spec.alternatives] == [4]
    assert made.spec.changes_layout
    assert encode_news(ENCODES, made) is None, "it is not repeated while it is carried out"
    fewer = replace(ENCODES, encode=1)
    assert encode_news(fewer, made) == fewer
    assert encode_news(replace(ENCODES, encode=0)) is not None, "encode workers may be none"


@pytest.mark.parametrize(("action", "encode"), [("scaleOut", 4), ("scaleIn", 1)])
def test_a_person_is_asked_for_encode_workers_as_the_policy_says(action: str, encode: int) -> None:
    decision = replace(ENCODES, encode=encode)
    other = {"scaleOut": "scaleIn", "scaleIn": "scaleOut"}[action]
    assert encode_plan(decision, actions={action: {"needsApproval": True}}).spec.approval.required
    assert not encode_plan(decision, actions={other: {"needsApproval": True}}).spec.approval.required


def test_where_an_autoscaler_owns_the_pools_nothing_is_written() -> None:
    assert encode_news(ENCODES, mode="External") is None
    assert news(DECISION, mode="External") is None


def test_a_service_without_an_encode_pool_has_plans_without_one() -> None:
    spec = plan().spec.manifest()
    assert set(spec["pools"]) == {"prefill", "decode"}
    assert plan().spec.target == (3, 2)
    assert "encode" not in spec["alternatives"][0]


@pytest.mark.parametrize("action", ["scaleOut", "scaleIn"])
@pytest.mark.parametrize(
    ("switches", "target"),
    [((), (3, 2)), ((Switch(Role.PREFILL, Role.DECODE, 1),), (2, 3))],
    ids=["one goes and one of the other role comes", "the place of one that switches is filled by a start"],
)
def test_who_is_started_in_the_place_of_another_is_started_and_needs_whom_the_policy_says(
    action: str, switches: tuple[Switch, ...], target: tuple[int, int]
) -> None:
    decision = replace(DECISION, switches=switches, prefill=target[0], decode=target[1])
    assert plan_ledger.needs_approval(decision, policy(actions={action: {"needsApproval": True}}), (2, 3))
    assert not plan_ledger.needs_approval(DECISION, policy(actions={action: {"needsApproval": True}}), (2, 3))


def test_the_same_decision_is_written_once() -> None:
    assert news(DECISION) == DECISION
    assert news(DECISION, plan()) is None
    assert news(DECISION, plan(mode="Shadow", phase="Shadow"), after_s=86_400, mode="Shadow") is None
    assert news(Decision(Reason.STEADY, "", 2, 3, RoutingNumbers(512, 32))) is None


@pytest.mark.parametrize("phase", ["Failed", "Expired", "Superseded", "Completed"])
def test_what_a_plan_did_not_bring_to_stay_is_tried_again_after_half_a_minute(phase: str) -> None:
    """A worker that found no node, an operator that was away: the wish is still there and its numbers need not move."""
    assert news(DECISION, plan(phase=phase), after_s=29) is None
    assert news(DECISION, plan(phase=phase), after_s=30) == DECISION


def test_each_failure_of_the_same_layout_doubles_the_wait_up_to_ten_minutes() -> None:
    for failures, wait_s in ((2, 60), (3, 120), (5, 480), (6, 600), (50, 600)):
        plans = [plan(sequence=n + 1, phase="Failed") for n in range(failures)]
        assert news(DECISION, *plans, after_s=wait_s - 1) is None
        assert news(DECISION, *plans, after_s=wait_s) == DECISION


def test_two_layouts_that_fail_in_turn_each_wait() -> None:
    plans = [plan(DECISION if n % 2 else replace(DECISION, decode=4), sequence=n, phase="Failed") for n in range(1, 6)]
    assert news(DECISION, *plans, after_s=119) is None
    assert news(DECISION, *plans, after_s=120) == DECISION
    assert news(replace(DECISION, prefill=4), *plans) is not None  # a third one is no repetition


def test_a_wall_clock_that_was_set_back_is_not_waited_for() -> None:
    assert news(DECISION, plan(phase="Failed"), after_s=-3600) == DECISION
    assert news(DECISION, plan(phase="Failed"), after_s=-2) is None  # clocks of two computers differ a little


def test_a_layout_that_was_reached_ends_the_wait() -> None:
    back = replace(DECISION, prefill=2, decode=3)
    plans = [plan(phase="Failed"), plan(sequence=2, phase="Failed"), plan(back, sequence=3, phase="Completed")]
    assert news(DECISION, *plans) == DECISION


def test_a_plan_that_was_overtaken_by_another_did_not_fail() -> None:
    other = replace(DECISION, decode=4)
    assert news(DECISION, plan(phase="Superseded"), plan(other, sequence=2)) == DECISION


def test_what_a_person_denied_is_asked_again_only_after_the_time_a_person_has() -> None:
    denied = plan(phase="Denied", mode="Approve")
    assert news(DECISION, denied, after_s=899, mode="Approve") is None
    assert news(DECISION, denied, after_s=900, mode="Approve") == DECISION


def test_a_plan_awaits_approval_until_a_person_answers() -> None:
    asked = plan(mode="Approve", phase="AwaitingApproval")
    assert plan_ledger.awaits_approval(asked)
    assert plan_ledger.awaits_approval(plan(mode="Approve"))  # not seen by the operator yet
    assert not plan_ledger.to_be_carried_out(asked)
    said = asked.spec.approval.model_copy(update={"decision": "Approved"})
    approved = asked.model_copy(update={"spec": asked.spec.model_copy(update={"approval": said})})
    assert not plan_ledger.awaits_approval(approved)
    assert plan_ledger.to_be_carried_out(approved)
    assert plan_ledger.to_be_carried_out(plan(phase="Executing"))
    assert not plan_ledger.to_be_carried_out(plan(phase="Failed"))
    assert not plan_ledger.to_be_carried_out(plan(mode="Shadow"))
    assert not plan_ledger.awaits_approval(plan(mode="Shadow", actions={"roleSwitch": {"needsApproval": True}}))


def test_a_withdrawal_is_written_and_names_the_plan_that_a_person_is_asked_for_no_more() -> None:
    asked = plan(mode="Approve", phase="AwaitingApproval")
    stays = replace(DECISION, prefill=2, decode=3, switches=(), changes_layout=False, withdraws=True)
    assert plan_ledger.asked_of_a_person([asked]) == asked
    assert news(stays, asked, mode="Approve") == stays
    manifest = plan_ledger.plan_manifest(
        namespace="default", owner=OWNER, sequence=2, decision=stays,
        policy=policy(mode="Approve"), layout=(2, 3), now=NOW, awaiting=asked.metadata.name,
    )  # fmt: skip
    withdrawal = Plan.model_validate(manifest)
    assert withdrawal.spec.withdraws == "chat-00001"
    assert not withdrawal.spec.approval.required
    assert plan_ledger.asked_of_a_person([asked, withdrawal]) is None
    assert plan(mode="Approve").spec.withdraws == ""
    anew = plan(sequence=3, mode="Approve")
    assert plan_ledger.asked_of_a_person([asked, withdrawal, anew]) == anew


@pytest.mark.parametrize(
    ("actions", "still"), [({}, False), ({"scaleOut": {"needsApproval": True}}, False),
                           ({"roleSwitch": {"needsApproval": True}}, True)],
)  # fmt: skip
def test_a_plan_waits_for_a_person_only_while_the_policy_asks_for_its_change(
    actions: dict[str, Any], still: bool
) -> None:
    asked = plan(mode="Approve", phase="AwaitingApproval")
    assert plan_ledger.needs_approval(asked.spec, policy(actions=actions), (2, 3)) is still
    assert plan_ledger.asked_of_a_person([asked]) == asked, "a person can approve it until it ends"
    assert (news(DECISION, asked, actions=actions) is None) is still, "the same layout, now without an approval"


def test_a_plan_with_encode_workers_is_still_asked_for_after_the_service_lost_that_pool() -> None:
    asked = encode_plan(mode="Approve")
    assert plan_ledger.asked_of_a_person([asked]) == asked


def test_what_was_withdrawn_is_asked_again_when_it_is_wanted_again() -> None:
    withdrawn = plan(mode="Approve", phase="Superseded")
    assert news(DECISION, withdrawn, after_s=29, mode="Approve") is None
    assert news(DECISION, withdrawn, after_s=30, mode="Approve") == DECISION


def test_a_number_is_never_used_twice() -> None:
    assert plan_ledger.next_sequence([], 0) == 1
    assert plan_ledger.next_sequence([plan(sequence=7)], 3) == 8
    assert plan_ledger.next_sequence([], 9) == 10


ROUTED = Decision(Reason.THRESHOLD, "lower", 2, 3, RoutingNumbers(256, 32), routing_reason=Reason.THRESHOLD)


@pytest.mark.parametrize("mode", ["Active", "Approve", "External", "Shadow"])
def test_routing_numbers_alone_are_no_plan(mode: str) -> None:
    assert news(ROUTED, mode=mode) is None


def test_a_plan_carries_no_routing_numbers() -> None:
    assert plan(replace(DECISION, routing=ROUTED.routing, routing_reason=Reason.THRESHOLD)).spec.routing is None


def test_plans_of_an_earlier_planner_that_only_set_routing_are_no_news_and_freeze_nothing() -> None:
    routed = plan(ROUTED, sequence=2, phase="Completed")
    assert not plan_ledger.to_be_carried_out(plan(ROUTED, sequence=2))
    assert news(DECISION, plan(), routed) is None, "the layout is on its way, whatever was routed since"
    assert news(DECISION, routed) == DECISION
    assert news(replace(DECISION, decode=4), plan(), routed) is not None
    old = [plan(ROUTED, sequence=n, phase="Completed") for n in range(1, 30)]
    newer = [plan(sequence=n, phase="Completed") for n in range(30, 32)]
    assert plan_ledger.outdated([*newer, *old], kept=3) == old[:28], "the oldest go first"


def test_history_keeps_the_newest_and_everything_that_has_not_ended() -> None:
    plans = [plan(sequence=n, phase="Completed") for n in range(1, 8)] + [
        plan(sequence=8, phase="Executing"),
        plan(sequence=9),
    ]
    assert [old.spec.sequence for old in plan_ledger.outdated(plans, kept=3)] == [1, 2, 3, 4]


def test_the_plan_of_an_elastic_group_has_instances_and_neither_pools_nor_routing() -> None:
    decision = GroupDecision(
        Reason.INSTANCES_SHORT, "more requests", 4, changes_layout=True,
        alternatives=(Alternative(0, 0, 4, 0.97, 60.0, "scale-out", instances=4),),
    )  # fmt: skip
    manifest = plan_ledger.plan_manifest(
        namespace="default", owner=OWNER | {"kind": "ElasticGroup", "name": "long-chat"}, sequence=1, decision=decision,
        policy=policy(mode="Approve"), layout=(2,), now=NOW,
    )  # fmt: skip
    made = Plan.model_validate(manifest)
    assert (made.spec.service_ref.kind, made.spec.target, made.spec.target_in_words) == (
        "ElasticGroup", (4,), "4 instances"
    )  # fmt: skip
    assert made.spec.approval.required
    assert {"pools", "routing"}.isdisjoint(manifest["spec"])
    assert (made.spec.change, made.spec.gpus, made.spec.attainment) == ("2 -> 4", 4, "97%")
    assert (made.spec.alternatives[0].instances, made.spec.alternatives[0].prefill) == (4, None)
    assert manifest["metadata"]["ownerReferences"][0]["kind"] == "ElasticGroup"
    again = plan_ledger.news(decision, [made], policy(mode="Approve"), (2,), NOW)
    assert again is None, "it is the same plan"
    other = replace(decision, instances=5)
    assert plan_ledger.news(other, [made], policy(mode="Approve"), (2,), NOW) == other
    assert plan_ledger.news(decision, [], policy(mode="External"), (2,), NOW) is None, "replicas are somebody else's"
