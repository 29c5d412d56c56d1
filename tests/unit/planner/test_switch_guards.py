"""How many workers may switch their role at one time."""

from dataclasses import replace

import pytest

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import RoleSwitchAction
from pointsman.planner.core.switch_guards import (
    History,
    SwitchRecord,
    against_switch,
    switches_at_a_time,
    switches_now,
)
from pointsman.planner.core.types import Bounds, Layout, Policy, Switch, WorkerCondition
from unit.planner.scenes import SHORT, observed


@pytest.mark.parametrize(
    ("prefill", "decode", "percent", "most"),
    [(10, 10, 20, 4), (1, 1, 20, 1), (3, 8, 20, 3), (2, 3, 1, 1), (10, 10, 100, 20)],
)
def test_the_share_is_of_all_workers_of_the_service_rounded_up(
    prefill: int, decode: int, percent: int, most: int
) -> None:
    seen, policy = observed(0, SHORT, prefill, decode), Policy(max_in_transition_share=percent / 100)
    assert switches_at_a_time(seen, policy) == most
    too_many = Switch(Role.PREFILL, Role.DECODE, most + 1)
    policy = Policy(max_in_transition_share=percent / 100)
    wait = against_switch(too_many, seen, policy, History())
    assert wait is not None
    assert wait.why == (f"0 workers are switching, at most {most} of {prefill + decode} may at a time")


@pytest.mark.parametrize(("prefill", "decode", "most"), [(1, 1, 6), (2, 4, 12), (20, 44, 128)])
def test_each_worker_may_go_and_come_back_in_ten_minutes(prefill: int, decode: int, most: int) -> None:
    seen, policy = observed(900, SHORT, prefill, decode), Policy(max_in_transition_share=1.0)
    switch = Switch(Role.DECODE, Role.PREFILL, 1)
    recent = tuple(SwitchRecord(500.0 - n, Role.PREFILL) for n in range(most))
    wait = against_switch(switch, seen, policy, History(recent))
    assert wait is not None
    assert wait.why == f"{most} switches in the last 10 minutes, at most {most} are allowed"
    wait = against_switch(switch, seen, policy, History(recent[1:]))
    assert wait is None or "switches" not in wait.why


def test_no_more_workers_switch_than_leave_min_replicas_that_serve() -> None:
    seen, policy = observed(0, SHORT, 2, 5), Policy(decode=Bounds(2, 8), max_in_transition_share=0.5)
    assert switches_now(Role.DECODE, seen, policy, History()) == 3
    starting = replace(seen.workers[-1], condition=WorkerCondition.STARTING)
    unread = replace(seen.workers[-2], condition=WorkerCondition.UNREACHABLE)
    seen = replace(seen, workers=(*seen.workers[:-2], unread, starting))
    assert switches_now(Role.DECODE, seen, policy, History()) == 1
    one = Switch(Role.DECODE, Role.PREFILL, 1)
    assert against_switch(one, seen, policy, History()) is None
    policy = replace(policy, decode=Bounds(3, 8))
    assert switches_now(Role.DECODE, seen, policy, History()) == 1
    wait = against_switch(one, seen, policy, History())
    assert wait is not None
    assert wait.why == "decode would have fewer workers than minReplicas, 3"


def test_what_is_left_of_a_switch_was_wanted_for_long_enough() -> None:
    wants = History(wanting=Layout(4, 2), wanting_ticks=3)
    assert wants.begun([], Layout(2, 4), 5.0) == wants
    begun = wants.begun([Role.PREFILL], Layout(3, 3), 5.0)
    assert begun == replace(wants, switches=(SwitchRecord(5.0, Role.PREFILL),))
    both = begun.begun([Role.PREFILL], Layout(4, 2), 7.5)
    assert (len(both.switches), both.wanting, both.wanting_ticks) == (2, None, 0)
    assert wants.begun([Role.DECODE], Layout(1, 5), 5.0).wanting is None, "somebody did the opposite"
    later = both.begun([Role.DECODE], Layout(3, 3), 606.0)
    assert [record.at_s for record in later.switches] == [7.5, 606.0], "the first is more than ten minutes ago"


def test_the_field_says_so() -> None:
    """P-D13: it said a share of a pool."""
    described = RoleSwitchAction.model_fields["max_in_transition_percent"].description
    assert described is not None
    assert "share of the service's prefill and decode workers" in described
    assert "rounded up" in described
