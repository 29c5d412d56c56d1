"""Limits of a policy that was edited: what runs is brought within them, in plans that the operator can carry out."""

from dataclasses import replace

import pytest

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    EncodeLoad,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    Worker,
    WorkerCondition,
)
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


FEW = EncodeLoad(0.0)
"""Too few images for the encode pool to be sized."""
MANY = EncodeLoad(4, 3, 9.0, 100.0, 0.0)
"""Images that need two encode workers."""
MORE = EncodeLoad(20, 3, 9.0, 100.0, 0.0)
"""Images that need eight or so."""


def with_images(policy: Policy, load: EncodeLoad | None, encode: int) -> tuple[State, Observation]:
    """The state after 8 minutes of 4P4D with encode workers, and the next look. Prefill is short: a switch helps."""
    encoders = tuple(Worker(f"e{n}", Role.ENCODE, WorkerCondition.ACTIVE) for n in range(encode))
    state, prompts = State(), replace(SHORT, arrivals_per_s=100, prompt_tokens=2000, output_tokens=200)
    prompts = replace(prompts, prompt_length_shares=((2000, 1.0),))
    for tick in range(200):
        seen = observed(2.5 * tick, prompts, 4, 4, encode=load, encode_workers=encoders, encode_replicas=encode)
        state, _, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
    return state, replace(seen, at_s=500.0)


def carried_out(seen: Observation, decision: Decision) -> Observation:
    """The next look: workers that the decision removes still drain."""
    left = {Role.PREFILL: decision.prefill, Role.DECODE: decision.decode, Role.ENCODE: decision.encode or 0}

    def drained(workers: tuple[Worker, ...]) -> tuple[Worker, ...]:
        shown = []
        for worker in workers:
            left[worker.role] -= 1
            gone = left[worker.role] < 0
            shown.append(replace(worker, condition=WorkerCondition.DRAINING) if gone else worker)
        return tuple(shown)

    workers, encoders = drained(seen.workers), drained(seen.encode_workers)
    return replace(
        seen, at_s=seen.at_s + 2.5, workers=workers, encode_workers=encoders, encode_replicas=decision.encode
    )


@pytest.mark.parametrize("role_switch", [True, False])
@pytest.mark.parametrize("unread", [(), ("g1",)], ids=["all gateways", "one gateway is not read"])
@pytest.mark.parametrize(
    ("load", "encode", "budget", "left"),
    [
        (None, 1, 6, 1), (FEW, 1, 6, 1), (FEW, 5, 9, 5), (FEW, 5, 6, 4),
        (MANY, 2, 6, None), (MANY, 5, 3, 1), (MORE, 1, 8, 1),
    ],
)  # fmt: skip
def test_a_lowered_budget_is_kept_in_one_plan_beside_encode_workers(
    load: EncodeLoad | None, encode: int, budget: int, left: int | None, unread: tuple[str, ...], role_switch: bool
) -> None:
    """Those of an unknown load stay while prefill and decode have more than their minimum. None is started."""
    policy = replace(SCALING, max_gpus=16, role_switch=role_switch, encode=Bounds(1, 9))
    state, seen = with_images(policy, load, encode)
    policy, seen = replace(policy, max_gpus=budget), replace(seen, unreadable_gateways=unread)
    state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
    assert decision.changes_layout
    assert not decision.switches
    assert decision.encode is not None and left in (decision.encode, None)
    assert decision.prefill + decision.decode + decision.encode == budget
    assert min(decision.prefill, decision.decode, decision.encode) >= 1
    assert decision.changes_encode is (decision.encode != encode)
    assert decision.reason is Reason.UNSATISFIABLE
    if load is None or load is FEW:
        assert f"{8 + encode} GPUs are in use, more than budget.maxGpus ({budget})" in decision.message
    next_look = carried_out(seen, decision)
    _, after, _ = decide(state, next_look, policy, next_look.at_s, LLAMA_8B_H100)
    if load is not MORE:  # else prefill and decode give workers to the encode pool
        assert not any(now < before for now, before in zip(after.target, decision.target, strict=True)), after.message


def test_stuck_workers_take_no_gpus_from_the_encode_pool_twice() -> None:
    """4P4D serve, four decode workers are stuck, and two encode workers serve where nine are needed: 14 of 16 GPUs."""
    policy = replace(SCALING, role_switch=False, encode=Bounds(1, 9), start_s=60.0, start_is_told=True)
    encoders = tuple(Worker(f"e{n}", Role.ENCODE, WorkerCondition.ACTIVE) for n in range(2))
    stuck = tuple(Worker(f"s{n}", Role.DECODE, WorkerCondition.STARTING) for n in range(4))
    load = replace(SHORT, arrivals_per_s=100, prompt_tokens=2000, output_tokens=200)
    load, images = replace(load, prompt_length_shares=((2000, 1.0),)), EncodeLoad(25, 3, 9.0, 100.0, 0.0)
    state = State()
    for tick in range(400):
        seen = observed(2.5 * tick, load, encode=images, encode_workers=encoders, encode_replicas=2)
        seen = replace(seen, workers=(*workers(4, 4), *(stuck if tick > 4 else ())))
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
    assert decision.encode is not None and decision.encode >= 4


def test_encode_workers_that_are_left_of_a_removed_pool_are_on_their_way_out_of_the_budget() -> None:
    left = tuple(Worker(f"e{n}", Role.ENCODE, WorkerCondition.ACTIVE, gpus=4) for n in range(4))
    seen = replace(observed(0, SHORT, 2, 2, encode_workers=left), worker_gpus=4, encode_gpus=4)
    assert seen.gpus_in_use == 4 * 4
    assert replace(seen, encode_replicas=3).gpus_in_use == 7 * 4


def test_pools_at_their_minimum_are_not_above_a_budget_that_is_less() -> None:
    _, decision, _ = decide(State(), observed(0, SHORT, 1, 1), replace(SCALING, max_gpus=1), 0.0, LLAMA_8B_H100)
    assert not decision.changes_layout
    assert "in use" not in decision.message


@pytest.mark.parametrize(("load", "encode"), [(FEW, 1), (MANY, 2), (MANY, 5)])
def test_where_scale_in_is_off_a_lowered_budget_removes_no_encode_worker(load: EncodeLoad, encode: int) -> None:
    policy = replace(SCALING, max_gpus=16, scale_in=False, role_switch=True, encode=Bounds(1, 9))
    state, seen = with_images(policy, load, encode)
    _, decision, _ = decide(state, seen, replace(policy, max_gpus=6), seen.at_s, LLAMA_8B_H100)
    assert (decision.changes_pools, decision.encode) == (False, encode)
    assert f"{8 + encode} GPUs are in use, more than budget.maxGpus (6), and scale-in is not" in decision.message


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
