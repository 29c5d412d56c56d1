"""Who writes a pool's replicas, and that a change of hands, or a pool that somebody deleted, scales nothing."""

from dataclasses import replace

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.conditions import ConditionType, Reason
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.operator.core import actions as act
from pointsman.operator.core.decide import decide
from pointsman.operator.core.desired import first_replicas, pool_target
from pointsman.operator.core.snapshot import Policy, SwitchClaim
from unit.operator.planned import plan, policy, replicas, world
from unit.operator.reports import of, told
from unit.operator.scenes import snapshot, worker
from unit.operator.world import Render, World, service, spec

HANDS = (None, *Mode)


def edit(it: World, decode: int) -> None:
    """A person, or GitOps, writes spec.pools.decode.replicas."""
    pools = it.service.spec.pools
    edited = pools.model_copy(update={"decode": pools.decode.model_copy(update={"replicas": decode})})
    it.service = replace(it.service, spec=it.service.spec.model_copy(update={"pools": edited}))


def under(mode: Mode | None) -> Policy | None:
    return None if mode is None else policy(mode, 20)


@pytest.mark.parametrize("mode", [Mode.ACTIVE, Mode.APPROVE, Mode.EXTERNAL])
@pytest.mark.parametrize("after", [Mode.SHADOW, None])
def test_an_edit_of_last_month_scales_nothing_when_the_planner_is_stopped(mode: Mode, after: Mode | None) -> None:
    it = world(prefill=1, decode=2)
    it.policy = policy(mode, 20)
    assert it.run(20)
    if mode is Mode.EXTERNAL:
        it.pools[Role.DECODE] = replace(it.pools[Role.DECODE], replicas=5, resource_version="77")
    else:
        plan(it, 1, 5, approval={"required": mode is Mode.APPROVE, "decision": "Approved"})
    assert it.run(100)
    edit(it, 3)
    assert it.run(20)
    assert replicas(it) == (1, 5), "it is not followed while others write the pool"
    it.policy = under(after)  # "stop the planner now", or the policy was deleted, or its name misspelt
    before = set(it.pods)
    for _ in range(20):
        it.reconcile()
        it.tick()
    assert replicas(it) == (1, 5)
    assert set(it.pods) == before
    assert not any(pod.draining for pod in it.pods.values())
    edit(it, 4)
    assert it.run(60)
    assert replicas(it) == (1, 4), "from now on the spec is followed again"


@pytest.mark.parametrize("before", [Mode.SHADOW, None])
@pytest.mark.parametrize("mode", [Mode.ACTIVE, Mode.APPROVE, Mode.EXTERNAL])
def test_an_edit_that_comes_together_with_the_mode_scales_nothing(mode: Mode, before: Mode | None) -> None:
    """One kubectl apply of a service with another number and a policy: the number is only where plans begin."""
    it = world(prefill=1, decode=2)
    it.policy = under(before)
    assert it.run(20)
    edit(it, 4)
    it.policy = under(mode)
    for _ in range(20):
        it.reconcile()
        it.tick()
        assert replicas(it) == (1, 2)
    assert len(it.pods) == 3


def test_a_pool_that_keeps_its_number_says_that_the_specs_is_not_followed_and_until_when() -> None:
    found = snapshot(worker("p", Role.PREFILL), worker("d"), service=service(spec(decode=(3, 1, 4))))
    kept = {role: replace(pool, copied_replicas=3) for role, pool in found.pools.items()}
    message = of(told(replace(found, pools=kept)), ConditionType.DECODE_READY).message
    assert "spec.pools.decode.replicas 3 takes effect when it is edited again" in message


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    misfortune=st.floats(0.0, 0.3),
    hands=st.lists(st.tuples(st.sampled_from(HANDS), st.integers(1, 12), st.integers(1, 6)), max_size=8),
)
def test_whoever_gets_the_pools_finds_the_numbers_as_they_are(
    seed: int, misfortune: float, hands: list[tuple[Mode | None, int, int]]
) -> None:
    """Modes change in any order, after any time, with lost writes; edits come while others write the pool."""
    note(f"seed {seed}")
    it = world(seed=seed)
    it.misfortune = misfortune
    for mode, passes, number in hands:
        it.policy = under(mode)
        before = replicas(it)
        for _ in range(passes):
            it.reconcile()
            it.tick()
        assert replicas(it) == before
        pool = it.pools[Role.DECODE]
        if pool.owned_replicas is not None or pool.external:
            edit(it, number)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    prefill=st.integers(1, 4),
    decode=st.integers(1, 4),
    mode=st.sampled_from(HANDS),
    pools=st.lists(st.sampled_from(LANGUAGE_ROLES), min_size=1, max_size=3),
    switch=st.sampled_from([None, True, False]),
)
def test_a_deleted_pool_comes_back_with_the_workers_it_had(
    seed: int, prefill: int, decode: int, mode: Mode | None, pools: list[Role], switch: bool | None
) -> None:
    note(f"seed {seed}")
    it = world(seed=seed, prefill=2, decode=2)
    it.policy = under(mode)
    for role, number in zip(LANGUAGE_ROLES, (prefill, decode), strict=True):
        pool = it.pools[role]
        owned = number if pool.owned_replicas is not None else None
        it.pools[role] = replace(pool, replicas=number, owned_replicas=owned, resource_version="77")
    assert it.run(200)
    there = set(it.pods)
    if switch is not None and prefill > 1 and decode > 1:
        it.switch(Role.PREFILL if switch else Role.DECODE)
    for role in pools:
        for _ in range(it.dice.randrange(12)):
            it.reconcile()
            it.tick()
        it.pools.pop(role, None)
    assert it.run(100)
    assert set(it.pods) == there, "no worker was made and none was deleted"
    moved = sum(1 if s.source is Role.DECODE else -1 for s in it.switches.values() if s.status.phase == "Completed")
    assert replicas(it) == (prefill + moved, decode - moved)


