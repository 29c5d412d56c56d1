"""What a policy lets a plan do is looked at before every step: policies are edited while plans run."""

import random
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.plan import PlanPhase, PlanReason
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.operator.core.actions import CreateSwitch, WritePool
from pointsman.operator.core.decide import decide
from pointsman.operator.core.ledger import ChangeKind
from unit.operator.limits import policy
from unit.operator.planned import plan, replicas, status, world
from unit.operator.world import Render

OFF: Final = {"enabled": False}
ASKS: Final = {"needsApproval": True}
CHANGES: Final[dict[str, tuple[tuple[int, int], int]]] = {
    "roleSwitch": ((3, 2), 1),
    "scaleOut": ((2, 4), 0),
    "scaleIn": ((2, 2), 0),
}


@pytest.mark.parametrize("action", CHANGES)
def test_a_plan_is_not_begun_once_the_policy_forbids_its_action(action: str) -> None:
    it = world()
    (wanted, switches) = CHANGES[action]
    made = plan(it, *wanted, switches=switches)
    it.policy = policy(actions={action: OFF})
    assert it.run(60)
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.NOT_ALLOWED)
    assert f"actions.{action}.enabled" in (it.plans[made.uid].status.message or "")
    assert (replicas(it), it.switches) == ((2, 3), {})


@pytest.mark.parametrize("action", CHANGES)
def test_other_actions_may_be_forbidden(action: str) -> None:
    it = world()
    (wanted, switches) = CHANGES[action]
    made = plan(it, *wanted, switches=switches)
    it.policy = policy(actions={other: OFF for other in CHANGES if other != action})
    assert it.run(100)
    assert status(it, made)[0] is PlanPhase.COMPLETED
    assert replicas(it) == wanted


@pytest.mark.parametrize("action", CHANGES)
@pytest.mark.parametrize("approved", [True, False])
def test_a_plan_that_nobody_approved_is_not_begun_once_the_policy_asks_for_it(action: str, approved: bool) -> None:
    it = world()
    (wanted, switches) = CHANGES[action]
    approval = {"required": True, "decision": "Approved"} if approved else {}
    made = plan(it, *wanted, switches=switches, approval=approval)
    it.policy = policy(actions={action: ASKS})
    assert it.run(100)
    if approved:
        assert status(it, made)[0] is PlanPhase.COMPLETED
    else:
        assert status(it, made) == (PlanPhase.FAILED, PlanReason.NOT_ALLOWED)
        assert f"actions.{action}.needsApproval" in (it.plans[made.uid].status.message or "")
        assert replicas(it) == (2, 3)


def test_a_plan_of_mode_active_ends_when_the_mode_becomes_approve_and_what_began_ends_in_order() -> None:
    it = world(prefill=1, decode=4)
    for engine in it.engines.values():
        engine.in_flight = 5
    made = plan(it, 3, 2, switches=2)
    while not any(pod.claim for pod in it.pods.values()):
        it.reconcile()
    it.policy = policy(Mode.APPROVE)
    assert it.run(100)
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.NOT_ALLOWED)
    assert "mode Approve" in (it.plans[made.uid].status.message or "")
    ended = sorted(switch.status.phase or "" for switch in it.switches.values())
    assert ended == [SwitchPhase.COMPLETED, SwitchPhase.FAILED], "one had begun, the other had not"
    assert replicas(it) == (2, 3)


def test_scale_in_that_is_switched_off_in_the_middle_of_a_switch_is_not_done_after_it() -> None:
    it = world(prefill=1, decode=4)
    made = plan(it, 2, 2, switches=1)
    while not any(pod.claim for pod in it.pods.values()):
        it.reconcile()
    it.policy = policy(actions={"scaleIn": OFF})
    assert it.run(100)
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.NOT_ALLOWED)
    assert replicas(it) == (2, 3)


def test_a_switch_alone_needs_neither_scale_out_nor_scale_in() -> None:
    it = world(prefill=1, decode=4)
    made = plan(it, 3, 2, switches=2)
    it.policy = policy(actions={"scaleIn": OFF, "scaleOut": OFF})
    for _ in range(100):
        it.reconcile()
        it.tick()
    assert status(it, made)[0] is PlanPhase.COMPLETED
    assert replicas(it) == (3, 2)


def test_a_plan_that_leaves_fewer_gpus_than_the_budgets_least_is_refused() -> None:
    it = world()
    made = plan(it, 1, 2)
    it.policy = policy(budget={"maxGpus": 12, "minGpus": 4})
    it.reconcile()
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.NOT_ALLOWED)
    assert "budget.minGpus" in (it.plans[made.uid].status.message or "")


def test_a_plan_may_come_nearer_to_the_budgets_least() -> None:
    it = world()
    made = plan(it, 2, 4)
    it.policy = policy(budget={"maxGpus": 12, "minGpus": 8})
    assert it.run(60)
    assert status(it, made)[0] is PlanPhase.COMPLETED


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    wanted=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    edited_at=st.integers(0, 30),
    off=st.sets(st.sampled_from(sorted(CHANGES)), min_size=1),
)
def test_no_step_of_a_forbidden_kind_begins_after_an_edit_of_the_policy(
    seed: int, wanted: tuple[int, int], edited_at: int, off: set[str]
) -> None:
    note(f"seed {seed}")
    it = world(seed=seed)
    change = [after - before for after, before in zip(wanted, replicas(it), strict=True)]
    switches = min(map(abs, change)) if change[0] * change[1] < 0 else 0
    plan(it, *wanted, switches=switches if change[0] > 0 else -switches)
    for step in range(80):
        if step == edited_at:
            it.policy = policy(actions=dict.fromkeys(off, OFF))
        for action in decide(it.snapshot(), Render()).actions:
            if step >= edited_at and isinstance(action, CreateSwitch):
                assert "roleSwitch" not in off
            changes = action.changes if step >= edited_at and isinstance(action, WritePool) else ()
            for written in changes:
                if written.kind is ChangeKind.SET:
                    assert written.replicas is not None
                    assert written.before is not None
                    assert ("scaleOut" if written.replicas > written.before else "scaleIn") not in off, written.why
            it.execute(action)
        it.tick()
    assert all(made.ended for made in it.plans.values())


def test_the_sum_of_both_pools_does_not_hide_what_one_of_them_loses() -> None:
    """One worker started and another removed is both, as it is when the planner asks for approval."""
    it = world()
    made = plan(it, 3, 2)
    it.policy = policy(actions={"scaleIn": OFF})
    it.reconcile()
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.NOT_ALLOWED)
    assert dict(zip(LANGUAGE_ROLES, replicas(it), strict=True)) == {Role.PREFILL: 2, Role.DECODE: 3}


def test_the_policy_may_be_deleted_and_made_again_in_the_middle() -> None:
    it = world()
    it.dice = random.Random(7)
    made = plan(it, 2, 5)
    it.reconcile()
    it.reconcile()
    it.policy = None
    it.reconcile()
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.NOT_ALLOWED)
    number = replicas(it)
    it.policy = policy()
    assert it.run(60)
    assert replicas(it) == number
    assert replace(it.pools[Role.DECODE]).owned_replicas == number[1]
