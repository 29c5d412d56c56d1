"""Limits of a policy that was edited: what runs is brought within them, in plans that the operator can carry out."""

from dataclasses import replace

import pytest

from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Bounds, Policy, Reason, RoutingNumbers
from unit.planner.scenes import LLAMA_8B_H100, LONG, SHORT, observed, workers

SHORTAGES = (Reason.PREFILL_SHORT, Reason.DECODE_SHORT, Reason.BOTH_SHORT)
SCALING = Policy(mode=Mode.ACTIVE, max_gpus=16, prefill=Bounds(1, 9), decode=Bounds(1, 9))


@pytest.mark.parametrize("role_switch", [True, False])
@pytest.mark.parametrize(("gpus", "budget", "left"), [(1, 4, 4), (2, 9, 4), (4, 15, 3), (8, 16, 2)])
@pytest.mark.parametrize("rate_per_s", [20.0, 400.0])
def test_a_budget_that_was_lowered_is_kept_in_one_plan_that_the_operator_can_carry_out(
    rate_per_s: float, gpus: int, budget: int, left: int, role_switch: bool
) -> None:
    policy = replace(SCALING, max_gpus=budget, role_switch=role_switch)
    workers_gpus = tuple(replace(worker, gpus=gpus) for worker in workers(4, 4))
    seen = observed(0, replace(SHORT, arrivals_per_s=rate_per_s), workers=workers_gpus)
    _, decision, _ = decide(State(), seen, policy, 0.0, LLAMA_8B_H100)
    assert decision.changes_layout
    assert not decision.switches
    assert decision.prefill + decision.decode == left
    assert f"{8 * gpus} GPUs are in use, more than budget.maxGpus ({budget})" in decision.message
    assert decision.reason is (Reason.SPARE_CAPACITY if rate_per_s < 100 else Reason.UNSATISFIABLE), decision
    assert decision.alternatives[0].gpus <= budget


def test_where_nobody_may_be_removed_a_lowered_budget_is_said_and_nothing_is_asked_that_would_be_refused() -> None:
    policy, state = replace(SCALING, max_gpus=4, scale_in=False, role_switch=True), State()
    routing = RoutingNumbers(512, 32)
    for tick in range(20):
        seen = observed(2.5 * tick, LONG, 2, 6, routing=routing)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        routing = decision.routing
        assert not decision.changes_layout
        assert decision.changes_routing or decision.reason is Reason.UNSATISFIABLE
        assert "8 GPUs are in use, more than budget.maxGpus (4), and scale-in is not allowed" in decision.message
    assert not decision.changes_routing


@pytest.mark.parametrize(
    ("policy", "layout"),
    [
        (replace(SCALING, min_gpus=6), 6),
        (replace(SCALING, min_gpus=6, prefill=Bounds(1, 2), decode=Bounds(1, 9)), 6),
        (replace(SCALING, min_gpus=6, prefill=Bounds(1, 2), decode=Bounds(1, 2)), 4),
        (replace(SCALING, min_gpus=6, scale_out=False), 2),
        (replace(SCALING, min_gpus=2), 2),
    ],
)
def test_a_minimum_that_was_raised_is_reached_by_starts_and_kept(policy: Policy, layout: int) -> None:
    state, now = State(), (1, 1)
    for tick in range(80):
        seen = observed(2.5 * tick, replace(SHORT, arrivals_per_s=1), *now)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        if decision.changes_layout:
            assert decision.reason in SHORTAGES
            assert f"budget.minGpus is {policy.min_gpus}" in decision.message
        now = decision.prefill, decision.decode
        assert now[0] <= policy.prefill.most
        assert now[1] <= policy.decode.most
    assert sum(now) == layout


@pytest.mark.parametrize("role_switch", [True, False])
def test_a_lowered_budget_takes_nobody_away_for_one_that_only_starts(role_switch: bool) -> None:
    """Prefill is short: a switch, once the budget is kept, and no start in the place of a worker that serves."""
    policy = replace(SCALING, max_gpus=7, role_switch=role_switch)
    seen = observed(0, LONG, 2, 6)
    _, decision, _ = decide(State(requests=1000.0), seen, policy, 0.0, LLAMA_8B_H100)
    assert decision.changes_layout
    assert decision.prefill + decision.decode == 7
    assert decision.prefill <= 2
    assert decision.decode <= 6


def test_a_lowered_budget_starts_nobody_where_scale_out_is_off() -> None:
    """Also of a pool that has fewer than its minReplicas."""
    policy = replace(SCALING, max_gpus=7, scale_out=False, prefill=Bounds(3, 6))
    _, decision, _ = decide(State(requests=1000.0), observed(0, LONG, 2, 6), policy, 0.0, LLAMA_8B_H100)
    assert (decision.prefill, decision.decode) == (2, 5)


def test_a_raised_minimum_is_the_reason_also_where_fewer_workers_would_do() -> None:
    state, said = State(requests=1000.0), []
    for tick in range(80):
        seen = observed(2.5 * tick, replace(SHORT, arrivals_per_s=1), 2, 2)
        state, decision, _ = decide(state, seen, replace(SCALING, min_gpus=6), seen.at_s, LLAMA_8B_H100)
        if sum((decision.prefill, decision.decode)) > 4:
            said.append(decision)
    assert said
    for decision in said:
        assert decision.reason in SHORTAGES
        assert "budget.minGpus is 6" in decision.message


@pytest.mark.parametrize(("requests", "starts"), [(20.0, False), (30.0, True)])
def test_a_raised_minimum_waits_for_25_requests_and_a_lowered_budget_for_none(requests: float, starts: bool) -> None:
    seen, state = observed(0, replace(SHORT, arrivals_per_s=0.1), 2, 2), State(requests=requests)
    _, raised, _ = decide(state, seen, replace(SCALING, min_gpus=6), 0.0, LLAMA_8B_H100)
    assert raised.changes_layout is starts
    _, lowered, _ = decide(state, seen, replace(SCALING, max_gpus=3), 0.0, LLAMA_8B_H100)
    assert lowered.prefill + lowered.decode == 3


def test_a_lowered_budget_does_not_hold_before_the_length_of_any_request_is_known() -> None:
    nobody = replace(SHORT, arrivals_per_s=0, prompt_tokens=None, output_tokens=None)
    seen = observed(0, nobody, 2, 2)
    _, decision, _ = decide(State(), seen, replace(SCALING, max_gpus=3), 0.0, LLAMA_8B_H100)
    assert decision.reason is Reason.NOT_ENOUGH_DATA
    assert not decision.changes_layout