def test_without_its_pool_a_role_is_not_scaled() -> None:
    """It is terminating, or the API server refuses it, or its name belongs to somebody else."""
    workers = [worker("p", Role.PREFILL), *(worker(f"d-{n}") for n in range(3))]
    found = snapshot(*workers)
    without = replace(found, pools={Role.PREFILL: found.pools[Role.PREFILL]})
    assert pool_target(without, Role.DECODE).replicas == 3
    assert decide(without, Render()).actions == ()
    none_left = replace(without, workers=tuple(workers[:1]))
    assert not any(isinstance(action, act.CreateWorker) for action in decide(none_left, Render()).actions)
    condition = of(told(none_left), ConditionType.DECODE_READY)
    assert (condition.status, condition.reason) == ("False", Reason.CREATING)


def test_the_status_has_no_number_for_a_pool_that_is_not_there() -> None:
    """Neither 0 because no worker is left, nor how many there happen to be."""
    found = snapshot(worker("p", Role.PREFILL), worker("d-0"), worker("d-1"))
    without = replace(found, pools={Role.PREFILL: found.pools[Role.PREFILL]})
    for workers in (found.workers, found.workers[:1]):
        status = told(replace(without, workers=workers)).status
        assert status.pools is not None
        assert (status.pools.prefill.desired, status.pools.decode.desired) == (1, None)
        assert "desired" not in status.manifest()["pools"]["decode"]
    assert of(told(without), ConditionType.PROGRESSING).reason == Reason.IDLE, "nothing is scaled"
    ending = replace(without.service, deleting_since_s=1.0)
    pools = told(replace(without, service=ending)).status.pools
    assert pools is not None
    assert pools.decode.desired == 2, "it is deleted with its service: nothing is missing"


def test_a_new_pool_begins_with_the_services_number() -> None:
    asked = service(spec(decode=(4, 1, 6)))
    empty = snapshot(service=asked, pools={})
    assert first_replicas(empty, Role.DECODE) == 4
    assert first_replicas(empty, Role.DECODE, 3) == 3, "its pods went with it: the status still knows"
    five = replace(empty, workers=tuple(worker(f"d-{n}") for n in range(5)))
    assert first_replicas(five, Role.DECODE) == 5
    assert first_replicas(five, Role.DECODE, 6) == 6, "one worker is just being replaced"
    claim = SwitchClaim(uid="s", source=Role.DECODE, target=Role.PREFILL)
    claimed = replace(five.workers[0], role=Role.PREFILL, claim=claim)
    switching = replace(five, workers=(claimed, *five.workers[1:]))
    assert first_replicas(switching, Role.DECODE, 6) == 5, "the switch is in no book yet, so it is still to be moved"


def test_a_plan_waits_for_a_pool_that_is_not_there() -> None:
    it = world()
    made = plan(it, 2, 4)
    pool = it.pools.pop(Role.DECODE)
    it.misfortune = 1.0  # nobody makes it
    for action in decide(it.snapshot(), Render()).actions:
        it.execute(action)
    assert "WorkerPool decode" in (it.plans[made.uid].status.message or "")
    it.misfortune = 0.0
    it.pools[Role.DECODE] = pool
    assert it.run(60)
    assert replicas(it) == (2, 4)
