"""Decisions about elastic groups, look by look."""

from dataclasses import replace
from typing import Any

import pytest

from pointsman.planner.core.elastic.decide import GroupState, decide
from pointsman.planner.core.elastic.types import GroupDecision, ManagerWindow
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Bounds, Load, Policy, Reason, Service, WorkerCondition
from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.step_sums import StepSums
from unit.planner.elastic.scenes import BOUNDS, HEAVY, LIGHT, POLICY, STEPS, TICK_S, instances, seen
from unit.planner.tuning_guard import others_than_shipped


class Hand:
    """Looks again and again."""

    def __init__(self, policy: Policy = POLICY, bounds: Bounds = BOUNDS) -> None:
        self.state, self.policy, self.bounds, self.at_s = GroupState(), policy, bounds, 1000.0

    def look(self, rate: float, serving: int, starting: int = 0, **more: Any) -> GroupDecision:
        self.at_s += TICK_S
        observation = seen(self.at_s, rate, serving, starting, **more)
        self.state, decision = decide(self.state, observation, self.policy, self.bounds, self.at_s)
        return decision

    def looks(self, count: int, rate: float, serving: int, **more: Any) -> list[GroupDecision]:
        return [self.look(rate, serving, **more) for _ in range(count)]


def rejected(decision: GroupDecision) -> dict[int, str]:
    """Why each other number of instances was rejected."""
    return {each.instances: each.rejected_because for each in decision.alternatives if each.instances is not None}


def test_too_few_instances_are_answered_at_once_and_enough_are_left() -> None:
    hand = Hand()
    first = hand.look(HEAVY, 1)
    assert (first.reason, first.changes_layout) == (Reason.INSTANCES_SHORT, True)
    assert 2 <= first.instances <= 5
    assert first.target == (first.instances,)
    steady = hand.looks(10, HEAVY, first.instances)
    assert {each.reason for each in steady} == {Reason.STEADY}


def test_spare_instances_go_when_no_more_were_needed_for_as_long_as_the_policy_says() -> None:
    hand = Hand()
    decisions = hand.looks(20, LIGHT, 4)
    changing = [number for number, each in enumerate(decisions) if each.changes_layout]
    assert decisions[changing[0]].reason is Reason.SPARE_CAPACITY
    assert decisions[changing[0]].instances == 1
    assert (changing[0] + 1) * TICK_S >= 0.9 * POLICY.scale_in_stabilization_s
    assert decisions[0].message == "1 instance would be enough, but that has not lasted for 30 s yet"


def test_an_instance_that_a_little_more_load_would_need_again_stays_and_none_is_started_for_it() -> None:
    def needs(rate: float) -> float:
        return dict(Hand().look(rate, 2).inputs)["instancesNeeded"]

    rates = [number / 10 for number in range(1, 1000)]
    rate = next(rate for rate in rates if needs(SHIPPED.rate_headroom * rate) == 2)
    assert needs(rate) == 1
    kept = Hand().looks(40, rate, 2)
    assert {each.changes_layout for each in kept} == {False}
    assert kept[-1].message == "1 instance would be enough, but not enough for 15% more requests"
    assert not Hand().look(rate, 1).changes_layout, "it is enough for what is expected"
    assert any(each.changes_layout for each in Hand().looks(40, rate / 2, 2))


@pytest.mark.parametrize(
    ("policy", "more", "why"),
    [
        ({"scale_in": False}, {}, "the policy does not allow scale-in"),
        ({}, {"starting": 1}, "another instance still starts"),
        ({}, {"seen": replace(seen(1.0, LIGHT, 4).seen, old_pages=2)}, "metrics of 2 pods are not known"),
    ],
)
def test_why_spare_instances_stay_is_said(policy: Any, more: Any, why: str) -> None:
    decision = Hand(replace(POLICY, **policy)).looks(40, LIGHT, 4, **more)[-1]
    assert not decision.changes_layout
    assert decision.message == f"1 instance would be enough, but {why}"
    assert {because for number, because in rejected(decision).items() if number < decision.instances} == {why}


