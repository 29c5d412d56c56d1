"""Beside a gateway that is not read, the load is known in part: nothing is concluded from what is missing of it."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pointsman.api.protocol.names import Role
from pointsman.planner.core.decide import decide
from pointsman.planner.core.elastic.decide import GroupState
from pointsman.planner.core.elastic.decide import decide as decide_group
from pointsman.planner.core.layout.unread_gateways import without_removals
from pointsman.planner.core.prediction_score import Score
from pointsman.planner.core.sizing.pool_targets import Needs
from pointsman.planner.core.state import State
from pointsman.planner.core.switch_guards import History, against_switch
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    EncodeLoad,
    Layout,
    Load,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    Service,
    Switch,
    Worker,
    WorkerCondition,
)
from unit.planner.elastic import scenes as groups
from unit.planner.scenes import LLAMA_8B_H100, POLICY, SHORT, observed

SCALES = replace(
    POLICY, scale_in=True, scale_out=True, max_gpus=12, prefill=Bounds(1, 10), decode=Bounds(1, 10),
    objectives=replace(POLICY.objectives, ttft_ms=3000.0),
)  # fmt: skip
LONG = Load(arrivals_per_s=4, prompt_tokens=20000, output_tokens=200, prompt_length_shares=((20000, 1.0),))
ENCODERS = tuple(Worker(f"e{n}", Role.ENCODE, WorkerCondition.ACTIVE) for n in range(3))
UNREAD: dict[str, Any] = {"gateways": 2, "unreadable_gateways": ("g1",)}


class Looks:
    """At a service with two gateways, every decision carried out."""

    def __init__(self, policy: Policy, layout: tuple[int, int], routing: RoutingNumbers) -> None:
        self.policy, self.layout, self.routing = policy, Layout(*layout), routing
        self.state, self.at_s = State(), 0.0

    def go(self, looks: int, load: Load, **seen: Any) -> Iterator[Decision]:
        for _ in range(looks):
            self.at_s += 2.5
            shown = observed(self.at_s, load, *self.layout, **{"gateways": 2, "routing": self.routing, **seen})
            self.state, decision, _ = decide(self.state, shown, self.policy, self.at_s, LLAMA_8B_H100)
            self.layout, self.routing = decision.layout, decision.routing
            yield decision


@pytest.mark.parametrize(("rate", "share"), [(6.0, 0.33), (6.0, 0.5), (5.0, 0.5), (3.0, 0.7)])
def test_no_worker_goes_when_a_gateway_is_read_again(rate: float, share: float) -> None:
    looks = Looks(SCALES, (5, 2), RoutingNumbers(512, 32))
    whole, part = replace(LONG, arrivals_per_s=rate), replace(LONG, arrivals_per_s=rate * share)
    assert [*looks.go(300, whole)]
    before = looks.layout
    assert all(decision.layout.has(before) for decision in looks.go(160, part, **UNREAD))
    after = [decision.layout for decision in looks.go(60, whole)]
    assert min(after, key=lambda layout: layout.total).has(before), after


def test_a_lower_budget_is_kept_and_no_more_workers_go_than_that() -> None:
    looks = Looks(replace(SCALES, max_gpus=8), (2, 4), RoutingNumbers(512, 32))
    whole, part = replace(SHORT, arrivals_per_s=140), replace(SHORT, arrivals_per_s=40)
    assert [*looks.go(100, whole)] and [*looks.go(60, part, **UNREAD)]
    looks.policy = replace(looks.policy, max_gpus=5)
    assert {decision.layout.total for decision in looks.go(100, part, **UNREAD)} == {5}


@pytest.mark.parametrize("seen_per_s", [10.0, 60.0, 96.0, 120.0])
def test_no_bound_and_no_threshold_rises_or_falls_because_a_part_is_not_seen(seen_per_s: float) -> None:
    """Whatever share of the requests that gateway gets."""
    lengths = ((300, 0.3), (400, 0.3), (2000, 0.4))
    load = replace(SHORT, arrivals_per_s=120, prompt_tokens=1200, output_tokens=200, prompt_length_shares=lengths)
    looks = Looks(replace(POLICY, role_switch=False), (2, 4), RoutingNumbers(512, 32))
    assert [*looks.go(100, load)]
    before, part = looks.routing, replace(load, arrivals_per_s=seen_per_s)
    assert {decision.routing for decision in looks.go(100, part, **UNREAD)} == {before}
    assert {decision.routing for decision in looks.go(60, load)} == {before}
    assert {decision.routing for decision in looks.go(100, replace(load, arrivals_per_s=60))} != {before}


def test_a_threshold_that_fits_the_whole_load_stays_beside_an_unread_gateway() -> None:
    lengths = ((300, 0.3), (400, 0.3), (2000, 0.4))
    load = replace(SHORT, arrivals_per_s=100, prompt_tokens=1200, output_tokens=400, prompt_length_shares=lengths)
    looks = Looks(replace(POLICY, role_switch=False), (2, 4), RoutingNumbers(0, 32))
    before, half = [*looks.go(60, load)][-1].routing.max_local_prefill_tokens, replace(load, arrivals_per_s=50)
    assert {decision.routing.max_local_prefill_tokens for decision in looks.go(60, half, **UNREAD)} == {before}
    assert [*looks.go(60, half)][-1].routing.max_local_prefill_tokens > before


def test_the_score_learns_nothing_from_a_part_of_the_load() -> None:
    looks = Looks(SCALES, (2, 4), RoutingNumbers(512, 32))
    assert [*looks.go(10, SHORT)]
    before = looks.state.score
    assert before != Score()
    poor = Service(ttft_attainment=0.2, tpot_attainment=0.2, attainment=0.2)
    assert [*looks.go(40, replace(SHORT, arrivals_per_s=1), service=poor, **UNREAD)]
    assert looks.state.score == before


def test_what_was_there_meanwhile_is_kept_for_a_window_and_is_no_need_that_comes_back() -> None:
    looks, low = Looks(SCALES, (5, 4), RoutingNumbers(512, 32)), replace(LONG, arrivals_per_s=2)
    assert {decision.layout for decision in looks.go(60, low, **UNREAD)} == {(5, 4)}
    window = int(SCALES.scale_in_stabilization_s / SCALES.interval_s)
    totals = [decision.layout.total for decision in looks.go(window + 40, low)]
    assert totals[window // 2] == 9 > totals[-1]
    assert [*looks.go(100, replace(LONG, arrivals_per_s=8))][-1].layout.total > totals[-1]
    assert {needs.returns for needs in looks.state.memory.needs} == {()}


def test_a_new_gateway_after_a_long_outage_is_sized_by_the_last_load() -> None:
    """Beside a new gateway the load is at least what it was: what it was, and not where it once led."""
    looks = Looks(replace(SCALES, max_gpus=32), (3, 3), RoutingNumbers(512, 32))
    for tick in range(120):
        assert [*looks.go(1, replace(SHORT, arrivals_per_s=5 + 0.05 * tick))]
    assert [*looks.go(360, replace(SHORT, arrivals_per_s=11), age_s=900.0)]
    (first,) = looks.go(1, replace(SHORT, arrivals_per_s=11), new_gateways=1)
    assert dict(first.inputs)["ratePerSecond"] < 12


def test_a_role_without_workers_gets_one_of_a_lower_budget() -> None:
    looks = Looks(replace(SCALES, max_gpus=4, role_switch=False), (0, 8), RoutingNumbers(512, 32))
    assert [*looks.go(20, replace(SHORT, arrivals_per_s=5), **UNREAD)][-1].layout == (1, 3)


def test_no_encode_worker_goes_for_prompts_that_become_more() -> None:
    """Else the encode pool gives workers to prefill and decode, where the budget is scarce."""

    def fewest(**hidden: Any) -> int:
        policy = replace(SCALES, max_gpus=8, encode=Bounds(1, 12), role_switch=False)
        seen = {"encode": EncodeLoad(2, 2, 4, 200.0, 0.0), "encode_workers": ENCODERS, "encode_replicas": 3}
        looks = Looks(policy, (2, 3), RoutingNumbers(512, 32))
        return min(
            decision.encode or 0 for decision in looks.go(100, replace(LONG, arrivals_per_s=12), **seen, **hidden)
        )

    assert fewest() < 3
    assert fewest(**UNREAD) == 3


@pytest.mark.parametrize(
    ("hidden", "waits_s"), [(UNREAD, math.inf), ({"gateways": 2, "new_gateways": 1}, 20.0)], ids=str
)
def test_a_switch_waits_for_gateways_that_are_not_read(hidden: dict[str, Any], waits_s: float) -> None:
    switch = Switch(Role.DECODE, Role.PREFILL, 1)
    found = against_switch(switch, observed(500, SHORT, **hidden), POLICY, History())
    assert found is not None and found.seconds == waits_s
    assert against_switch(switch, observed(500, SHORT), POLICY, History()) is None
    assert against_switch(switch, observed(500, SHORT, 0, 6, **hidden), POLICY, History()) is None


@pytest.mark.parametrize("unread", [{}, {"old_pages": 1}], ids=str)
def test_a_lower_budget_takes_no_more_workers_than_it_must_while_a_page_is_not_read(unread: dict[str, Any]) -> None:
    looks = Looks(replace(SCALES, max_gpus=9), (3, 6), RoutingNumbers(512, 32))
    low = replace(SHORT, arrivals_per_s=20)
    assert [*looks.go(10, low)]
    memory = replace(looks.state.memory, needs=(Needs(((25.0, 2),)),))
    looks.state, looks.policy = replace(looks.state, memory=memory), replace(looks.policy, max_gpus=8)
    total = next(looks.go(1, low, **unread)).layout.total
    assert total == 8 if unread else total < 8


class GroupLooks:
    """The same at an elastic group."""

    def __init__(self, instances: int, policy: Policy = groups.POLICY) -> None:
        self.instances, self.policy, self.state, self.at_s = instances, policy, GroupState(), 1000.0

    def go(self, looks: int, rate: float, tpot: float = 0.99, **hidden: Any) -> list[int]:
        found = []
        for _ in range(looks):
            self.at_s += 2.5
            seen = groups.seen(self.at_s, rate, self.instances)
            service = Service(ttft_attainment=0.99, tpot_attainment=tpot)
            part: Observation = replace(seen.seen, service=service, **{"gateways": 2, **hidden})
            self.state, decision = decide_group(
                self.state, replace(seen, seen=part), self.policy, groups.BOUNDS, self.at_s
            )
            self.instances = decision.instances
            found.append(decision.instances)
        return found


@pytest.mark.parametrize(("rate", "share"), [(14.0, 0.5), (8.0, 0.5), (12.0, 0.5)])
def test_no_instance_goes_when_a_gateway_is_read_again(rate: float, share: float) -> None:
    looks = GroupLooks(8)
    before = looks.go(60, rate)[-1]
    assert min(looks.go(100, rate * share, **UNREAD)) >= before
    assert min(looks.go(12, rate)) >= before


def test_late_answers_beside_an_unread_gateway_derate_no_instance() -> None:
    looks = GroupLooks(2, replace(groups.POLICY, max_gpus=2))
    looks.go(40, 12.0)
    looks.go(200, 3.0, tpot=0.6, **UNREAD)
    assert looks.state.margin.share == 1.0


def test_a_plan_for_a_group_is_not_withdrawn_on_a_part_of_the_load() -> None:
    looks = GroupLooks(4, replace(groups.POLICY, scale_out=True))
    assert max(looks.go(40, 12.0)) >= 4
    state, reasons = looks.state, set()
    for number in range(60):
        seen = groups.seen(looks.at_s + 2.5 * number, 5.0, 4)
        seen = replace(seen, seen=replace(seen.seen, **UNREAD), awaiting_approval=6)
        state, decision = decide_group(state, seen, looks.policy, groups.BOUNDS, looks.at_s + 2.5 * number)
        reasons.add(decision.withdraws)
    assert reasons == {False}


def changed(prefill: int, decode: int, **more: Any) -> Decision:
    made = Decision(Reason.SPARE_CAPACITY, "fewer", prefill, decode, RoutingNumbers(512, 32), changes_layout=True)
    return replace(made, **more)


POLICY_16 = replace(POLICY, max_gpus=16)


@pytest.mark.parametrize(
    ("decision", "stays"),
    [
        (changed(1, 4), True),
        (changed(3, 3, switches=(Switch(Role.DECODE, Role.PREFILL, 1),)), True),
        (changed(2, 4, encode=2, changes_encode=True, changes_layout=False), True),
        (changed(3, 4), False),
        (changed(2, 5, encode=4, changes_encode=True), False),
    ],
    ids=["removal", "switch", "encode removal", "start", "starts"],
)
def test_no_decision_takes_a_worker_from_any_pool(decision: Decision, stays: bool) -> None:
    seen = observed(0, SHORT, 2, 4, encode_workers=ENCODERS, encode_replicas=3, **UNREAD)
    found = without_removals(decision, seen, POLICY_16)
    assert found.changes_pools is not stays
    if stays:
        now = (2, 4) if decision.encode is None else (2, 4, 3)
        assert (found.target, found.switches) == (now, ())
        assert found.message.startswith("1 page of metrics could not be read, so no worker is removed")
    assert without_removals(decision, replace(seen, unreadable_gateways=()), POLICY_16) == decision
    assert without_removals(decision, seen, replace(POLICY, max_gpus=8)) == decision, "beyond the budget"
    empty = observed(0, SHORT, 0, 6, encode_workers=ENCODERS, encode_replicas=3, **UNREAD)
    assert without_removals(decision, empty, POLICY_16) == decision, "a role without any worker"
