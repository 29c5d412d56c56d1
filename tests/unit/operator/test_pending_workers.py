"""Workers that find no node: whose they are, how long they are waited for, and that no other worker pays for them."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.plan import PlanPhase, PlanReason
from pointsman.api.v1alpha1.plannerpolicy import Mode, PlannerPolicySpec
from pointsman.operator.core import actions as act
from pointsman.operator.core.decide import decide, next_look_s
from pointsman.operator.core.drain import choose_victims
from pointsman.operator.core.snapshot import Policy
from pointsman.operator.core.unschedulable import NODE_PROVISION_S, pending_of_plan
from unit.operator.planned import plan, policy, replicas, status, world
from unit.operator.scenes import worker
from unit.operator.world import Render, World


def patient(after_s: float = 60, mode: Mode = Mode.ACTIVE, max_gpus: int = 20) -> Policy:
    """A policy that gives a worker up after so many seconds."""
    made = policy(mode, max_gpus)
    actions = made.spec.actions
    scale_out = actions.scale_out.model_copy(update={"unschedulable_after_seconds": after_s})
    updated = made.spec.model_copy(update={"actions": actions.model_copy(update={"scale_out": scale_out})})
    return replace(made, spec=updated)


def with_a_pending_worker(role: Role = Role.DECODE, *, prefill: int = 2, decode: int = 3) -> World:
    """All nodes are full, and one worker's successor found none for longer than any plan waits."""
    it = world(prefill=prefill, decode=decode)
    it.policy = patient()
    victim = it.routable(role)[0]
    it.nodes = len(it.pods) - 1
    del it.pods[victim.uid], it.engines[victim.uid]
    for _ in range(120):
        it.reconcile()
        it.tick()
    assert [pod.unschedulable for pod in it.pods.values() if not pod.ready] == ["0/3 nodes are available"]
    return it


def serving(it: World) -> dict[Role, int]:
    return {role: len(it.routable(role)) for role in LANGUAGE_ROLES}


def test_a_plan_that_gives_up_a_pending_worker_drains_no_worker_that_serves() -> None:
    it = with_a_pending_worker(prefill=1, decode=4)
    made = plan(it, 1, 3)
    for _ in range(60):
        it.reconcile()
        it.tick()
        assert serving(it) == {Role.PREFILL: 1, Role.DECODE: 3}
    assert status(it, made) == (PlanPhase.COMPLETED, PlanReason.DONE)
    assert replicas(it) == (1, 3)
    assert it.settled()


def test_a_plan_is_judged_by_its_own_workers_and_not_by_a_pending_one_of_another_pool() -> None:
    it = with_a_pending_worker(prefill=1, decode=2)
    made = plan(it, 2, 2)
    for _ in range(50):  # within the time that its own worker has
        it.reconcile()
        it.tick()
    assert status(it, made) == (PlanPhase.EXECUTING, PlanReason.SCALING)
    assert replicas(it) == (2, 2)
    for _ in range(50):
        it.reconcile()
        it.tick()
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.UNSCHEDULABLE)
    assert replicas(it) == (1, 2), "what it added is taken back, and nothing else"
    it.nodes = None
    assert it.run(60)
    assert serving(it) == {Role.PREFILL: 1, Role.DECODE: 2}, "the old pod finds its node"


def test_a_plan_whose_own_workers_serve_is_done_although_an_older_one_has_no_node() -> None:
    it = with_a_pending_worker(prefill=1, decode=3)
    (old,) = (pod for pod in it.pods.values() if pod.unschedulable)
    it.nodes, it.unplaceable = None, {old.uid}
    made = plan(it, 2, 3)
    for _ in range(30):
        it.reconcile()
        it.tick()
    assert status(it, made) == (PlanPhase.COMPLETED, PlanReason.DONE)
    assert f"{old.name} still waits for a node" in (it.plans[made.uid].status.message or "")
    assert serving(it) == {Role.PREFILL: 2, Role.DECODE: 2}


def test_a_plan_that_enlarges_the_pool_of_an_older_one_without_a_node_is_done_without_it() -> None:
    it = with_a_pending_worker(prefill=1, decode=3)
    (old,) = (pod for pod in it.pods.values() if pod.unschedulable)
    it.nodes, it.unplaceable = None, {old.uid}
    made = plan(it, 1, 4)
    for _ in range(30):
        it.reconcile()
        it.tick()
    assert status(it, made) == (PlanPhase.COMPLETED, PlanReason.DONE)
    assert replicas(it) == (1, 4)
    assert serving(it) == {Role.PREFILL: 1, Role.DECODE: 3}


@pytest.mark.parametrize(("added", "counted"), [(2, ["newest", "own"]), (1, ["newest"]), (0, []), (-1, [])])
def test_of_the_workers_without_a_node_a_plan_counts_as_many_as_it_added_the_newest_first(
    added: int, counted: list[str]
) -> None:
    began = datetime.fromtimestamp(100.9, UTC)
    made = {"before": 99.0, "own": 100.0, "newest": 130.0}  # creation stamps have whole seconds
    workers = [worker(name, pod_ready=False, unschedulable="no node", created_s=at) for name, at in made.items()]
    serves = worker("serves", created_s=140.0)
    leaves = worker("leaves", pod_ready=False, unschedulable="no node", created_s=140.0, terminating=True)
    found = pending_of_plan([serves, leaves, *workers], began, added)
    assert [each.name for each in found] == counted
    assert pending_of_plan(workers, None, added) == [], "it has not begun"