def test_bounds_are_named_where_they_allow_no_fewer() -> None:
    decision = Hand(bounds=Bounds(3, 8)).look(LIGHT, 3)
    fewer = {because for number, because in rejected(decision).items() if number < 3}
    assert fewer == {"instances.minReplicas is 3"}


def test_a_short_need_is_not_called_too_little_for_more_requests() -> None:
    hand = Hand()
    hand.look(HEAVY * 2, 4)
    decision = hand.look(LIGHT, 4)
    assert decision.message == "1 instance would be enough, but that has not lasted for 30 s yet"


def test_each_number_has_its_own_reason() -> None:
    """At 3.5 requests/s one instance is enough, and for 15 % more two are needed."""
    decision = next(each for each in Hand().looks(40, 3.5, 4) if each.changes_layout)
    assert (decision.reason, decision.instances) == (Reason.SPARE_CAPACITY, 2)
    assert rejected(decision)[1] == "not enough for 15% more requests"
    starting = Hand().look(3.5, 1, starting=2)
    assert rejected(starting)[1] == "not enough for 15% more requests", "that will be so when they serve, too"
    assert rejected(starting)[2] == "another instance still starts"


def test_what_a_plan_that_is_executed_does_is_not_explained_otherwise() -> None:
    decision = Hand().looks(40, LIGHT, 4, plan_in_progress=True)[-1]
    assert decision.reason is Reason.PLAN_IN_PROGRESS
    assert rejected(decision)[3] == decision.message == "waiting for the end of the plan that is being executed"


def test_the_most_allowed_is_not_called_enough_where_it_is_not() -> None:
    """Four run, maxReplicas became 2."""
    decisions = Hand(bounds=Bounds(1, 2)).looks(40, HEAVY * 3, 4)
    assert decisions[0].reason is Reason.UNSATISFIABLE
    limit = "the most that the bounds and the budget allow (objective: 90%)"
    assert decisions[0].message == f"2 instances keep 0% of requests within the objectives, {limit}"
    removed = next(each for each in decisions if each.changes_layout)
    assert (removed.instances, removed.message) == (2, decisions[0].message)


def test_a_group_that_cannot_meet_its_objectives_does_not_grow_for_next_to_nothing() -> None:
    """12 % of the prompts miss TTFT alone: three instances keep .879 of the requests, and 32 keep .88."""
    shares = ((2000.0, 0.88), (30_000.0, 0.12))
    long = Load(LIGHT, prompt_tokens=5360, output_tokens=200, prompt_length_shares=shares)
    hand = Hand(replace(POLICY, max_gpus=32), Bounds(1, 32))
    decision = hand.look(LIGHT, 2, seen=replace(seen(1002.5, LIGHT, 2).seen, load=long))
    assert (decision.reason, decision.instances) == (Reason.INSTANCES_SHORT, 3)
    kept = "3 instances keep 88% of requests within the objectives, and more would hardly help (objective: 90%)"
    assert decision.message == f"2 are too few: {kept}"
    stays = hand.look(LIGHT, 3, seen=replace(seen(1005.0, LIGHT, 3).seen, load=long))
    assert (stays.reason, stays.message) == (Reason.UNSATISFIABLE, kept)


def test_an_instance_below_one_that_does_not_start_stays_and_why_is_said() -> None:
    starts = [replace(each, condition=WorkerCondition.STARTING) for each in instances(1)]
    pods = (*starts, *instances(2)[1:])
    hand = Hand()
    decision = [hand.look(LIGHT, 1, starting=1, instances=pods) for _ in range(200)][-1]
    assert not decision.changes_layout
    why = "an instance that serves would be removed before one that does not start"
    assert f"1 instance would be enough, but {why}".lower() in decision.message.lower()


