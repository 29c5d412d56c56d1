"""Plans: what is carried out, in which order, what ends one, and that nothing is done twice."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plan import PlanPhase, PlanReason
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.operator.core.actions import CreateWorker
from pointsman.operator.core.decide import decide, next_look_s
from unit.operator.planned import plan, policy, replicas, status, world
from unit.operator.world import Render, World, service, spec


def test_switches_come_first_and_replicas_when_they_have_ended() -> None:
    it = world()
    made = plan(it, 3, 3, switches=1)
    scaled_at = switched_at = None
    for step in range(80):
        it.reconcile()
        it.tick()
        if switched_at is None and any(s.ended for s in it.switches.values()):
            switched_at = step
        if scaled_at is None and it.pools[Role.DECODE].set_by == made.uid:
            scaled_at = step
    assert status(it, made) == (PlanPhase.COMPLETED, PlanReason.DONE)
    assert replicas(it) == (3, 3)
    assert switched_at is not None
    assert scaled_at is not None
    assert switched_at <= scaled_at
    assert it.routing_set_by == f"plan/{made.name}"


def test_a_switch_that_fails_ends_the_plan_without_scaling_to_make_up_for_it() -> None:
    it = world()
    it.cannot_prove = {(uid, Role.PREFILL) for uid in it.pods}
    made = plan(it, 4, 3, switches=1)
    assert it.run(200)
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.SWITCH_FAILED)
    assert replicas(it) == (2, 3)


@pytest.mark.parametrize("now", [Mode.SHADOW, Mode.ACTIVE, Mode.EXTERNAL], ids=lambda mode: f"{mode} since")
@pytest.mark.parametrize("changes_layout", [True, False], ids=["layout", "routing"])
def test_what_was_decided_in_shadow_changes_nothing(changes_layout: bool, now: Mode) -> None:
    """Also if the policy has another mode by now, or the planner knew of Shadow before the operator did."""
    it = world(Mode.SHADOW)
    made = plan(it, 3, 2, switches=1 if changes_layout else 0, changesLayout=changes_layout)
    it.policy = policy(now)
    it.run(30)
    assert status(it, made) == (PlanPhase.SHADOW, PlanReason.RECORDED)
    assert replicas(it) == (2, 3)
    assert not it.switches
    assert it.routing_set_by is None


def test_a_plan_waits_for_a_person_who_approves_it() -> None:
    it = world(Mode.APPROVE)
    made = plan(it, 3, 2, switches=1, approval={"required": True})
    for _ in range(10):
        it.reconcile()
    assert status(it, made) == (PlanPhase.AWAITING_APPROVAL, PlanReason.AWAITING_APPROVAL)
    asks = it.plans[made.uid].status.message or ""
    assert f"kubectl patch plan {it.plans[made.uid].name} --namespace {it.service.namespace} " in asks
    assert not it.switches
    approved = made.spec.model_copy(update={"approval": made.spec.approval.model_copy(update={"decision": "Approved"})})
    it.plans[made.uid] = replace(it.plans[made.uid], spec=approved)
    assert it.run(80)
    assert status(it, made) == (PlanPhase.COMPLETED, PlanReason.DONE)
    assert replicas(it) == (3, 2)


def test_a_plan_that_the_planner_withdraws_ends_unless_a_person_has_answered() -> None:
    it = world(Mode.APPROVE)
    asked = plan(it, 3, 2, switches=1, approval={"required": True})
    it.reconcile()
    why = "it was not wanted for 120 s"
    wish: dict[str, Any] = {"changesLayout": False, "reason": "Withdrawn", "message": why}
    withdrawal = plan(it, 2, 3, withdraws=asked.name, **wish)
    assert it.run(30)
    assert status(it, asked) == (PlanPhase.SUPERSEDED, PlanReason.WITHDRAWN)
    assert it.plans[asked.uid].status.message == f"withdrawn by plan chat-00002: {why}"
    assert status(it, withdrawal) == (PlanPhase.COMPLETED, PlanReason.DONE)
    assert not it.switches

    approved = plan(it, 3, 2, switches=1, approval={"required": True, "decision": "Approved"})
    plan(it, 2, 3, withdraws=approved.name, **wish)
    assert it.run(80)
    assert status(it, approved) == (PlanPhase.COMPLETED, PlanReason.DONE)
    assert replicas(it) == (3, 2)


@pytest.mark.parametrize(
    ("decision", "phase"), [("Denied", PlanPhase.DENIED), (None, PlanPhase.EXPIRED), ("Approved", PlanPhase.EXPIRED)]
)
def test_a_plan_that_is_denied_or_too_late_is_not_begun(decision: str | None, phase: PlanPhase) -> None:
    it = world(Mode.APPROVE)
    made = plan(it, 3, 2, switches=1, approval={"required": True, "decision": decision})
    if phase is PlanPhase.EXPIRED:
        it.now_s += 60
    it.reconcile()
    assert status(it, made)[0] is phase
    assert not it.switches


def test_an_approval_after_the_beginning_of_execution_cannot_expire_it() -> None:
    it = world()
    made = plan(it, 3, 2, switches=1)
    it.reconcile()
    it.now_s += 60
    assert it.run(80)
    assert status(it, made)[0] is PlanPhase.COMPLETED


def test_a_newer_plan_supersedes_one_in_the_middle_and_its_switch_still_ends_well() -> None:
    it = world()
    first = plan(it, 3, 2, switches=1)
    it.reconcile()
    it.reconcile()
    assert it.switches
    second = plan(it, 3, 3)
    assert it.run(100)
    assert status(it, first)[0] is PlanPhase.SUPERSEDED
    assert status(it, second)[0] is PlanPhase.COMPLETED
    assert all(s.status.phase is SwitchPhase.COMPLETED for s in it.switches.values())
    assert replicas(it) == (3, 3)


def test_a_newer_plan_takes_the_place_of_one_that_awaits_approval() -> None:
    it = world(Mode.APPROVE)
    first = plan(it, 3, 2, switches=1, approval={"required": True})
    it.reconcile()
    assert status(it, first)[0] is PlanPhase.AWAITING_APPROVAL
    routing = plan(it, 2, 3, changesLayout=False)
    it.reconcile()
    assert status(it, first)[0] is PlanPhase.AWAITING_APPROVAL, "routing asks nobody and overtakes nothing"
    assert status(it, routing)[0] is PlanPhase.COMPLETED
    second = plan(it, 4, 1, switches=2, approval={"required": True})
    it.reconcile()
    assert status(it, first) == (PlanPhase.SUPERSEDED, PlanReason.NEWER_PLAN)
    assert status(it, second)[0] is PlanPhase.AWAITING_APPROVAL
    assert not it.switches


def test_what_a_plan_sets_of_flow_control_is_said() -> None:
    local = "prompts of up to 512 uncached tokens are prefilled on their decode worker"
    numbers = {"maxLocalPrefillTokens": 512, "maxPrefillQueueSize": 8}
    for bounds, said in (
        ({}, local),
        (
            {"decodingPerDecodeWorker": 12},
            f"{local}; each gateway queues new requests while more than 12 requests per decode worker are being "
            "decoded",
        ),
        (
            {"pendingTokensPerPrefillWorker": 1058, "decodingPerDecodeWorker": 12},
            f"{local}; each gateway queues new requests while more than 1058 prompt tokens per prefill worker "
            "are pending or 12 requests per decode worker are being decoded",
        ),
    ):
        it = world()
        made = plan(it, 2, 3, changesLayout=False, routing=numbers | bounds)
        assert it.run(30)
        assert it.plans[made.uid].status.message == said


def test_a_routing_plan_is_done_at_once_and_supersedes_no_layout() -> None:
    it = world()
    layout = plan(it, 3, 2, switches=1)
    it.reconcile()
    routing = plan(it, 2, 3, changesLayout=False)
    it.reconcile()
    assert status(it, routing)[0] is PlanPhase.COMPLETED
    assert status(it, layout)[0] is PlanPhase.EXECUTING


def test_newer_routing_stands_while_an_older_layout_is_still_carried_out() -> None:
    it = world()
    layout = plan(it, 3, 2, switches=1)
    it.reconcile()
    assert it.routing_set_by == f"plan/{layout.name}"
    routing = plan(it, 2, 3, changesLayout=False)
    assert it.run(80)
    assert status(it, layout)[0] is PlanPhase.COMPLETED
    assert it.routing_set_by == f"plan/{routing.name}"


def test_older_routing_is_not_put_over_that_of_a_newer_layout() -> None:
    it = world()
    routing = plan(it, 2, 3, changesLayout=False)
    layout = plan(it, 3, 2, switches=1)
    assert it.run(80)
    assert status(it, routing)[0] is PlanPhase.COMPLETED
    assert it.routing_set_by == f"plan/{layout.name}"


def test_routing_is_set_by_a_planner_that_had_to_count_anew() -> None:
    it = world()
    it.routing_set_by = "plan/chat-00042"  # of plans that are gone
    routing = plan(it, 2, 3, changesLayout=False)
    it.reconcile()
    assert it.routing_set_by == f"plan/{routing.name}"


def test_a_plan_that_moves_workers_between_pools_by_scaling_stays_within_the_budget_on_the_way() -> None:
    """Workers that drain are paid for as well: their successors are made when they are gone."""
    it = world(prefill=1, decode=4, max_gpus=5)
    for engine in it.engines.values():
        engine.in_flight = 5
    made = plan(it, 3, 2)
    for _ in range(100):
        it.reconcile()
        assert len(it.pods) <= 5, f"{len(it.pods)} workers, budget.maxGpus is 5"
        it.tick()
    assert status(it, made)[0] is PlanPhase.COMPLETED
    assert replicas(it) == (3, 2)


def test_a_pod_that_ends_keeps_its_gpu_until_it_is_gone_or_its_node_is_given_up() -> None:
    it = world(prefill=1, decode=4, max_gpus=5)
    victim = it.routable(Role.DECODE)[0]
    it.terminate(victim)
    lost_at_s = it.pods[victim.uid].lost_at_s
    assert lost_at_s is not None

    def made(**fields: Any) -> int:
        seen = replace(it.snapshot(), **fields)
        return sum(isinstance(action, CreateWorker) for action in decide(seen, Render()).actions)

    assert made() == 0, "its container still ends: a sixth GPU would be in use"
    assert made(policy=policy(max_gpus=6)) == 1, "where there is room nothing is waited for"
    assert made(policy=policy(Mode.SHADOW, max_gpus=5)) == 1, "the numbers are a person's, and so is the bill"
    assert made(now_s=lost_at_s - 1) == 0
    assert made(now_s=lost_at_s) == 1, "nobody hears of its node any more"
    next_s = next_look_s(it.snapshot())
    assert next_s is not None
    assert next_s <= lost_at_s - it.now_s, "nothing else would tell"
    del it.pods[victim.uid]
    assert made() == 1


def test_a_budget_too_small_for_all_replicas_leaves_room_for_every_roles_minimum() -> None:
    it = World(service=service(spec(prefill=(4, 1, 4), decode=(4, 2, 4))), dice=random.Random(1))
    it.policy = policy(max_gpus=4)
    for _ in range(40):
        it.reconcile()
        it.tick()
    assert (len(it.routable(Role.PREFILL)), len(it.routable(Role.DECODE))) == (2, 2)


def test_kubectl_wait_finds_its_condition_on_a_plan() -> None:
    it = world(max_gpus=5)
    good = plan(it, 3, 2, switches=1)
    assert it.run(80)
    assert [(c.type, c.status) for c in it.plans[good.uid].status.conditions] == [("Complete", "True")]
    dear = plan(it, 4, 4)
    it.reconcile()
    assert [(c.type, c.status) for c in it.plans[dear.uid].status.conditions] == [("Failed", "True")]


def test_a_plan_beyond_the_budget_is_refused_by_name() -> None:
    it = world(max_gpus=5)
    made = plan(it, 3, 3)
    it.reconcile()
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.NOT_ALLOWED)
    assert "budget.maxGpus" in (it.plans[made.uid].status.message or "")


def test_what_somebody_writes_into_a_pool_that_plans_own_is_put_back() -> None:
    it = world()
    assert it.run(30)
    pool = it.pools[Role.DECODE]
    it.pools[Role.DECODE] = replace(pool, replicas=5, resource_version="77")
    assert it.run(30)
    assert replicas(it) == (2, 3)


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.EXTERNAL])
def test_where_plans_own_nothing_a_scaled_pool_is_left_alone(mode: Mode) -> None:
    it = world(mode)
    it.pools[Role.DECODE] = replace(it.pools[Role.DECODE], replicas=5, resource_version="77")
    assert it.run(60)
    assert replicas(it) == (2, 5)


def test_a_worker_that_finds_no_node_is_given_up_after_a_while_and_said_so() -> None:
    it = world()
    made = plan(it, 2, 4)
    for _ in range(90):
        it.reconcile()
        it.tick()
        for uid, pod in it.pods.items():
            if pod.created_s > 1000 and uid not in {u for u, p in it.pods.items() if p.ready}:
                it.pods[uid] = replace(
                    pod,
                    unschedulable="0/3 nodes are available",
                    container=replace(pod.container, running=False),
                    pod_ready=False,
                )
        if it.plans[made.uid].ended:
            break
    assert status(it, made) == (PlanPhase.FAILED, PlanReason.UNSCHEDULABLE)
    assert "0/3 nodes" in (it.plans[made.uid].status.message or "")
    assert it.run(60)
    assert replicas(it) == (2, 3)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    misfortune=st.floats(0.0, 0.3),
    plans=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4),
)
def test_through_deaths_at_any_point_every_plan_ends_and_the_last_completed_one_is_what_stands(
    seed: int, misfortune: float, plans: list[tuple[int, int, int]]
) -> None:
    """Crashes of workers are left out: what a plan leaves behind is exact only while pods live."""
    note(f"seed {seed}")
    it = world(seed=seed, max_gpus=12)
    for step in range(60):
        for at, prefill, decode in plans:
            if at == step:
                now = replicas(it)
                moved = prefill - now[0] if (prefill - now[0]) * (decode - now[1]) < 0 else 0
                most = min(abs(prefill - now[0]), abs(decode - now[1]), now[1] - 1 if moved > 0 else now[0] - 1)
                plan(it, prefill, decode, switches=max(0, most) * (1 if moved > 0 else -1) if moved else 0)
        decision = decide(it.snapshot(), Render())
        for action in decision.actions:
            if it.dice.random() < misfortune:
                break  # the operator died here
            it.execute(action)
        it.tick()
    assert it.run(400), [(p.name, p.status.phase, p.status.message) for p in it.plans.values()]
    assert all(made.ended for made in it.plans.values())
    newest = max(it.plans.values(), key=lambda made: made.spec.sequence)
    if newest.status.phase is PlanPhase.COMPLETED:
        assert replicas(it) == newest.spec.target
    names = [switch.name for switch in it.switches.values()]
    assert len(names) == len(set(names))