def test_a_plan_writes_a_pool_once_in_a_pass() -> None:
    """Two writes under one resourceVersion would be a conflict with ourselves."""
    it = with_a_pending_worker(prefill=1, decode=4)
    plan(it, 1, 3)
    for _ in range(30):
        written = [a.role for a in decide(it.snapshot(), Render()).actions if isinstance(a, act.WritePool)]
        assert len(written) == len(set(written))
        it.reconcile()
        it.tick()


def test_among_workers_that_do_not_serve_the_one_without_a_node_leaves_first() -> None:
    loads = worker("loads", pod_ready=False, created_s=9.0)
    pending = worker("pending", pod_ready=False, unschedulable="no node", created_s=1.0)
    assert [item.name for item in choose_victims([loads, pending], 1, "r")] == ["pending"]


@pytest.mark.parametrize("after_s", [60, 600])
def test_a_worker_is_waited_for_as_long_as_the_policy_says(after_s: float) -> None:
    it = world()
    it.policy, it.nodes = patient(after_s), len(it.pods)
    made = plan(it, 2, 4)
    began_s = it.now_s
    while not it.plans[made.uid].ended and it.now_s < began_s + 2000:
        acted = it.reconcile().actions
        if not acted:  # after an action it looks again anyway
            wait_s = next_look_s(it.snapshot())
            assert wait_s is not None, "nothing else would wake the operator"
            assert 0 < wait_s <= after_s, "and it does not look without a pause"
        it.tick(10)
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.UNSCHEDULABLE)
    assert after_s <= it.now_s - began_s <= after_s + 40
    assert replicas(it) == (2, 3)


def test_ten_minutes_is_the_default() -> None:
    body = {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 8}}
    assert PlannerPolicySpec.model_validate(body).actions.scale_out.unschedulable_after_seconds == 600


def test_a_worker_is_not_deleted_while_an_autoscaler_makes_a_node_for_it() -> None:
    it = world()
    it.policy, it.nodes = patient(60), len(it.pods)
    made = plan(it, 2, 4)
    for _ in range(50):
        it.reconcile()
        it.tick()
    (uid,) = (uid for uid, pod in it.pods.items() if pod.unschedulable)
    requested_s = it.now_s
    it.pods[uid] = replace(it.pods[uid], node_requested_s=requested_s)
    while it.now_s < requested_s + NODE_PROVISION_S - 10:
        it.reconcile()
        it.tick(10)
        assert not it.plans[made.uid].ended
        assert uid in it.pods
    it.nodes += 1
    assert it.run(60)
    assert status(it, made) == (PlanPhase.COMPLETED, PlanReason.DONE)
    assert replicas(it) == (2, 4)


def test_a_plan_that_waits_for_a_person_beside_a_pending_worker_is_not_looked_at_without_a_pause() -> None:
    it = with_a_pending_worker()
    it.policy = patient(mode=Mode.APPROVE)
    plan(it, 2, 4, approval={"required": True})
    it.reconcile()
    wait_s = next_look_s(it.snapshot())
    assert wait_s is not None
    assert wait_s > 10


def test_an_operator_that_dies_while_a_plan_is_given_up_never_says_that_it_was_completed() -> None:
    """Between any two of its writes."""
    for survived in range(6):
        it = world()
        it.policy, it.nodes = patient(60), len(it.pods)
        made = plan(it, 2, 4)
        for _ in range(59):
            it.reconcile()
            it.tick()
        left = survived
        for _ in range(60):
            for action in decide(it.snapshot(), Render()).actions:
                if left == 0:
                    break
                it.execute(action)
                left -= 1
            if left == 0:
                left = 1000  # it died once
            it.tick()
        assert status(it, made) == (PlanPhase.FAILED, PlanReason.UNSCHEDULABLE), survived
        assert replicas(it) == (2, 3)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    nodes=st.integers(2, 8),
    plans=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4),
)
def test_with_too_few_nodes_no_plan_costs_a_worker_that_it_did_not_want_gone(
    seed: int, nodes: int, plans: list[tuple[int, int, int]]
) -> None:
    """Without crashes: a role never has fewer serving workers than it had, or than the plan asks for."""
    note(f"seed {seed}")
    it = world(seed=seed)
    it.policy, it.nodes = patient(60), nodes
    floor = serving(it)
    for step in range(500):
        for at, *wanted in plans:
            if at == step:
                plan(it, *wanted)
                now = serving(it)
                asked = dict(zip(LANGUAGE_ROLES, wanted, strict=True))
                floor = {role: min(floor[role], now[role], asked[role]) for role in LANGUAGE_ROLES}
        it.reconcile()
        it.tick()
        assert all(serving(it)[role] >= floor[role] for role in LANGUAGE_ROLES), (serving(it), floor)
    assert all(made.ended for made in it.plans.values()), [made.status for made in it.plans.values()]