def test_a_short_need_in_that_time_keeps_them() -> None:
    hand = Hand()
    hand.looks(8, LIGHT, 4)
    hand.look(HEAVY * 2, 4)
    assert not any(each.changes_layout and each.instances < 4 for each in hand.looks(6, LIGHT, 4))


def test_nothing_is_decided_on_what_is_not_known() -> None:
    stale = Hand().look(HEAVY, 1)
    assert stale.changes_layout
    for unknown, reason in (
        ({"seen": replace(seen(1.0, HEAVY, 1).seen, load=None)}, Reason.STALE_METRICS),
        ({"seen": replace(seen(1.0, HEAVY, 1).seen, age_s=float("inf"))}, Reason.STALE_METRICS),
        ({"manager": None}, Reason.NOT_ENOUGH_DATA),
        ({"latency": LatencyModel({})}, Reason.NOT_ENOUGH_DATA),
        ({"manager": ManagerWindow(StepSums(0, 0, 0, 0, 0), 1e5, 1e5, 0.0)}, Reason.NOT_ENOUGH_DATA),
    ):
        decision = Hand().look(HEAVY, 1, **unknown)
        assert (decision.reason, decision.changes_layout, decision.instances) == (reason, False, 1), decision


def test_bounds_and_budget_hold_and_what_they_do_not_allow_is_said() -> None:
    hand = Hand(bounds=Bounds(1, 2))
    at_most = hand.look(HEAVY * 3, 1)
    assert (at_most.reason, at_most.instances) == (Reason.INSTANCES_SHORT, 2)
    assert "the most that the bounds and the budget allow" in at_most.message
    assert hand.look(HEAVY * 3, 2).reason is Reason.UNSATISFIABLE
    starts_none = Hand(bounds=Bounds(1, 2), policy=replace(POLICY, scale_out=False)).look(HEAVY * 3, 1)
    assert starts_none.message == "2 instances are needed, but the policy does not allow scale-out"
    assert Hand().look(LIGHT, 1).message.startswith("1 instance keeps ")
    assert Hand(replace(POLICY, max_gpus=4)).look(HEAVY * 3, 2, gpus_each=2).instances == 2
    assert Hand(bounds=Bounds(3, 8)).look(LIGHT, 2).instances == 3


def test_requests_that_wait_ask_for_more_than_the_rate_does() -> None:
    alone = Hand().look(HEAVY, 1)
    waiting = Hand().look(HEAVY, 1, manager=ManagerWindow(STEPS, 1e5, 8e4, 200.0))
    assert waiting.instances > alone.instances


def test_starting_instances_count_and_no_scale_in_is_decided_meanwhile() -> None:
    hand = Hand()
    first = hand.look(HEAVY, 1)
    again = hand.look(HEAVY, 1, starting=first.instances - 1, plan_in_progress=True)
    assert not again.changes_layout
    assert not any(each.changes_layout for each in hand.looks(30, LIGHT, 4, starting=1))


def test_an_instance_that_never_starts_holds_no_scale_in_up_for_ever() -> None:
    hand = Hand()
    decisions = hand.looks(200, LIGHT, 4, starting=1)  # 500 s, where a start is believed to take 20
    (first, *_) = [number for number, each in enumerate(decisions) if each.changes_layout]
    assert first * TICK_S > 4 * POLICY.start_s
    assert decisions[first].reason is Reason.SPARE_CAPACITY
    assert decisions[first].message.endswith("take too long to start and are ignored: g-4.")
    assert "not waited for" not in decisions[0].message


def test_no_instance_that_serves_is_taken_away_for_one_that_never_starts() -> None:
    """A StatefulSet takes the highest ordinals away, and the stuck one is the lowest."""
    first_is_stuck = [
        replace(worker, condition=WorkerCondition.STARTING if number == 0 else WorkerCondition.ACTIVE)
        for number, worker in enumerate(instances(5))
    ]
    hand = Hand()
    decisions = [hand.look(LIGHT, 4, starting=1, instances=tuple(first_is_stuck)) for _ in range(200)]
    (first, *_) = [each for each in decisions if each.changes_layout]
    assert (first.reason, first.instances) == (Reason.SPARE_CAPACITY, 2), "one is needed, and it is the second"


def test_a_plan_that_waits_for_a_person_is_not_made_again_and_is_withdrawn_when_unwanted() -> None:
    hand = Hand()
    first = hand.look(HEAVY, 1)
    again = hand.look(HEAVY, 1, awaiting_approval=first.instances)
    assert (again.reason, again.changes_layout) == (Reason.AWAITING_APPROVAL, False)
    anew = hand.look(HEAVY, 1, awaiting_approval=first.instances, needs_approval=False)
    assert (anew.changes_layout, anew.instances) == (True, first.instances), "the same without an approval"
    hand = Hand()
    decisions = hand.looks(30, LIGHT, 1, awaiting_approval=3, needs_approval=False)
    withdrawn = [number for number, each in enumerate(decisions) if each.withdraws]
    assert withdrawn
    assert withdrawn[0] * TICK_S >= POLICY.scale_in_stabilization_s
    assert decisions[withdrawn[0]].reason is Reason.WITHDRAWN


def test_a_decision_says_its_numbers_and_what_else_was_considered() -> None:
    decision = Hand().look(HEAVY, 1)
    assert {"ratePerSecond", "highRatePerSecond", "stepSeconds", "instancesNeeded"} <= {n for n, _ in decision.inputs}
    chosen, *others = decision.alternatives
    assert (chosen.instances, chosen.rejected_because, chosen.action) == (decision.instances, "", "scale-out")
    assert all(each.rejected_because for each in others)
    assert 1 in {each.instances for each in others}


def test_what_clients_get_too_late_asks_for_more_than_the_model_does() -> None:
    hand = Hand()
    enough = hand.look(HEAVY, 1).instances
    late = Service(ttft_attainment=0.5, tpot_attainment=0.9)
    decisions = [
        hand.look(HEAVY, enough, seen=replace(seen(hand.at_s + TICK_S, HEAVY, enough).seen, service=late))
        for _ in range(60)
    ]
    assert max(each.instances for each in decisions) > enough


def test_a_window_without_answers_neither_proves_nor_forgets_anything() -> None:
    hand = Hand()
    hand.looks(10, HEAVY, 4)
    before = hand.state.margin
    unknown = Service()
    hand.look(HEAVY, 4, seen=replace(seen(hand.at_s + TICK_S, HEAVY, 4).seen, service=unknown))
    assert hand.state.margin == before


def test_the_policy_says_whether_instances_are_started_and_removed() -> None:
    none = replace(POLICY, scale_out=False, scale_in=False)
    more = Hand(none).look(HEAVY, 1)
    assert (more.changes_layout, more.reason) == (False, Reason.STEADY)
    assert "the policy does not allow scale-out" in more.message
    assert not any(each.changes_layout for each in Hand(none).looks(30, LIGHT, 4))


def test_the_end_of_a_plan_is_awaited_unless_it_waits_for_instances_to_start() -> None:
    assert Hand().look(HEAVY, 1, plan_in_progress=True).reason is Reason.PLAN_IN_PROGRESS
    more = Hand().look(HEAVY * 2, 1, starting=1, plan_in_progress=True)
    assert (more.reason, more.changes_layout) == (Reason.INSTANCES_SHORT, True)


def test_a_decision_reads_only_the_constants_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(replace(POLICY, tuning=others_than_shipped(monkeypatch)))
    hand.looks(12, HEAVY, 1)
    hand.look(HEAVY, 1, starting=1)
    assert any(each.changes_layout for each in hand.looks(20, LIGHT, 4))
